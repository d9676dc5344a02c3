"""Whole Determination: which labels the whole federation has much of and which little, from its models (paper 002)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable, UsageError
from fedspill.leaks.groups.guess import Groups
from fedspill.leaks.groups.leak import GROUPS
from fedspill.messages import SERVER
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.observe.local_changes import KnownFederation, read_known_federation
from fedspill.observe.path_bases import HeadProbe, last_layer_matrix, load_between, path_bases, probe_head
from fedspill.observe.path_products import whitened_products
from fedspill.observe.round_sums import WATCHER_NEEDS, LabelsPerClient, Rehearsal, RoundSum, read_round_sums
from fedspill.observe.simplex import cone_fit
from fedspill.trace import Origin, View

SIGMAS = 3.0  # a gap between neighbouring labels is real when it is this many times its standard error
LEAST_FACTOR = 1.5  # and when it is at least this factor
RIDGE = 0.001


@final
@dataclass(frozen=True)
class WholeDetermination(Attack):
    """Orders labels by how much of them the federation holds and cuts the order where it jumps.

    `solver` "paper": for each label the vector of ratios |W_p| / |W_n| over the other labels, grouped into `groups` by
    hierarchical clustering (Ward); the paper states neither linkage nor cut nor how the number of groups is found. In a
    real federation it does not do what is printed, see papers/002.
    "path" (ours): every step from one model to the next is decomposed into classes as Decaf does with one client, and
    the rounds are joined by how well they are explained. "prior" (ours) needs the last model only: it finds the class
    prior under which the model's answers on balanced auxiliary data would be balanced (EM). With both, a gap in the
    order is a border only if it exceeds its standard error, between rounds or between halves of the auxiliary data;
    where there is no such gap the answer is "cannot tell". Told of a frozen head, "path" falls back on "prior"; told of
    smoothed labels, it smooths its own.
    """

    name: ClassVar[str] = "whole-determination"
    title: ClassVar[str] = "Which labels the federation has much or little of"
    paper: ClassVar[str] = "002"
    needs = WATCHER_NEEDS
    leak = GROUPS

    solver: Literal["path", "prior", "paper"] = "path"
    groups: int | None = None  # None: chosen by the data; the paper's solver takes 3

    def __post_init__(self) -> None:
        if self.groups is not None and self.groups < 2:
            raise UsageError(f"Expected at least 2 groups, got {self.groups}.")

    def run(self, view: View, rng: torch.Generator) -> Groups:
        federation = read_known_federation(view)
        labels = LabelsPerClient.known_to(view, federation.classes)
        rehearsal = Rehearsal.known_to(view, federation, labels)
        rounds, notes = read_round_sums(view, federation)
        last = max(view.get("model"), key=lambda message: message.round)
        of = [Origin(last.round, SERVER)]
        if self.solver == "paper":
            singles = [rehearsal.update(last.tensors, torch.tensor([c]), rng) for c in range(federation.classes)]
            vectors = ratio_vectors(torch.stack(singles)[:, :, :-1])
            if not bool(torch.isfinite(vectors).all()):
                raise NotApplicable("Training on auxiliary data diverges at these settings.")
            amount = -vectors.mean(1)
            group = clustered(vectors, amount, self.groups or 3)
            return Groups(of, group[None], amount[None], torch.tensor([True]), notes)
        wire = KnownDefenses.known_to(view)
        still = wire is not None and wire.effect.no_last_layer  # a last layer that never moves has no path
        if self.solver == "path" and not still:
            logs, errors = path_amounts(rounds, federation, 0.0 if wire is None else wire.effect.smoothed)
        else:
            load_between(federation.model, last.tensors, {}, 0.0)
            logs, errors = prior_amounts(federation)
        group = cut(logs, errors) if self.groups is None else clustered(logs[:, None], logs, self.groups)
        told = bool(group.max() > 0)
        notes += [] if told else ["cannot tell: no gap between neighbouring labels exceeds its standard error"]
        return Groups(of, group[None], logs[None], torch.tensor([told]), notes)


def ratio_vectors(singles: Tensor) -> Tensor:
    """(classes, classes - 1) |W_p| / |W_n| of each label against each other one; singles (classes, outputs, features).

    A set of weights is measured by its mean absolute change.
    """
    size = singles.abs().mean(2)  # (trained label, row)
    rows = []
    for label in range(len(size)):
        others = torch.cat([size[:label, label], size[label + 1 :, label]])
        rows.append(size[label, label] / others.clamp_min(1e-12))
    return torch.stack(rows)


def clustered(vectors: Tensor, amount: Tensor, groups: int) -> Tensor:
    """(classes,) hierarchical clusters of vectors (classes, d), numbered from the largest mean amount (classes,)."""
    found = AgglomerativeClustering(min(groups, len(vectors))).fit_predict(vectors.numpy())
    means = [float(amount[torch.from_numpy(found == k)].mean()) for k in range(found.max() + 1)]
    return torch.from_numpy(np.argsort(np.argsort([-m for m in means]))[found]).long()


def path_amounts(rounds: list[RoundSum], federation: KnownFederation, smoothed: float = 0.0) -> tuple[Tensor, Tensor]:
    """(classes,) log share of each label in the rounds seen, and its standard error, by jackknife over rounds.

    smoothed: the share of every target that clients are known to spread over all classes.
    """
    shares, weights = [], []
    even = torch.full((federation.classes,), 1 / federation.classes, dtype=torch.float64)
    for one in rounds:
        bases = path_bases(
            federation.model,
            one.before,
            one.change,
            federation.head,
            federation.auxiliary,
            federation.classes,
            points=3,
        )
        moved = last_layer_matrix(
            one.change, federation.head, federation.bias
        )  # the watcher's own part belongs to the whole
        gradients = bases.gradients + smoothed * _spread_targets(bases.middle, federation.classes)
        columns = torch.cat([gradients, -moved[None]])
        factors, agreement = cone_fit(whitened_products(columns, bases.middle, even, RIDGE))
        agreement = min(max(agreement, 1e-3), 0.999)
        if float(factors.sum()) > 0:
            shares.append(factors / factors.sum())
            weights.append((agreement**2 / (1 - agreement**2)) ** 2)
    if not shares:
        raise NotApplicable("No round can be decomposed into classes.")
    table, weight = torch.stack(shares), torch.tensor(weights, dtype=torch.float64)[:, None]
    mean = (weight * table).sum(0) / weight.sum()
    logs = mean.clamp_min(1e-3).log()
    if len(table) < 2:
        return logs, torch.full_like(logs, 0.3)
    without = ((weight * table).sum(0) - weight * table) / (weight.sum() - weight)
    deviation = without.clamp_min(1e-3).log() - logs
    return logs, ((len(table) - 1) / len(table) * (deviation**2).sum(0)).sqrt()


def _spread_targets(probe: HeadProbe, classes: int) -> Tensor:
    """(classes, outputs, features + 1) what smoothing a whole target adds to the mean gradient of each class."""
    own = torch.nn.functional.one_hot(probe.labels, classes).double()
    return HeadProbe(probe.features, own - 1 / classes, probe.labels).class_gradients(classes)


def prior_amounts(federation: KnownFederation) -> tuple[Tensor, Tensor]:
    """(classes,) log of the prior that the loaded model implies, and its standard error from halves of the samples."""
    probe = probe_head(federation.model, federation.head, federation.auxiliary)
    answers = probe.errors.clone()
    answers[torch.arange(len(answers)), probe.labels] += 1
    halves = [implied_prior(answers[start::2], probe.labels[start::2]).log() for start in (0, 1)]
    return implied_prior(answers, probe.labels).log(), (halves[0] - halves[1]).abs().mean().expand(
        federation.classes
    ) / 2


def implied_prior(answers: Tensor, labels: Tensor, steps: int = 200) -> Tensor:
    """(classes,) the prior that, divided out of the answers (n, classes), makes them balanced on balanced samples.

    Expectation-maximisation for shifted priors (Saerens et al. 2002), run backwards.
    """
    classes = answers.shape[1]
    share = torch.bincount(labels, minlength=classes).double().clamp_min(1) / len(labels)
    prior = torch.full((classes,), 1 / classes, dtype=torch.float64)
    for _ in range(steps):
        balanced = answers / prior * share
        balanced = balanced / balanced.sum(1, keepdim=True).clamp_min(1e-300)
        prior = (prior * balanced.mean(0) / share).clamp_min(1e-6)
        prior = prior / prior.sum()
    return prior


def cut(logs: Tensor, errors: Tensor) -> Tensor:
    """(classes,) groups of logs (classes,), borders where neighbours differ by more than chance; 0 the largest."""
    order = logs.argsort(descending=True)
    values, spread = logs[order], errors[order]
    noise = (spread[:-1] ** 2 + spread[1:] ** 2).sqrt()
    gap = values[:-1] - values[1:]
    border = (gap > SIGMAS * noise) & (gap > np.log(LEAST_FACTOR))
    number = torch.cat([torch.zeros(1, dtype=torch.int64), border.long().cumsum(0)])
    return torch.empty_like(number).scatter_(0, order, number)
