"""Decaf: the class composition of each client's data from the change of the last layer (paper 000)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedspill.attacks.base import Attack
from fedspill.attacks.decaf_paper import Bases, ReadOut, descent, gradient_bases, null_classes, read_out
from fedspill.attacks.local_changes import LocalChange, Optimizer, Setting, read_changes, read_setting
from fedspill.attacks.path_bases import PathBases, inner_products, path_bases
from fedspill.attacks.simplex import simplex_fit
from fedspill.errors import NotApplicable, UsageError
from fedspill.guesses import Proportions
from fedspill.threat import needs
from fedspill.trace import View

RIDGE = 0.001  # of the mean variance, in the whitening
SURE = 0.995  # above this agreement the solution needs no help from the null test
DOUBT = 0.15  # how fast a fit that explains little gives way to even shares


@dataclass(frozen=True, eq=False)
class Composition:
    """What one local training says about one client."""

    shares: Tensor  # (classes,)
    null: Tensor  # (classes,) bool
    agreement: float  # cosine between what was sent and what the shares explain


@final
@dataclass(frozen=True)
class Decaf(Attack):
    """Decomposes what a client sent into what each class would have sent.

    `solver` "paper" is Algorithms 1 to 3. "path" (ours): bases averaged between the model before and after, a
    whitened least-squares fit on the simplex without descent, momentum and weight decay taken out, even shares to
    the degree that nothing is explained, rounds weighted by how well they are, and no answer where nothing is.
    Adam's steps are normalised coordinate by coordinate, so there the bias alone is read, with its normaliser
    worked out from the bases; Adadelta's first steps hardly depend on the gradient's size, and nothing we know
    beats the published bases there, so they are used.

    Null classes. If the last layer's inputs are never negative and there is no weight decay, a class without samples
    cannot show a positive change, however many steps were made: every null class is found. The converse is not a
    theorem: a rare class may be called null. Elsewhere (leaky ReLU, tanh, decay) a scale-free statistic is used, the
    largest rise of a row over its largest fall, which is a heuristic.

    It fails once the model fits the client's data: what is left of the gradient is noise, and the agreement says so.
    """

    name: ClassVar[str] = "decaf"
    title: ClassVar[str] = "Class composition of each client"
    paper: ClassVar[str] = "000"
    needs = needs(
        sees=["update|gradient", "model"],
        knows=["architecture", "aux_data", "local_lr", "batch_size", "local_epochs", "optimizer"],
    )
    guesses = Proportions

    solver: Literal["path", "paper"] = "path"
    rounds: Literal["all", "single"] = "all"  # "single": each round by itself, as most of the paper's tables
    null_removal: bool = True
    null_threshold: float = 0.0  # paper; 0.001 is its advice for leaky ReLU
    calibrator: bool = True  # paper
    unified: Bases = "step"  # paper
    read_out: ReadOut = "sum"  # paper
    epochs: int = 1000  # paper: of the descent
    rate: float = 1.0  # paper: of the descent, over the curvature
    points: Literal[1, 2, 3, 5] = 5  # path
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
        setting = read_setting(view)
        changes, notes = read_changes(view, setting)
        exact = None
        found: list[Composition] = []
        read: list[LocalChange] = []
        for change in changes:
            composition, theorem = self._decompose(change, setting, rng)
            if not torch.isfinite(composition.shares).all():
                notes.append(f"{change.of.sender} in round {change.of.round} was left out: its size defies arithmetic")
                continue
            exact = theorem if exact is None else exact and theorem
            found.append(composition)
            read.append(change)
        if not found:
            raise NotApplicable(f"No update can be decomposed. {'; '.join(notes[:3])}")
        if self.solver == "path":
            sure = "sign theorem: every null class is found" if exact else "heuristic ratio test"
            notes.append(f"null classes by the {sure}")
            notes.append(f"read as {setting.optimizer.name}, {self.points} points between the models")
        unexplained = torch.tensor([1 - one.agreement**2 for one in found], dtype=torch.float64)
        if self.rounds == "all":
            found = over_rounds([change.of.sender for change in read], found, weighted=self.solver == "path")
        agreement = torch.tensor([one.agreement for one in found], dtype=torch.float64)
        answered = agreement >= (self.least_agreement if self.solver == "path" else 0)
        if not bool(answered.all()):
            notes.append(f"{int((~answered).sum())} of {len(found)} not answered: nothing explains what they sent")
        shares, null = torch.stack([one.shares for one in found]), torch.stack([one.null for one in found])
        return Proportions([change.of for change in read], shares, null, agreement, answered, notes, unexplained)

    def _decompose(self, change: LocalChange, setting: Setting, rng: torch.Generator) -> tuple[Composition, bool]:
        if self.solver == "paper":
            return self._as_published(change, setting, self.null_threshold, rng), False
        bases = path_bases(
            setting.model, change.before, change.change, setting.head, setting.auxiliary, setting.classes,
            points=self.points,
        )  # fmt: skip
        theorem = bases.least_feature >= 0 and setting.optimizer.weight_decay == 0
        null = self._nulls(change, setting, theorem)
        if setting.optimizer.name == "adadelta":
            return self._as_published(change, setting, null, rng), theorem
        mean = change.mean_gradient(setting.lr, setting.optimizer)
        if not torch.isfinite(bases.gradients).all() or float(mean.abs().max()) > 1e100:
            return Composition(torch.full((setting.classes,), torch.nan), null, 0.0), theorem
        if setting.optimizer.name == "adam" and setting.bias is not None:
            shares, agreement = adam_bias_shares(bases, mean[:, -1], ~null, change.batch_size)
        else:
            shares, agreement = path_shares(bases, mean, ~null)
        shares = hedged(shares, ~null, agreement)
        return Composition(shares, null | (shares == 0) & (agreement > SURE), agreement), theorem

    def _nulls(self, change: LocalChange, setting: Setting, theorem: bool) -> Tensor:
        if not self.null_removal:
            return torch.zeros(setting.classes, dtype=torch.bool)
        if theorem:
            return _not_all(null_classes(change.moved[:, :-1], 0.0))
        decay = Optimizer(weight_decay=setting.optimizer.weight_decay)
        moved = -change.mean_gradient(setting.lr, decay)[:, :-1]
        return _not_all(moved.amax(1) <= self.null_ratio * -moved.amin(1).clamp_max(0))

    def _as_published(
        self, change: LocalChange, setting: Setting, null: Tensor | float, rng: torch.Generator
    ) -> Composition:
        """Algorithms 1 to 3; `null` is Algorithm 1's threshold, or what another test has found."""
        target = change.moved[:, :-1] / setting.lr
        if isinstance(null, float):
            removed = null_classes(target, null) if self.null_removal else torch.zeros(len(target), dtype=torch.bool)
            null = _not_all(removed)
        single, union = gradient_bases(change, setting, null, self.unified, rng)
        bases = torch.cat([single, union[None]]).flatten(1) if self.calibrator else single.flatten(1)
        if not bool(torch.isfinite(bases).all()):
            return Composition(torch.full((setting.classes,), torch.nan), null, 0.0)  # the auxiliary epoch diverged
        factors = descent(bases, target.flatten(), self.epochs, self.rate)
        agreement = float(torch.nn.functional.cosine_similarity(factors @ bases, target.flatten(), dim=0))
        shares = torch.zeros(setting.classes, dtype=torch.float64)
        calibrator = factors[-1] if self.calibrator else None
        shares[~null] = read_out(factors[: len(single)], calibrator, self.read_out)
        return Composition(shares, null, max(agreement, 0.0) if agreement == agreement else 0.0)


