"""Quantity Inference: how many clients of a round own each label, from consecutive global models (paper 002)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable, UsageError
from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.leak import QUANTITY
from fedspill.observe.local_changes import KnownFederation, read_known_federation
from fedspill.observe.path_bases import load_between, probe_head
from fedspill.observe.round_sums import WATCHER_NEEDS, LabelsPerClient, Rehearsal, RoundSum, read_round_sums
from fedspill.observe.simplex import cone_fit
from fedspill.trace import View

# Single-label trainings add up while the model is wrong on most auxiliary data, if they explain the sum this well.
UNTRAINED = 0.4
EXPLAINED = 0.985
RIDGE = 0.1  # of the regression, over the mean variance of the rehearsals


@final
@dataclass(frozen=True)
class QuantityInference(Attack):
    """Compares what a round added to the model with what trainings on auxiliary data add.

    `solver` "paper" is Algorithm 2: for each label, on each input weight, Equation 5, outliers removed, the mean. Its
    G_{t+1} is read as the round's update and N_L as labels per client, the only readings under which Equation 4 adds
    up; `filters` and `abort_spread` are the outlier rule and the abort rule, whose limit the paper does not state.
    "nnls" (ours) fits all labels jointly on single-label trainings. It is exact while the model is untrained, when
    trainings superpose. "regression" (ours) rehearses whole clients with random label sets and regresses ownership
    on the update; since the prediction is linear, it holds for the sum of all clients as for one. "auto" takes the
    first while the model is wrong on most auxiliary samples and the fit explains nearly all of the sum, else the
    second. With few auxiliary samples per label the regression knows its own samples better than the clients': its
    error shrinks with more of them.
    """

    name: ClassVar[str] = "quantity-inference"
    title: ClassVar[str] = "How many clients of a round own each label"
    paper: ClassVar[str] = "002"
    needs = WATCHER_NEEDS
    leak = QUANTITY

    solver: Literal["auto", "nnls", "regression", "paper"] = "auto"
    rehearsals: int = 60
    ratio: float = 0.5  # paper: Th_R
    filters: bool = True  # paper
    abort_spread: float | None = None  # paper: standard deviation of the x_i above which it aborts

    def __post_init__(self) -> None:
        if self.rehearsals < 2 or self.ratio <= 0:
            raise UsageError(f"Expected rehearsals >= 2 and ratio > 0, got {self.rehearsals} and {self.ratio}.")

    def run(self, view: View, rng: torch.Generator) -> ClassQuantities:
        federation = read_known_federation(view)
        labels = LabelsPerClient.known_to(view, federation.classes)
        rehearsal = Rehearsal.known_to(view, federation, labels)
        rounds, notes = read_round_sums(view, federation)
        found, routes = [], []
        for one in rounds:
            clients, route = self.count(one, rehearsal, labels, rng)
            found.append(clients)
            routes.append(route)
        notes += [f"{routes.count(route)} of {len(routes)} rounds by {route}" for route in dict.fromkeys(routes)]
        return ClassQuantities([one.of for one in rounds], torch.stack(found), view.me, notes)

    def count(
        self, one: RoundSum, rehearsal: Rehearsal, labels: LabelsPerClient, rng: torch.Generator
    ) -> tuple[Tensor, str]:
        """(classes,) clients that own each label, and the route taken."""
        classes = rehearsal.federation.classes
        if self.solver != "regression":
            singles = torch.stack([rehearsal.update(one.before, torch.tensor([c]), rng) for c in range(classes)])
            if not bool(torch.isfinite(singles).all()):
                raise NotApplicable("Training on auxiliary data diverges at these settings.")
            if self.solver == "paper":
                return self._published(one, singles, labels), "Algorithm 2"
            clients, agreement = joint_counts(singles, one.summed, one.clients, labels.mean)
            untrained = agreement >= EXPLAINED and accuracy_at(one, rehearsal.federation) < UNTRAINED
            if self.solver == "nnls" or untrained:
                return clients, "joint fit of single-label trainings"
        owned, updates = rehearsed(one, rehearsal, labels, self.rehearsals, rng)
        return regressed_counts(owned, updates, one.summed, one.clients), "regression on rehearsed clients"

    def _published(self, one: RoundSum, singles: Tensor, labels: LabelsPerClient) -> Tensor:
        spread = self.abort_spread if self.abort_spread is not None else float("inf")
        return published_counts(
            singles[:, :, :-1], one.summed[:, :-1], one.clients, labels.mean, self.ratio, self.filters, spread
        )


def accuracy_at(one: RoundSum, federation: KnownFederation) -> float:
    """Share of the auxiliary samples that the round's first model classifies right: what the watcher can observe."""
    load_between(federation.model, one.before, {}, 0.0)
    probe = probe_head(federation.model, federation.head, federation.auxiliary)
    answers = probe.errors.clone()
    answers[torch.arange(len(answers)), probe.labels] += 1
    return float((answers.argmax(1) == probe.labels).double().mean())


