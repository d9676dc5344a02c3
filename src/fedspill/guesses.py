"""Guesses: what attacks hand over, one class per thing that can be guessed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.trace import Origin


class Guess(ABC):
    """A guess about each of its origins."""

    family: ClassVar[str]  # what leaks: "labels", ...
    headline: ClassVar[str]  # the metric that an audit ranks by
    # A tiny plan whose federation surely leaks what is guessed: the positive control of every attack of this family.
    # With the truth of its origins swapped it is the negative control. Without one nothing of the family is scored.
    control: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    of: Sequence[Origin]
    notes: Sequence[str]  # what the attack assumed and which route it took, for the report

    @abstractmethod
    def check(self) -> None:
        """Raises AttackFailed unless the guess is finite and of the right shape."""


@final
@dataclass(frozen=True, eq=False)
class LabelCounts(Guess):
    """How many samples of each class each origin trained on: counts (origins, classes), whole and not negative."""

    family: ClassVar[str] = "labels"
    headline: ClassVar[str] = "label-asr"
    # One client a round, so that the sum leaks as well as the update; two plain steps of a fresh model.
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "half-quarter-rest", "batch": 16},
        "federation": {"clients": 12, "rounds": 12, "clients_per_round": 1},
        "training": {"lr": 0.01, "batch_size": 8},
    }

    of: Sequence[Origin]
    counts: Tensor
    notes: Sequence[str] = field(default_factory=tuple)
    confidence: Tensor | None = None  # (origins,) the share of labels that the attack expects to have right
    sure: Tensor | None = None  # (origins, classes) probability that a class's count is exact
    routes: tuple[str, ...] = ()  # how each origin was read

    def check(self) -> None:
        if self.counts.ndim != 2 or len(self.counts) != len(self.of):
            raise AttackFailed(f"Expected counts of shape ({len(self.of)}, classes), got {tuple(self.counts.shape)}.")
        if self.counts.dtype != torch.int64 or bool((self.counts < 0).any()):
            raise AttackFailed("Expected whole, non-negative label counts.")
        for stated, shape in ((self.confidence, self.counts.shape[:1]), (self.sure, self.counts.shape)):
            if stated is not None and (stated.shape != shape or not bool(((stated >= 0) & (stated <= 1)).all())):
                raise AttackFailed(f"Expected probabilities of shape {tuple(shape)} as confidence.")


@final
@dataclass(frozen=True, eq=False)
class Proportions(Guess):
    """Which share of each origin's data each class has: shares (origins, classes), rows that add up to 1.

    `null` marks the classes that the attack says are absent. `agreement` is the cosine between what was
    observed and what the guess explains; where it is too small the attack does not answer, and nothing is scored.
    """

    family: ClassVar[str] = "composition"
    headline: ClassVar[str] = "composition-l1"
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "federation": {"clients": 8, "rounds": 1},
        "training": {"lr": 0.02, "batch_size": 16},
        "adversary_data": {"per_class": 20},
    }

    of: Sequence[Origin]
    shares: Tensor
    null: Tensor  # (origins, classes) bool
    agreement: Tensor  # (origins,) from 0 to 1
    answered: Tensor  # (origins,) bool
    notes: Sequence[str] = field(default_factory=tuple)
    unexplained: Tensor | None = None  # (origins,) the share of this origin's own message that the guess leaves open

    def check(self) -> None:
        _check_table(self.shares, self.of, "shares")
        if bool((self.shares < 0).any()) or bool(((self.shares.sum(1) - 1).abs() > 1e-6).any()):
            raise AttackFailed("Expected shares that are not negative and add up to 1.")
        if self.null.dtype != torch.bool or self.null.shape != self.shares.shape:
            raise AttackFailed("Expected a mark for each share whether the class is absent.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")
        if self.agreement.shape != (len(self.of),) or not bool(torch.isfinite(self.agreement).all()):
            raise AttackFailed("Expected a finite agreement for each origin.")


@final
@dataclass(frozen=True, eq=False)
class Presence(Guess):
    """Whether any other client of a round owns a class: present (origins, classes) bool, one origin per round's sum.

    `me` is the guessing client, whose own part was taken out.
    """

    family: ClassVar[str] = "presence"
    headline: ClassVar[str] = "presence-balanced-accuracy"
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "main-labels", "low": 2, "high": 3, "per_label": 20, "minor": 0, "reuse": True},
        "federation": {"clients": 20, "rounds": 12, "clients_per_round": 3, "weighting": "uniform"},
        "training": {"lr": 0.02, "batch_size": 10},
        "adversary_data": {"per_class": 20},
    }

    of: Sequence[Origin]
    present: Tensor
    me: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if self.present.dtype != torch.bool or self.present.ndim != 2 or len(self.present) != len(self.of):
            raise AttackFailed(f"Expected yes or no of shape ({len(self.of)}, classes), got {self.present.shape}.")


@final
@dataclass(frozen=True, eq=False)
class ClassQuantities(Guess):
    """How many other clients of a round own each class: clients (origins, classes), not rounded; NaN where aborted."""

    family: ClassVar[str] = "quantity"
    headline: ClassVar[str] = "quantity-within-one"
    # Ten clients a round: of three, any guess would be within one.
    control: ClassVar[Mapping[str, Any]] = {
        **Presence.control,
        "federation": {"clients": 30, "rounds": 7, "clients_per_round": 10, "weighting": "uniform"},
    }

    of: Sequence[Origin]
    clients: Tensor
    me: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if self.clients.ndim != 2 or len(self.clients) != len(self.of):
            raise AttackFailed(f"Expected clients of shape ({len(self.of)}, classes), got {tuple(self.clients.shape)}.")
        if bool(torch.isinf(self.clients).any()) or bool((self.clients < 0).any()):
            raise AttackFailed("Expected numbers of clients that are finite and not negative, or NaN for an abort.")


@final
@dataclass(frozen=True, eq=False)
class Groups(Guess):
    """Which classes of the whole federation have about equally many samples: group (origins, classes), 0 the largest.

    `amount` is what the classes were ordered by, largest first; `answered` is false where the attack cannot tell.
    """

    family: ClassVar[str] = "groups"
    headline: ClassVar[str] = "groups-rank-correlation"
    # Few clients with half of the labels each, so that the federation has much of some labels and none of others.
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "main-labels", "low": 5, "high": 5, "per_label": 20, "minor": 0, "reuse": True},
        "federation": {"clients": 4, "rounds": 8, "weighting": "uniform"},
        "training": {"lr": 0.1, "batch_size": 16},
        "adversary_data": {"per_class": 20},
    }

    of: Sequence[Origin]
    group: Tensor
    amount: Tensor
    answered: Tensor
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        _check_table(self.amount, self.of, "amounts")
        if self.group.dtype != torch.int64 or self.group.shape != self.amount.shape:
            raise AttackFailed("Expected a group number for each class.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")


@final
@dataclass(frozen=True, eq=False)
class Inputs(Guess):
    """The data themselves: for each origin a stack of recovered samples (count, *shape), in no particular order.

    `certified` marks the samples that the attack vouches for by something it observed, never by the truth.
    `answered` is false where the attack gives nothing: refusing is better than a pretty picture.
    """

    family: ClassVar[str] = "inputs"
    headline: ClassVar[str] = "inputs-recovered"
    # One client a round with one small batch of a fresh network: the gradient holds every sample of it.
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [32, 32], "activation": "tanh"},
        "partition": {"name": "uniform-batch", "batch": 4},
        "federation": {"clients": 6, "rounds": 6, "clients_per_round": 1},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 4},
    }

    of: Sequence[Origin]
    samples: Sequence[Tensor]
    certified: Sequence[Tensor]  # per origin (count,) bool
    answered: Tensor  # (origins,) bool
    labels: Sequence[Tensor] | None = None  # per origin (count,) int64: the class guessed for each sample
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if not len(self.samples) == len(self.certified) == len(self.of):
            raise AttackFailed(f"Expected samples and certificates for {len(self.of)} origins.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")
        for samples, certified in zip(self.samples, self.certified, strict=True):
            if certified.dtype != torch.bool or certified.shape != samples.shape[:1]:
                raise AttackFailed("Expected a mark for each sample whether it is certified.")
            if not bool(torch.isfinite(samples).all()):
                raise AttackFailed("Expected finite samples.")


@final
@dataclass(frozen=True, eq=False)
class Attributes(Guess):
    """A yes-or-no attribute of each target that was looked for: one origin, the sum of its round, per target.

    `scores` are higher the more likely the attribute is 1; `prior` is the probability of that which the adversary's own
    data give without any access (imputation); `places` say which of its round's targets it is.
    """

    family: ClassVar[str] = "attributes"
    headline: ClassVar[str] = "attribute-auc"
    control: ClassVar[Mapping[str, Any]] = {
        "data": "made-up-people",
        "model": {"name": "mlp", "widths": [48, 24], "activation": "elu", "alpha": -2.0, "logits": 1},
        "partition": "iid",
        "federation": {"clients": 4, "rounds": 2, "secure_aggregation": True},
        "training": {"lr": 0.05, "batch_size": 32},
        "adversary_data": {"per_class": 20, "shadow": 300},
        "targets": {"attribute": "secret", "members": 32, "others": 0},
    }

    of: Sequence[Origin]
    scores: Tensor  # (targets,)
    prior: Tensor  # (targets,)
    places: Tensor  # (targets,) int64
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        _check_scores(self.of, self.scores, self.prior, self.places)


@final
@dataclass(frozen=True, eq=False)
class Membership(Guess):
    """Whether a client trained on each target that was looked for; the higher the score, the more likely it did."""

    family: ClassVar[str] = "membership"
    headline: ClassVar[str] = "membership-auc"
    control: ClassVar[Mapping[str, Any]] = {
        **Attributes.control,
        "model": {"name": "mlp", "widths": [48, 24], "logits": 1},
        "targets": {"members": 16, "others": 16},
    }

    of: Sequence[Origin]
    scores: Tensor  # (targets,)
    places: Tensor  # (targets,) int64
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        _check_scores(self.of, self.scores, self.places)


def _check_scores(of: Sequence[Origin], *columns: Tensor) -> None:
    for column in columns:
        if column.shape != (len(of),) or not bool(torch.isfinite(column).all()):
            raise AttackFailed(f"Expected {len(of)} finite numbers, one for each target.")


def _check_table(table: Tensor, of: Sequence[Origin], what: str) -> None:
    if table.ndim != 2 or len(table) != len(of):
        raise AttackFailed(f"Expected {what} of shape ({len(of)}, classes), got {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise AttackFailed(f"Expected finite {what}.")