def path_shares(bases: PathBases, mean_gradient: Tensor, allowed: Tensor) -> tuple[Tensor, float]:
    """Shares (classes,) and whitened agreement for a mean gradient (outputs, features + 1).

    First with the noise of evenly mixed classes, then with that of the mixture found. Where all classes together
    explain what was seen, the null test could only do harm and is not used.
    """
    columns = torch.cat([bases.gradients, mean_gradient[None]])
    mixture = torch.full((len(allowed),), 1 / len(allowed), dtype=torch.float64)
    shares, agreement = simplex_fit(inner_products(columns, bases.middle, mixture, RIDGE), torch.ones_like(allowed))
    if agreement > SURE:
        allowed = torch.ones_like(allowed)
    for _ in range(2):
        shares, agreement = simplex_fit(inner_products(columns, bases.middle, mixture, RIDGE), allowed)
        mixture = 0.9 * shares + 0.1 / len(shares)
    return shares, agreement


def hedged(shares: Tensor, allowed: Tensor, agreement: float) -> Tensor:
    """Shares (classes,) drawn towards even shares of the allowed classes, the more the less they explain.

    Least squares on noise gives any answer. The square of the agreement counts as signal, the rest as noise, and noise
    as its square: a fit that explains nearly all is left as it is.
    """
    if agreement > SURE:
        return shares
    signal = agreement**2
    weight = signal / (signal + DOUBT * (1 - signal) ** 2) if signal > 0 else 0.0
    return weight * shares + (1 - weight) * allowed.double() / allowed.sum()


def adam_bias_shares(bases: PathBases, mean_step: Tensor, allowed: Tensor, batch_size: int) -> tuple[Tensor, float]:
    """Shares (classes,) from the last bias under Adam; mean_step (outputs,) is minus its change over lr and steps.

    Adam divides each coordinate by the root of its mean square, here that of the batch mean along the path:
    (E g)^2 + Var g / batch size. It depends on the shares, so the two are found in turns.
    """
    gradients = bases.gradients[:, :, -1]  # (classes, outputs)
    shares = allowed.double() / allowed.sum()
    agreement = 0.0
    for _ in range(8):
        mean = shares @ gradients
        spread = (shares @ bases.bias_power - mean**2).clamp_min(0)
        scale = (mean**2 + spread / batch_size).sqrt().clamp_min(1e-12)
        columns = torch.cat([gradients / scale, mean_step[None]])
        found, agreement = simplex_fit(columns @ columns.T, allowed)
        shares = (shares + found) / 2
    return shares, agreement


def over_rounds(senders: list[str], found: list[Composition], *, weighted: bool) -> list[Composition]:
    """Each client's rounds as one: shares averaged, plainly or by squared signal to noise; nulls by majority."""
    merged: dict[str, Composition] = {}
    for sender in set(senders):
        own = [one for name, one in zip(senders, found, strict=True) if name == sender]
        cosine = torch.tensor([one.agreement for one in own], dtype=torch.float64).clamp(1e-3, 1 - 1e-9)
        weights = (cosine**2 / (1 - cosine**2)) ** 2 if weighted else torch.ones_like(cosine)
        weights = weights / weights.sum()
        shares = weights @ torch.stack([one.shares for one in own])
        null = weights @ torch.stack([one.null for one in own]).double() > 0.5
        merged[sender] = Composition(shares / shares.sum(), null, max(one.agreement for one in own))
    return [merged[sender] for sender in senders]


def _not_all(null: Tensor) -> Tensor:
    """Some class must be there: if none seems to be, nothing was found."""
    return torch.zeros_like(null) if bool(null.all()) else null
