"""Metrics for class compositions: L1, L2 and L-infinity distance and null classes (paper 000), with what guessing gets.

A client that is heard in several rounds is one client: its rounds are averaged before anything is counted.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.chance import composition_chance
from fedspill.errors import NoTruth, NotScored
from fedspill.evidence import Bars, Curve, Evidence
from fedspill.intervals import Scale
from fedspill.leaks.composition.guess import Proportions
from fedspill.metric import Measured, Metric, clusters_of, numbered
from fedspill.trace import Truth

DRAWS = 200  # of the random composition


class Distance(Metric[Proportions], ABC):
    """Mean distance between the guessed and the true composition, over clients; 0 is perfect."""

    guesses = Proportions
    perfect: ClassVar[float] = 0.0
    order: ClassVar[float]

    def measure(self, guess: Proportions, truth: Truth) -> Measured:
        shares, real, senders = answered(guess, truth)
        chance = composition_chance(real, numbered(senders), distance=lambda a, b: distance(a, b, self.order))
        found = by_client(distance(shares, real, self.order), senders)
        return Measured(found, by_client(chance, senders), clusters=torch.arange(len(found)))

    def scale(self, measured: Measured) -> Scale:
        """A client that the attack fails on is as far off as by guessing: no sensible guess is as far as can be."""
        worst = 2 ** (1 / self.order)
        return Scale(worst, 0.0, failed=min(float(measured.chance.mean()), worst))

    def evidence(self, guess: Proportions, truth: Truth, *, private: bool) -> list[Evidence]:
        shares, real, senders = answered(guess, truth)
        names = [""] * real.shape[1]
        shown: list[Evidence] = [
            Bars("Composition of all clients together", False, names, real.mean(0).tolist(), shares.mean(0).tolist())
        ]
        if guess.unexplained is not None and len({origin.round for origin in guess.of}) > 1:
            shown.append(_residuals(guess.unexplained, [origin.round for origin in guess.of]))
        if private:
            for index in range(min(len(senders), 10)):
                title = f"Composition of {senders[index]} in round {guess.of[index].round}"
                shown.append(Bars(title, True, names, real[index].tolist(), shares[index].tolist()))
        return shown


@final
@dataclass(frozen=True)
class CompositionL1(Distance):
    """Sum over classes of the absolute error of its share: 0 is perfect, 2 is as wrong as can be."""

    name: ClassVar[str] = "composition-l1"
    title: ClassVar[str] = "Composition error (L1)"
    paper: ClassVar[str] = "000"
    order: ClassVar[float] = 1.0


@final
@dataclass(frozen=True)
class CompositionL2(Distance):
    """Euclidean distance between compositions."""

    name: ClassVar[str] = "composition-l2"
    title: ClassVar[str] = "Composition error (L2)"
    paper: ClassVar[str] = "000"
    order: ClassVar[float] = 2.0


@final
@dataclass(frozen=True)
class CompositionLInf(Distance):
    """The largest error of any class's share."""

    name: ClassVar[str] = "composition-linf"
    title: ClassVar[str] = "Composition error (L-infinity)"
    paper: ClassVar[str] = "000"
    order: ClassVar[float] = float("inf")


@final
@dataclass(frozen=True)
class NullRecall(Metric[Proportions]):
    """Share of a client's absent classes that were called absent; "all classes present" is the no-access guess."""

    name: ClassVar[str] = "null-recall"
    title: ClassVar[str] = "Absent classes found"
    paper: ClassVar[str] = "000"
    guesses = Proportions
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Proportions, truth: Truth) -> Measured:
        return _shares_of(guess, truth, absent=True)


@final
@dataclass(frozen=True)
class FalseNulls(Metric[Proportions]):
    """Share of a client's present classes that were called absent; 0 is perfect, and what calling none gets."""

    name: ClassVar[str] = "false-nulls"
    title: ClassVar[str] = "Present classes called absent"
    paper: ClassVar[str] = "000"
    guesses = Proportions
    perfect: ClassVar[float] = 0.0

    def measure(self, guess: Proportions, truth: Truth) -> Measured:
        return _shares_of(guess, truth, absent=False)


