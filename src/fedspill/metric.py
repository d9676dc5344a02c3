"""Score: a number with its interval, its n and its chance level. Metric: how a guess is held against the truth."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence
from fedspill.guess import Guess
from fedspill.intervals import (
    CLIENTS,
    RECORDED,
    ROUNDS,
    SHARE,
    OverFederations,
    Proof,
    Sample,
    Scale,
    measure_mean,
    measure_unbounded,
)
from fedspill.trace import Origin, Truth

G = TypeVar("G", bound=Guess, contravariant=True)  # what the metric scores


@dataclass(frozen=True, slots=True)
class Score:
    """A measured value; `chance` is the best that no access at all would get. Unscored is never zero.

    `population` says of what the interval speaks. `federations` has a value for each, `by_clients` how far their
    clients alone leave the mean open: the test of a difference between two audits needs both.
    """

    value: float
    low: float
    high: float
    n: int
    chance: float
    status: Literal["ok", "unscored"] = "ok"
    why: str = ""  # of an unscored one
    population: str = ""
    federations: tuple[float, ...] = ()
    clusters: int = 0  # how many independent parts the interval is made of
    by_clients: tuple[float, float] | None = None
    proof: Proof | None = None

    @staticmethod
    def unscored(why: str, n: int = 0) -> Score:
        return Score(math.nan, math.nan, math.nan, n, math.nan, "unscored", why)


@dataclass(frozen=True, eq=False)
class Measured:
    """Per origin: the value, and what the best no-access guess would have got; `trials` for shares of a count.

    Values of one cluster (a client, or a round) are alike and never counted as independent. Values of several
    federations are told apart by `federation`.
    """

    values: Tensor  # (origins,)
    chance: Tensor  # (origins,)
    trials: Tensor | None = None  # (origins,)
    clusters: Tensor | None = None  # (origins,) int64: which client, or round; without, each origin is its own
    within: str = CLIENTS  # of what an interval over those clusters speaks
    scale: Scale | None = None  # where the ends depend on what was measured; else the metric knows them
    proof: Proof | None = None
    federation: Tensor | None = None  # (origins,) int64; without, all are of one

    @staticmethod
    def join(parts: Sequence[Measured]) -> Measured:
        """Several federations as one sample, each still told apart from the others."""
        trials = [part.trials for part in parts if part.trials is not None]
        scales = [part.scale for part in parts if part.scale is not None]
        proofs = [part.proof for part in parts if part.proof is not None]
        numbers = [torch.full((len(part.values),), number) for number, part in enumerate(parts)]
        return Measured(
            torch.cat([part.values for part in parts]),
            torch.cat([part.chance for part in parts]),
            torch.cat(trials) if len(trials) == len(parts) else None,
            torch.cat([part.own_clusters for part in parts]),
            parts[0].within,
            Scale.holding(scales) if scales else None,
            Proof.together(proofs) if len(proofs) == len(parts) else None,
            torch.cat(numbers),
        )

    @property
    def own_clusters(self) -> Tensor:
        return torch.arange(len(self.values)) if self.clusters is None else self.clusters

    def by_federation(self) -> list[Measured]:
        """Each federation by itself; those without any origin are none."""
        if self.federation is None:
            return [self]
        return [self.only(self.federation == number) for number in torch.unique(self.federation)]

    def only(self, kept: Tensor) -> Measured:
        """The origins marked in kept (origins,), as one federation."""
        trials = None if self.trials is None else self.trials[kept]
        return replace(
            self,
            values=self.values[kept],
            chance=self.chance[kept],
            trials=trials,
            clusters=self.own_clusters[kept],
            federation=None,
        )

    def each_alone(self) -> Measured:
        """The same with every origin a cluster of its own: for what is said of these very messages."""
        return replace(self, clusters=None, within=RECORDED)


def clusters_of(of: Sequence[Origin]) -> tuple[Tensor, str]:
    """(origins,) the client of each origin, and what that makes an interval speak of.

    Where only one party is heard, such as the sum of a round, the rounds are the clusters.
    """
    senders = [origin.sender for origin in of]
    several = len(set(senders)) > 1
    names: list[Any] = senders if several else [origin.round for origin in of]
    return numbered(names), CLIENTS if several else ROUNDS


def numbered(names: Sequence[Any]) -> Tensor:
    """(names,) the same number for the same name, from 0 in order of appearance."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([places[name] for name in names], dtype=torch.int64)


class Metric(ABC, Generic[G]):
    """One way to score a guess. Concrete: a frozen dataclass, its fields are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    guesses: ClassVar[type[Guess]]
    perfect: ClassVar[float]  # the value of a perfect guess

    @abstractmethod
    def measure(self, guess: G, truth: Truth) -> Measured:
        """What the author writes."""

    def evidence(self, guess: G, truth: Truth, *, private: bool) -> list[Evidence]:
        """What a report may draw beside the score; with `private`, also what single records show."""
        return []

    @final
    def score(self, guess: G, truth: Truth) -> Score:
        """Guess against truth; what cannot be held against it is unscored, never zero."""
        try:
            measured = self.measure(guess, truth)
        except NotScored as error:
            return Score.unscored(error.problem, len(guess.of))
        return self.summarise(measured)

    @final
    def summarise(self, measured: Measured) -> Score:
        """The mean over federations with its interval; origins that cannot be measured make the score unscored."""
        n = len(measured.values)
        if n == 0:
            return Score.unscored("nothing to score")
        if not bool(torch.isfinite(measured.values).all()) or not bool(torch.isfinite(measured.chance).all()):
            return Score.unscored("a value is not finite", n)
        parts = [part for part in measured.by_federation() if self.tells(part)]
        if not parts:
            return Score.unscored("all targets are alike: nothing to tell apart", n)
        over = self.over_federations(parts, self.scale(measured))
        chance = sum(self.chance_of(part) for part in parts) / len(parts)
        interval = over.interval()
        return Score(
            over.mean,
            interval.low,
            interval.high,
            n,
            chance,
            population=interval.population,
            federations=over.federations,
            clusters=interval.clusters,
            by_clients=(over.clustered.low, over.clustered.high),
            proof=measured.proof,
        )

    def scale(self, measured: Measured) -> Scale | None:
        """The ends of the quantity; None for one without ends. Shares of a count lie between 0 and 1."""
        return measured.scale or (SHARE if measured.trials is not None else None)

    def tells(self, part: Measured) -> bool:
        """Whether this federation can be scored at all."""
        return True

    def over_federations(self, parts: Sequence[Measured], scale: Scale | None) -> OverFederations:
        """The value of each federation, and the interval of their mean over clusters.

        A metric that is not a mean over origins, such as an area under a curve, writes its own.
        """
        samples = [Sample(part.values, part.own_clusters) for part in parts]
        within = parts[0].within
        return measure_mean(samples, scale, within=within) if scale else measure_unbounded(samples, within=within)

    def chance_of(self, part: Measured) -> float:
        """What guessing gets in one federation."""
        return float(part.chance.double().mean())
