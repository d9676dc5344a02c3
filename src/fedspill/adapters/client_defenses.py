"""Defenses inside a running client: which of them can act there, what they say of a model, what leaves in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import ClientContext, Defense
from fedspill.errors import UsageError
from fedspill.messages import Message
from fedspill.training import LocalTraining


@dataclass(frozen=True, eq=False)
class Inspected:
    """What the defenses say of a model that arrived."""

    model: Message | None  # to train on, repaired or not; None: refused
    findings: str
    notes: Mapping[int, Mapping[str, Tensor]]  # what the defense at each place of the list asked to be remembered


def refuse_unable(defenses: Sequence[Defense], adapter: str, secure_aggregation: str) -> None:
    """Raises UsageError for defenses that do not act on messages, which is all that an adapter can reach."""
    if not defenses:
        raise UsageError(f"{adapter} needs at least one defense.", remedy="Defenses: fedspill list defenses.")
    unchanged = LocalTraining()
    for defense in defenses:
        if defense.local(unchanged) is not unchanged:
            raise UsageError(
                f"{defense.name} changes how a client trains, which a {adapter} cannot do.",
                remedy="Use it in your training code, or audit it with a plan.",
            )
        if defense.sums_only or type(defense).data is not Defense.data:
            raise UsageError(
                f"{defense.name} does not act on messages, so a {adapter} of it would do nothing.",
                remedy=f"For secure aggregation use {secure_aggregation}; audit the others with a plan.",
            )


def compares_models(defenses: Sequence[Defense]) -> bool:
    """Whether any defense looks at incoming models; if none does, the model need not be kept for the next round."""
    return any(type(defense).incoming is not Defense.incoming for defense in defenses)


def inspect(
    defenses: Sequence[Defense],
    model: Message,
    previous: Message | None,
    notes_of: Callable[[int], Mapping[str, Tensor]],
    architecture: Callable[[], nn.Module] | None = None,
    own: Examples | None = None,
) -> Inspected:
    """The model as each defense sees it, repaired by those before it."""
    findings: list[str] = []
    notes: dict[int, Mapping[str, Tensor]] = {}
    for place, defense in enumerate(defenses):
        verdict = defense.incoming(model, previous, ClientContext(notes_of(place), architecture, own))
        if verdict.memory is not None:
            notes[place] = verdict.memory
        if verdict.action == "refuse":
            return Inspected(None, f"{defense.name} refused the model: {verdict.why}", notes)
        if verdict.action == "repair":
            findings.append(f"{defense.name} repaired the model: {verdict.why}")
            model = verdict.model or model
    return Inspected(model, "; ".join(findings), notes)


def defended(defenses: Sequence[Defense], update: Message, rng: Callable[[Defense], torch.Generator]) -> Message:
    """The update as it may leave; the same object where no defense changed it."""
    for defense in defenses:
        update = defense.outgoing(update, rng(defense))
    return update
