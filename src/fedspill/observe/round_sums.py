"""What a curious client, the watcher, sees of the others: a round's sum, as the step from one model to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.messages import AGGREGATOR
from fedspill.observe.lazy_tensors import differences
from fedspill.observe.local_changes import KnownFederation
from fedspill.observe.path_bases import last_layer_matrix
from fedspill.observe.rehearsal import known_local_training, rehearsed_head_changes
from fedspill.threat import Needs, needs
from fedspill.trace import Origin, View
from fedspill.training import LocalTraining

# What the watcher must know: how all clients train, and a little data of its own.
WATCHER_NEEDS: Needs = needs(
    sees=["model"],
    knows=[
        "architecture", "aux_data", "batch_size", "client_count", "labels_per_client", "local_epochs", "local_lr",
        "optimizer",
    ],
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RoundSum:
    """One round as its participants see it, the watcher's own part taken out."""

    of: Origin
    before: Mapping[str, Tensor]
    change: Mapping[str, Tensor]  # of the whole model, the mean over clients
    summed: Tensor  # (outputs, features + 1) the last layer's change, summed over the other clients
    clients: int  # how many others


def read_round_sums(view: View, federation: KnownFederation) -> tuple[list[RoundSum], list[str]]:
    """Every round whose model and whose following model were both received, and a note for each that is left out."""
    clients = view.knows("client_count")
    if type(clients) is not int or clients < 1:
        raise NotApplicable(f"Expected a number of clients per round, the trace says {clients!r}.")
    models = {message.round: message.tensors for message in view.get("model")}
    own = {message.round: message.tensors for message in _own_updates(view)}
    found, notes = [], []
    for number in sorted(set(models) & {later - 1 for later in models}):
        before, after = models[number], models[number + 1]
        try:
            summed = clients * (_last_layer(after, federation) - _last_layer(before, federation))
            others = clients - (number in own)
            summed = summed - _last_layer(own[number], federation) if number in own else summed
        except NotApplicable as error:
            notes.append(f"round {number} was left out: {error}")
            continue
        if others == 0 or not bool(torch.isfinite(summed).all()):
            notes.append(f"round {number} was left out: {'nobody else took part' if others == 0 else 'not finite'}")
            continue
        change = differences(after, before, [name for name in before if before[name].is_floating_point()])
        found.append(RoundSum(Origin(number, AGGREGATOR), before, change, summed, others))
    if not found:
        raise NotApplicable(f"No two consecutive models can be compared. {'; '.join(notes[:3])}".strip())
    return found, notes


def _own_updates(view: View) -> list:  # type: ignore[type-arg]
    """The updates that the watcher itself sent."""
    if view.me is None or not view.sees("update"):
        return []
    return [message for message in view.get("update") if message.sender == view.me]


def _last_layer(tensors: Mapping[str, Tensor], federation: KnownFederation) -> Tensor:
    """(outputs, features + 1), checked against the architecture's last layer."""
    layer = federation.model.get_parameter(federation.head)
    bias = None if federation.bias is None else federation.model.get_parameter(federation.bias)
    for name, wanted in ((federation.head, layer), (federation.bias, bias)):
        if name is not None and wanted is not None and (name not in tensors or tensors[name].shape != wanted.shape):
            raise NotApplicable(f"a message does not hold the last layer ({name})")
    return last_layer_matrix(tensors, federation.head, federation.bias)


@dataclass(frozen=True)
class LabelsPerClient:
    """How many labels a client holds: the mean, and the range where it is known."""

    low: int
    high: int
    mean: float

    @staticmethod
    def known_to(view: View, classes: int) -> LabelsPerClient:
        """From the knowledge word "labels_per_client", a number or a pair (low, high)."""
        known = view.knows("labels_per_client")
        try:
            low, high = (float(known), float(known)) if isinstance(known, int | float) else map(float, known)
        except (TypeError, ValueError):
            raise NotApplicable(f"Expected a number of labels per client or a pair, got {known!r}.") from None
        if not 0 < low <= high <= classes:
            raise NotApplicable(f"Expected 1 to {classes} labels per client, got {known!r}.")
        # A single number is a mean: single clients may hold one label less or more.
        spread = 1 if low == high and low not in (1, classes) else 0
        return LabelsPerClient(max(1, int(low) - spread), min(classes, -int(-high // 1) + spread), (low + high) / 2)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Local training that the watcher does itself on auxiliary data, as a client would."""

    federation: KnownFederation
    training: LocalTraining
    per_label: int

    @staticmethod
    def known_to(view: View, federation: KnownFederation, labels: LabelsPerClient) -> Rehearsal:
        """Samples per label from the knowledge word "samples", else all auxiliary samples of a label."""
        training = known_local_training(view, federation.lr)
        auxiliary = int(torch.bincount(federation.auxiliary.y).min())
        per_label = max(1, round(view.knows("samples") / labels.mean)) if view.has("samples") else auxiliary
        return Rehearsal(federation, training, per_label)

    def update(self, before: Mapping[str, Tensor], labels: Tensor, rng: torch.Generator) -> Tensor:
        """(outputs, features + 1) the last layer's change after local training on `per_label` samples of each label."""
        held = self.federation.auxiliary.y
        chosen = torch.cat([self._draw(torch.nonzero(held == label).flatten(), rng) for label in labels])
        return rehearsed_head_changes(self.federation, self.training, before, [chosen], rng)[0]

    def _draw(self, pool: Tensor, rng: torch.Generator) -> Tensor:
        """Without replacement while there are enough, so that an attacker with much data uses all of it."""
        if self.per_label <= len(pool):
            return pool[torch.randperm(len(pool), generator=rng)[: self.per_label]]
        return pool[torch.randint(len(pool), (self.per_label,), generator=rng)]
