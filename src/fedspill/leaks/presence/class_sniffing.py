"""Class Sniffing: whether any client of a round owns a label, from consecutive global models (paper 002)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.presence.leak import PRESENCE
from fedspill.leaks.quantity.quantity_inference import QuantityInference
from fedspill.observe.local_changes import read_known_federation
from fedspill.observe.round_sums import WATCHER_NEEDS, LabelsPerClient, Rehearsal, RoundSum, read_round_sums
from fedspill.trace import View

OWNED = 0.5  # clients above which a label counts as owned by one


@final
@dataclass(frozen=True)
class ClassSniffing(Attack):
    """Says of each label whether it took part in a round.

    `solver` "paper" is Algorithm 1: the label's mean input weight must rise above what clients without it would have
    done to it. The threshold is for the sum of clients (its factor N_p P fits nothing else), reduced to a scalar by the
    mean over weights; "approximately close" is `tolerance`, the share of the threshold by which it must be exceeded.
    "count" (ours) is Quantity Inference above one half. "sign" (ours) is a theorem where the last layer's inputs are
    not negative and there is no weight decay: a label that no client has cannot raise any weight, so a rise proves
    that somebody, if only with one sample, has it. The converse does not hold in a sum: many clients without the label
    can hide the rise of one, and "sign" then says absent.
    """

    name: ClassVar[str] = "class-sniffing"
    title: ClassVar[str] = "Which labels took part in a round"
    paper: ClassVar[str] = "002"
    needs = WATCHER_NEEDS
    leak = PRESENCE

    solver: Literal["count", "sign", "paper"] = "count"
    tolerance: float = 0.0  # paper
    rehearsals: int = 60  # count

    def run(self, view: View, rng: torch.Generator) -> Presence:
        federation = read_known_federation(view)
        labels = LabelsPerClient.known_to(view, federation.classes)
        rehearsal = Rehearsal.known_to(view, federation, labels)
        rounds, notes = read_round_sums(view, federation)
        present = torch.stack([self._sniff(one, rehearsal, labels, rng) for one in rounds])
        return Presence([one.of for one in rounds], present, view.me, notes)

    def _sniff(self, one: RoundSum, rehearsal: Rehearsal, labels: LabelsPerClient, rng: torch.Generator) -> Tensor:
        if self.solver == "sign":
            return (one.summed[:, :-1] > 0).any(1)
        if self.solver == "count":
            return QuantityInference(rehearsals=self.rehearsals).count(one, rehearsal, labels, rng)[0] > OWNED
        classes = rehearsal.federation.classes
        singles = torch.stack([rehearsal.update(one.before, torch.tensor([c]), rng)[:, :-1] for c in range(classes)])
        return published_presence(singles, one.summed[:, :-1], one.clients * labels.mean, self.tolerance)


def published_presence(singles: Tensor, summed: Tensor, owners: float, tolerance: float) -> Tensor:
    """(classes,) bool, Algorithm 1; singles (classes, outputs, features), summed (outputs, features).

    owners: clients times labels per client, how many single-label trainings the round is worth.
    """
    mean = singles.mean(2)  # (trained label, row)
    others = (mean.sum(0) - mean.diagonal()) / (len(mean) - 1)
    threshold = owners * others
    return summed.mean(1) > threshold + tolerance * threshold.abs()
