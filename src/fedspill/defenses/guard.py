"""The client's guard: a model that moved as no training moves it is not trained on (against the attacks of 004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from fedspill.defense import ACCEPT, ClientContext, Defense, Verdict
from fedspill.defenses.model_checks.change_statistics import (
    NAMES,
    ChangeStatistics,
    UsualLayers,
    layers_of,
    read_change,
)
from fedspill.defenses.model_checks.rehearsal import Rehearsed, rehearsed
from fedspill.defenses.model_checks.row_likeness import has_rows, is_wide, look_at_rows, sketched, stirred
from fedspill.defenses.model_checks.suspected_plant import (
    LATELY,
    fresh_looks,
    least_readable,
    likeness_words,
    looks_of,
    plant_words,
    readable_by,
    redrawn_readable,
)
from fedspill.defenses.model_checks.thresholds import History, bounds, ordinary
from fedspill.errors import UsageError
from fedspill.messages import Message

_RISING, _FALLING = 0.05, 0.2  # how much of a larger or smaller step the usual step takes over
_FIRST, _LOOKED = "first.", "looked."  # what is remembered of the first accepted model, and of the last tried out
_REHEARSED = "rehearsed"  # what honest training shows on this client's samples, once it was asked
_READABLE = "readable"  # the share of this client's samples that models may give away
_SLOWER = -2.3  # a smaller step, in logs, counts as that


class _Examined(NamedTuple):
    first: Mapping[str, Tensor]  # what to remember of this model, if it is the first
    looked: Mapping[str, Tensor]  # and of the last one that was tried out
    plant: str  # that this one looks like
    least: Tensor | None = None  # what later models are held against, where this one was tried out
    kept: Mapping[str, Tensor] = {}  # what is remembered whatever comes of it


@final
@dataclass(frozen=True)
class Guard(Defense):
    """Compares every received model, all layers of it, with the last one that this client trained on.

    Thresholds come from the client's own benign rounds, so that a benign round is taken for an attack with the chance
    `false_alarms`. On alarm the client trains on the last accepted model ("repair": what it sends then tells nothing of
    the planted one) or not at all ("refuse"). A person who knows why a model jumped names its round in `accept`.

    What moved slowly is found by what it is: every model, the first one too, is tried on a few of the client's own
    samples, whether neurons single them out, and its rows are compared with each other and with the first accepted
    model's. A first model has nothing to be repaired with, so a bad one is refused. How many rounds a server says have
    passed excuses a longer way, and nothing of what is found in the model; without `examine` it excuses nothing.
    """

    name: ClassVar[str] = "guard"
    title: ClassVar[str] = "Refuse models that honest training does not make"
    paper: ClassVar[str] = "fedspill, after 004"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"false_alarms": 0.01},)

    false_alarms: float = 0.01  # chance per benign round
    on_alarm: Literal["repair", "refuse"] = "repair"
    accept: tuple[int, ...] = ()  # rounds whose model is accepted without a question
    examine: bool = True  # look for plants in the model itself, not only in how it moved

    def __post_init__(self) -> None:
        if not 0 < self.false_alarms < 1:
            raise UsageError(f"false_alarms is a chance between 0 and 1, got {self.false_alarms}.")

    def incoming(self, message: Message, previous: Message | None, client: ClientContext) -> Verdict:
        kept = _fitting(client.memory.get("guard"), message)
        bad = _serves_an_attack(client) if kept is None else ""  # the client's own code: looked at until a round counts
        if bad:
            return Verdict("refuse", bad)
        fault = "" if previous is None else _differs(message, previous)
        if fault:
            return Verdict("refuse", fault)
        if not _is_sound(message):
            return Verdict("refuse", "it has NaN, infinite or too large values")
        first = {} if previous is None else _kept_as(_FIRST, client.memory)
        looked = {} if previous is None else _kept_as(_LOOKED, client.memory)
        lately = previous is not None and message.round - previous.round <= LATELY
        seen = self._examined(message, client, first, looked, lately=lately)
        plant = "" if message.round in self.accept else seen.plant
        if previous is None:  # a client that lost its last model begins anew: what it remembers may be of another one
            memory = {**_kept_by(_FIRST, seen.first), **_kept_by(_LOOKED, seen.looked), **seen.kept}
            return Verdict("refuse", _with_remedy(plant, message)) if plant else Verdict("accept", memory=memory)
        if plant:
            return replace(self._alarm(message, previous, plant), memory={**client.memory, **seen.kept})
        history, usual = (History.empty(), None) if kept is None else recalled(kept)
        passed = max(message.round - previous.round, 1) if self.examine else 1
        reading = read_change(previous.tensors, message.tensors, usual, passed)
        if reading.unsound:
            return Verdict("refuse", f"{reading.unsound} has NaN, infinite or too large values")
        strange = "" if ordinary(reading.values) else _strange(reading.values, bounds(history, self.false_alarms))
        if strange and message.round not in self.accept:
            return self._alarm(message, previous, strange)
        if not reading.moved:
            return ACCEPT  # the same model once more: nothing to learn from
        top = reading.stand if strange else reading.layers.first  # a person vouches for a new start
        vouched = bool(strange or seen.plant)  # by whoever wrote the round into `accept`
        known = first if seen.least is None else {**first, _READABLE: seen.least}
        memory = {
            **_kept_by(_FIRST, seen.first if vouched or not first else known),
            **_kept_by(_LOOKED, seen.looked),
            **seen.kept,
            "guard": _written(history.after(reading.values), reading, usual, top),
        }
        return Verdict("accept", memory=memory)

    def _examined(
        self,
        message: Message,
        client: ClientContext,
        first: Mapping[str, Tensor],
        looked: Mapping[str, Tensor],
        *,
        lately: bool,
    ) -> _Examined:
        """What a model shows, whatever brought it there; what is remembered of a first one, and of the last tried out.

        A model that is where the last one was that was tried out is not tried again: it shows the same.
        """
        if not self.examine:
            return _Examined({}, {}, "")
        sketches = sketched(message.tensors)
        rows = {name: sketches[name] for name in sketches if is_wide(message.tensors[name])}
        before = {_REHEARSED: client.memory[_REHEARSED]} if first and _REHEARSED in client.memory else {}
        where = {name: seen for name, seen in looked.items() if name != _READABLE}
        if looked and not stirred(sketches, where):
            return _Examined(rows, looked, "", kept=before)
        looks = looks_of(message.tensors, client)
        # Long training leaves nothing of how a narrow layer began; what rows were replaced for is seen on samples.
        compared = {name: sketches[name] for name in sketches if has_rows(message.tensors[name])}
        alike = likeness_words(look_at_rows(compared, {} if looks else first, message.tensors))
        if not looks:
            return _Examined(rows, {}, alike)
        rehearsal = _Rehearsal(client, before)
        fresh = None if first else readable_by(fresh_looks(client))
        least = first.get(_READABLE)
        redrawn = partial(redrawn_readable, message.tensors, client)
        last = looked.get(_READABLE) if lately else None
        plant = alike or plant_words(looks, least, fresh, redrawn, rehearsal.shown, last)
        shown = {_READABLE: readable_by(looks)}
        return _Examined({**rows, **shown}, {**sketches, **shown}, plant, least_readable(looks, least), rehearsal.kept)

    def _alarm(self, message: Message, previous: Message, why: str) -> Verdict:
        why = _with_remedy(why, message)
        if self.on_alarm == "refuse":
            return Verdict("refuse", why)
        return Verdict("repair", why, replace(previous, receiver=message.receiver))


@final
class _Rehearsal:
    """Held when it is asked for, and not again as long as it is remembered."""

    def __init__(self, client: ClientContext, kept: Mapping[str, Tensor]) -> None:
        self.client, self.kept = client, kept

    def shown(self) -> Rehearsed | None:
        if _REHEARSED not in self.kept:
            found = rehearsed(self.client)
            self.kept = {} if found is None else {_REHEARSED: found.kept()}
        return Rehearsed.recalled(self.kept[_REHEARSED]) if self.kept else None


def _with_remedy(why: str, message: Message) -> str:
    return f"{why}. To accept the model of this round, add {message.round} to the guard's `accept`"


def _kept_by(prefix: str, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in seen.items()}


def _kept_as(prefix: str, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): seen for name, seen in memory.items() if name.startswith(prefix)}


def _is_sound(message: Message) -> bool:
    numbers = [tensor for tensor in message.tensors.values() if tensor.is_floating_point()]
    # A sum is finite only if all of its numbers are; where it is not, it may have been too large.
    return all(bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all()) for tensor in numbers)


def _serves_an_attack(client: ClientContext) -> str:
    """Names an activation whose gradient has two signs, which training has no use for."""
    if client.architecture is None:
        return ""
    bad = [m for m in client.architecture().modules() if isinstance(m, nn.ELU) and m.alpha < 0]
    return f"the network has ELU with alpha {bad[0].alpha:g}, which only serves to tell attributes" if bad else ""


def _differs(message: Message, previous: Message) -> str:
    """What about the model's form is not as it was."""
    if message.tensors.keys() != previous.tensors.keys():
        return "its tensors have other names than before"
    for name, tensor in message.tensors.items():
        if tensor.shape != previous.tensors[name].shape:
            return f"{name} has another shape than before"
    return ""