def published_counts(
    singles: Tensor, summed: Tensor, clients: int, labels: float, ratio: float, filters: bool, spread: float
) -> Tensor:
    """(classes,) Algorithm 2; singles (classes, outputs, features), summed (outputs, features). NaN where it aborts."""
    counts = []
    for label in range(len(singles)):
        rise = singles[label, label]  # w_p
        fall = torch.cat([singles[:label, label], singles[label + 1 :, label]]).mean(0)  # w_n
        number = (summed[label] - clients * labels * fall) / (rise - fall)
        kept = torch.isfinite(number)
        if filters:
            kept &= (fall.abs() <= ratio * rise.abs()) & (number >= 0) & (number <= clients)
        chosen = number[kept]
        aborts = len(chosen) == 0 or (len(chosen) > 1 and float(chosen.std()) > spread)
        counts.append(torch.tensor(torch.nan) if aborts else chosen.mean().clamp_min(0))
    return torch.stack([count.double() for count in counts])


def joint_counts(singles: Tensor, summed: Tensor, clients: int, labels: float) -> tuple[Tensor, float]:
    """(classes,) clients per label, scaled to clients times labels in all, and how well they explain the sum.

    singles (classes, outputs, features + 1), summed (outputs, features + 1).
    """
    columns = torch.cat([singles, summed[None]]).flatten(1)
    factors, agreement = cone_fit(columns @ columns.T)
    total = float(factors.sum())
    counts = (
        factors * (clients * labels / total) if total > 0 else torch.full_like(factors, clients * labels / len(factors))
    )
    return counts.clamp(0, clients), agreement


def rehearsed(
    one: RoundSum, rehearsal: Rehearsal, labels: LabelsPerClient, number: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Ownership (number, classes) of made-up clients and what each of them would send (number, outputs, features + 1).

    Label sets are dealt out from shuffled decks, so that every label is owned about equally often.
    """
    classes = rehearsal.federation.classes
    owned, deck = torch.zeros(number, classes, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    updates = []
    for index in range(number):
        size = int(torch.randint(labels.low, labels.high + 1, (1,), generator=rng))
        chosen: list[int] = []
        while len(chosen) < size:
            if len(deck) == 0:
                deck = torch.randperm(classes, generator=rng)
            label, deck = int(deck[0]), deck[1:]
            chosen += [] if label in chosen else [label]
        owned[index, chosen] = 1
        updates.append(rehearsal.update(one.before, torch.tensor(chosen), rng))
    return owned, torch.stack(updates)


def regressed_counts(owned: Tensor, updates: Tensor, summed: Tensor, clients: int) -> Tensor:
    """(classes,) ridge regression of ownership on the update, applied to the sum of `clients` updates.

    owned (k, classes), updates (k, outputs, features + 1), summed (outputs, features + 1). Solved among the k
    rehearsals, which are far fewer than the weights.
    """
    flat = updates.flatten(1)
    share, mean = owned.mean(0), flat.mean(0)
    deviation = flat - mean
    gram = deviation @ deviation.T
    floor = RIDGE * float(gram.trace()) / len(gram)
    if not 0 < floor < float("inf"):
        return (clients * share).clamp(0, clients)
    inner = deviation @ (summed.flatten() - clients * mean)
    weights = torch.linalg.solve(gram + floor * torch.eye(len(gram), dtype=gram.dtype), inner)
    counts: Tensor = clients * share + weights @ (owned - share)
    return counts.clamp(0, clients)
