"""Decaf: the class composition of each client's data from the change of the last layer (paper 000)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable, UsageError
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.leak import COMPOSITION
from fedspill.leaks.composition.shares.combined_rounds import Composition, over_rounds, rounds_of, weight_of
from fedspill.leaks.composition.shares.path_shares import SURE, adam_bias_shares, hedged, path_shares
from fedspill.leaks.composition.shares.published_steps import (
    Bases,
    ReadOut,
    descent,
    gradient_bases,
    null_classes,
    read_out,
)
from fedspill.leaks.composition.shares.rehearsed_clients import rehearse_unexplained
from fedspill.observe.local_changes import (
    KnownFederation,
    KnownOptimizer,
    LocalChange,
    read_changes,
    read_known_federation,
)
from fedspill.observe.path_bases import path_bases
from fedspill.threat import needs
from fedspill.trace import View
from fedspill.training import Optimizer as OptimizerName


@final
@dataclass(frozen=True)
class Decaf(Attack):
    """Decomposes what a client sent into what each class would have sent.

    `solver` "paper" is Algorithms 1 to 3. "path" (ours): bases averaged between the model before and after, a
    whitened least-squares fit on the simplex without descent, momentum and weight decay taken out, even shares to
    the degree that nothing is explained, rounds weighted by how well they are, and no answer where nothing is. Adam's
    steps are normalised coordinate by coordinate, so there the bias alone is read, with its normaliser worked out from
    the bases; for Adadelta the published bases are used. "auto" (ours, the default) is "path" for clients of whom some
    round of plain SGD is explained as well as the noise of their samples allows; the others are rehearsed as label
    counts are (observe/rehearsed_shares.py), and weighed with what the whole last layer says (shares/two_opinions.py).
    A client that sent nothing like the rehearsals, for instance noise, is left to the path, and so are optimizers that
    we do not have.

    Null classes. If the last layer's inputs are never negative and there is no weight decay, a class without samples
    cannot show a positive change, however many steps were made: every null class is found. The converse is not a
    theorem: a rare class may be called null, unless another round shows it. Elsewhere (leaky ReLU, tanh, decay) a
    scale-free statistic is used, the largest rise of a row over its largest fall, which is a heuristic.

    It fails once the model fits the client's data: what is left of the gradient is noise, and the agreement says so.
    """

    name: ClassVar[str] = "decaf"
    title: ClassVar[str] = "Class composition of each client"
    paper: ClassVar[str] = "000"
    needs = needs(
        sees=["update|gradient", "model"],
        knows=["architecture", "aux_data", "local_lr", "batch_size", "local_epochs", "optimizer"],
    )
    leak = COMPOSITION

    solver: Literal["auto", "path", "paper"] = "auto"
    rounds: Literal["all", "single"] = "all"  # "single": each round by itself, as most of the paper's tables
    null_removal: bool = True
    null_threshold: float = 0.0  # paper; 0.001 is its advice for leaky ReLU
    calibrator: bool = True  # paper
    unified: Bases = "step"  # paper
    read_out: ReadOut = "sum"  # paper
    epochs: int = 1000  # paper: of the descent
    rate: float = 1.0  # paper: of the descent, over the curvature
    points: Literal[1, 2, 3, 5] = 3  # path
    least_agreement: float = 0.1  # path: below it there is no answer
    null_ratio: float = 0.03  # path: largest rise over largest fall of a null row, where the theorem does not hold

    def __post_init__(self) -> None:
        if (
            self.epochs < 1
            or not 0 < self.rate < 2
            or not 0 <= self.least_agreement < 1
            or not 0 <= self.null_ratio < 1
        ):
            raise UsageError("Expected epochs >= 1, 0 < rate < 2, 0 <= least_agreement < 1, 0 <= null_ratio < 1.")

    def run(self, view: View, rng: torch.Generator) -> Proportions:
        federation = read_known_federation(view)
        changes, notes = read_changes(view, federation)
        exact = self.solver != "paper"
        found: list[Composition] = []
        read: list[LocalChange] = []
        for change in changes:
            composition, theorem = self._decompose(change, federation, rng)
            if not torch.isfinite(composition.shares).all():
                notes.append(f"{change.of.sender} in round {change.of.round} was left out: its size defies arithmetic")
                continue
            exact = exact and theorem
            found.append(composition)
            read.append(change)
        if not found:
            raise NotApplicable(f"No update can be decomposed. {'; '.join(notes[:3])}")
        if self.solver != "paper":
            sure = "sign theorem: every null class is found" if exact else "heuristic ratio test"
            notes.append(f"null classes by the {sure}")
            notes.append(f"read as {federation.optimizer.name}, {self.points} points between the models")
        unexplained = torch.tensor([1 - one.agreement**2 for one in found], dtype=torch.float64)
        together = rounds_of([change.of.sender for change in read], self.rounds)
        if self.solver == "auto" and federation.optimizer.name in get_args(OptimizerName):
            notes += rehearse_unexplained(view, read, found, together, federation, joint=self.rounds == "all", rng=rng)
        for rounds in together:
            joint = over_rounds([found[index] for index in rounds], exact)
            for index in rounds:
                found[index] = joint
        agreement = torch.tensor([one.agreement for one in found], dtype=torch.float64)
        answered = agreement >= (0 if self.solver == "paper" else self.least_agreement)
        if not bool(answered.all()):
            notes.append(f"{int((~answered).sum())} of {len(found)} not answered: nothing explains what they sent")
        shares, null = torch.stack([one.shares for one in found]), torch.stack([one.null for one in found])
        return Proportions([change.of for change in read], shares, null, agreement, answered, notes, unexplained)

    def _decompose(
        self, change: LocalChange, federation: KnownFederation, rng: torch.Generator
    ) -> tuple[Composition, bool]:
        if self.solver == "paper":
            return self._as_published(change, federation, self.null_threshold, rng), False
        bases = path_bases(
            federation.model, change.before, change.change, federation.head, federation.auxiliary, federation.classes,
            points=self.points,
        )  # fmt: skip
        theorem = bases.least_feature >= 0 and federation.optimizer.weight_decay == 0
        null = self._nulls(change, federation, theorem)
        if federation.optimizer.name == "adadelta":
            return self._as_published(change, federation, null, rng), theorem
        mean = change.mean_gradient(federation.lr, federation.optimizer)
        if not bases.is_finite() or float(mean.abs().max()) > 1e100:
            return Composition(torch.full((federation.classes,), torch.nan), null, 0.0), theorem
        if federation.optimizer.name == "adam" and federation.bias is not None:
            shares, agreement = adam_bias_shares(bases, mean[:, -1], ~null, change.batch_size)
        else:
            shares, agreement = path_shares(bases, mean, ~null)
        shares = hedged(shares, ~null, agreement)
        null = null | (shares == 0) & (agreement > SURE)
        return Composition(shares, null, agreement, weight_of(agreement)), theorem

    def _nulls(self, change: LocalChange, federation: KnownFederation, theorem: bool) -> Tensor:
        if not self.null_removal:
            return torch.zeros(federation.classes, dtype=torch.bool)
        if theorem:
            return _not_all(null_classes(change.moved[:, :-1], 0.0))
        decay = KnownOptimizer(weight_decay=federation.optimizer.weight_decay)
        moved = -change.mean_gradient(federation.lr, decay)[:, :-1]
        return _not_all(moved.amax(1) <= self.null_ratio * -moved.amin(1).clamp_max(0))

    def _as_published(
        self, change: LocalChange, federation: KnownFederation, null: Tensor | float, rng: torch.Generator
    ) -> Composition:
        """Algorithms 1 to 3; `null` is Algorithm 1's threshold, or what another test has found."""
        target = change.moved[:, :-1] / federation.lr
        if isinstance(null, float):
            removed = null_classes(target, null) if self.null_removal else torch.zeros(len(target), dtype=torch.bool)
            null = _not_all(removed)
        single, union = gradient_bases(change, federation, null, self.unified, rng)
        bases = torch.cat([single, union[None]]).flatten(1) if self.calibrator else single.flatten(1)
        if not bool(torch.isfinite(bases).all()):
            return Composition(torch.full((federation.classes,), torch.nan), null, 0.0)  # the auxiliary epoch diverged
        factors = descent(bases, target.flatten(), self.epochs, self.rate)
        agreement = float(torch.nn.functional.cosine_similarity(factors @ bases, target.flatten(), dim=0))
        shares = torch.zeros(federation.classes, dtype=torch.float64)
        calibrator = factors[-1] if self.calibrator else None
        shares[~null] = read_out(factors[: len(single)], calibrator, self.read_out)
        return Composition(shares, null, max(agreement, 0.0) if agreement == agreement else 0.0)


def _not_all(null: Tensor) -> Tensor:
    """Some class must be there: if none seems to be, nothing was found."""
    return torch.zeros_like(null) if bool(null.all()) else null