def _residuals(unexplained: Tensor, numbers: list[int]) -> Curve:
    """How much of a client's message its composition leaves unexplained, by round; 1 is what noise would show."""
    rounds, of = sorted(set(numbers)), torch.tensor(numbers)
    means = [float(unexplained[of == number].mean()) for number in rounds]
    title, axes = "What the composition leaves unexplained, by round", ("round", "share of the update")
    return Curve(title, False, [float(r) for r in rounds], means, *axes, [1.0] * len(rounds), "noise")


def _shares_of(guess: Proportions, truth: Truth, *, absent: bool) -> Measured:
    """Per origin that has such classes, the share of them marked null. Refusals count: the test stands alone."""
    real = true_shares(guess, truth)
    asked = (real == 0) == absent
    has = asked.any(1)
    if not bool(has.any()):
        raise NotScored("no client has such a class")
    hits = (guess.null & asked).sum(1)[has].double() / asked.sum(1)[has]
    of = [origin for origin, any_asked in zip(guess.of, has.tolist(), strict=True) if any_asked]
    return Measured(hits, torch.zeros(len(hits)), asked.sum(1)[has], *clusters_of(of))


def true_shares(guess: Proportions, truth: Truth) -> Tensor:
    """(origins, classes) the real compositions."""
    if not guess.of:
        raise NotScored("nothing to score")
    for origin in guess.of:
        if not truth.has(origin, "label_counts"):
            raise NoTruth(f"nothing is known of the labels of {origin.sender} in round {origin.round}")
    counts = torch.stack([truth.get(origin, "label_counts") for origin in guess.of]).double()
    if counts.shape != guess.shares.shape:
        raise NotScored(f"the guess speaks of {guess.shares.shape[1]} classes, there are {counts.shape[1]}")
    return counts / counts.sum(1, keepdim=True)


def answered(guess: Proportions, truth: Truth) -> tuple[Tensor, Tensor, list[str]]:
    """Guessed and real shares (n, classes) and the senders of what the attack answered."""
    real = true_shares(guess, truth)
    if not bool(guess.answered.any()):
        raise NotScored("the attack answered nothing: what it saw carries nothing")
    senders = [origin.sender for origin, yes in zip(guess.of, guess.answered.tolist(), strict=True) if yes]
    return guess.shares[guess.answered], real[guess.answered], senders


def distance(shares: Tensor, real: Tensor, order: float) -> Tensor:
    """(n,) the L-order distance between rows."""
    norms: Tensor = torch.linalg.vector_norm(shares - real, ord=order, dim=1)
    return norms


def baselines(real: Tensor) -> dict[str, Tensor]:
    """What can be guessed without access: even shares, a random composition, and the mean over all clients.

    Random is uniform on the simplex, Dirichlet(1, ..., 1); its rows are replaced by the draw of median error, since
    the paper states neither law nor number. The mean over clients is more than an outsider knows.
    """
    classes = real.shape[1]
    rng = torch.Generator().manual_seed(0)
    draws = torch.empty(DRAWS, classes, dtype=torch.float64).exponential_(generator=rng)
    draws = draws / draws.sum(1, keepdim=True)
    errors = (draws[:, None] - real[None]).abs().sum(2)  # (draws, n)
    median = errors.argsort(0)[DRAWS // 2]
    return {
        "uniform": torch.full_like(real, 1 / classes),
        "random": draws[median],
        "mean of all clients": real.mean(0).expand_as(real),
    }


def by_client(values: Tensor, senders: list[str]) -> Tensor:
    """(clients,) the mean over the rounds of each client."""
    rows = {sender: [i for i, other in enumerate(senders) if other == sender] for sender in dict.fromkeys(senders)}
    return torch.stack([values[indices].mean() for indices in rows.values()])
