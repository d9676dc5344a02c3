"""The client's guard: a model that moved as no training moves it is not trained on (against the attacks of 004)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from fedspill.defenses.base import ACCEPT, Defense, Site, Verdict
from fedspill.defenses.watch.statistics import NAMES, read_change
from fedspill.defenses.watch.thresholds import bounds
from fedspill.errors import UsageError
from fedspill.messages import Message

_KEPT = 64  # rounds of history
_SLOWER = 0.1  # of the last step: a layer that hardly moved once may move again


@final
@dataclass(frozen=True)
class Guard(Defense):
    """Compares every received model, all layers of it, with the last one that this client trained on.

    Thresholds come from the client's own benign rounds, so that a benign round is taken for an attack with the chance
    `false_alarms`. On alarm the client trains on the last accepted model ("repair": what it sends then tells nothing of
    the planted one) or not at all ("refuse"). The first model has nothing to be compared with and is accepted, unless
    its activations only serve an attack. A person who knows why a model jumped names its round in `accept`.
    """

    name: ClassVar[str] = "guard"
    title: ClassVar[str] = "Refuse models that no training makes"
    paper: ClassVar[str] = "fedspill, after 004"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"false_alarms": 0.01},)

    false_alarms: float = 0.01  # chance per benign round
    on_alarm: Literal["repair", "refuse"] = "repair"
    accept: tuple[int, ...] = ()  # rounds whose model is accepted without a question

    def __post_init__(self) -> None:
        if not 0 < self.false_alarms < 1:
            raise UsageError(f"false_alarms is a chance between 0 and 1, got {self.false_alarms}.")

    def incoming(self, message: Message, previous: Message | None, site: Site) -> Verdict:
        bad = _serves_an_attack(site)
        if bad:
            return Verdict("refuse", bad)
        if previous is None:
            return ACCEPT
        fault = _differs(message, previous)
        if fault:
            return Verdict("refuse", fault)
        steps, history = site.memory.get("steps"), site.memory.get("history", torch.zeros(0, len(NAMES)))
        rounds = message.round - previous.round
        reading = read_change(previous.tensors, message.tensors, rounds, steps)
        limits = bounds(history.double(), self.false_alarms)
        strange = (reading.values > limits) | reading.values.isinf()
        if bool(strange.any()) and message.round not in self.accept:
            return self._alarm(message, previous, reading.values, limits, strange)
        if not bool(reading.steps.any()):
            return ACCEPT  # the same model once more: nothing to learn from
        floor = torch.zeros_like(reading.steps) if steps is None else _SLOWER * steps
        memory = {
            "steps": torch.maximum(reading.steps.float(), floor.float()),
            "history": torch.cat([history.float(), reading.values.float()[None]])[-_KEPT:],
        }
        return Verdict("accept", memory=memory)

    def _alarm(self, message: Message, previous: Message, values: Tensor, limits: Tensor, strange: Tensor) -> Verdict:
        found = [
            f"{NAMES[i]} is {float(values[i]):.1f}, at most {float(limits[i]):.1f} is usual"
            for i in strange.nonzero().flatten().tolist()
        ]
        why = f"{'; '.join(found)}. To accept the model of this round, add {message.round} to the guard's `accept`"
        if self.on_alarm == "refuse":
            return Verdict("refuse", why)
        return Verdict("repair", why, replace(previous, receiver=message.receiver))


def _serves_an_attack(site: Site) -> str:
    """Names an activation whose gradient has two signs, which training has no use for."""
    if site.architecture is None:
        return ""
    bad = [m for m in site.architecture().modules() if isinstance(m, nn.ELU) and m.alpha < 0]
    return f"the network has ELU with alpha {bad[0].alpha:g}, which only serves to tell attributes" if bad else ""


def _differs(message: Message, previous: Message) -> str:
    """What about the model's form is not as it was."""
    if message.tensors.keys() != previous.tensors.keys():
        return "its tensors have other names than before"
    for name, tensor in message.tensors.items():
        if tensor.shape != previous.tensors[name].shape:
            return f"{name} has another shape than before"
    floats = {name: tensor for name, tensor in message.tensors.items() if tensor.is_floating_point()}
    sizes = torch.stack(torch._foreach_norm(list(floats.values()))) if floats else torch.zeros(0)
    if not bool(torch.isfinite(sizes).all()):
        return f"{list(floats)[int((~torch.isfinite(sizes)).nonzero()[0])]} has NaN, infinite or too large values"
    return ""