def _strange(values: Sequence[float], limits: Sequence[float]) -> str:
    """Which statistics are above their bounds."""
    found = [
        f"{name} is {value:.1f}, at most {limit:.1f} is usual"
        for name, value, limit in zip(NAMES, values, limits, strict=True)
        if value > limit
    ]
    return "; ".join(found)


def _written(history: History, reading: ChangeStatistics, usual: UsualLayers | None, first: Sequence[float]) -> Tensor:
    """What is remembered, as one row of numbers: the history, and what the layers are like.

    Their usual steps follow the new ones slowly, so that a server needs many rounds to talk the guard into larger ones;
    and a layer that hardly moved for once may move again.
    """
    now = reading.layers
    steps = list(now.steps)
    if usual is not None:
        steps = [_followed(u, step) for step, u in zip(steps, usual.steps, strict=True)]
    kept = [*history.rounds, *history.mean, *history.squares, *steps, *now.tops, *first]
    return torch.from_numpy(np.array(kept))


def _followed(usual: float, step: float) -> float:
    return usual + (_RISING if step > usual else _FALLING) * max(step - usual, _SLOWER)


def _fitting(kept: Tensor | None, message: Message) -> Tensor | None:
    """What is remembered, where it is of a model with these layers and of this version; else the client begins anew."""
    if kept is None or len(kept) != 3 * (len(NAMES) + len(layers_of(message.tensors))):
        return None
    return kept


def recalled(kept: Tensor) -> tuple[History, UsualLayers]:
    """What `_written` wrote."""
    numbers, n = kept.tolist(), len(NAMES)
    layers = numbers[3 * n :]
    many = len(layers) // 3
    history = History(numbers[:n], numbers[n : 2 * n], numbers[2 * n : 3 * n])
    return history, UsualLayers(layers[:many], layers[many : 2 * many], layers[2 * many :])
