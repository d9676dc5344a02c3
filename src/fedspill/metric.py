"""Score: a number with its interval, its n and its chance level. Metric: how a guess is held against the truth."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence
from fedspill.guess import Guess
from fedspill.intervals import clustered_share_interval, mean_interval
from fedspill.trace import Truth

G = TypeVar("G", bound=Guess, contravariant=True)  # what the metric scores


@dataclass(frozen=True, slots=True)
class Score:
    """A measured value; `chance` is the best that no access at all would get. Unscored is never zero."""

    value: float
    low: float
    high: float
    n: int
    chance: float
    status: Literal["ok", "unscored"] = "ok"
    why: str = ""  # of an unscored one

    @staticmethod
    def unscored(why: str, n: int = 0) -> Score:
        return Score(math.nan, math.nan, math.nan, n, math.nan, "unscored", why)


@dataclass(frozen=True, eq=False)
class Measured:
    """Per origin: the value, and what the best no-access guess would have got; `trials` for shares of a count."""

    values: Tensor  # (origins,)
    chance: Tensor  # (origins,)
    trials: Tensor | None = None  # (origins,)

    @staticmethod
    def join(parts: Sequence[Measured]) -> Measured:
        """The origins of several federations as one sample."""
        trials = [part.trials for part in parts if part.trials is not None]
        return Measured(
            torch.cat([part.values for part in parts]),
            torch.cat([part.chance for part in parts]),
            torch.cat(trials) if len(trials) == len(parts) else None,
        )


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

    def summarise(self, measured: Measured) -> Score:
        """The mean over origins with its interval; origins that cannot be measured make the score unscored.

        A metric that is not a mean over origins, such as an area under a curve, writes its own.
        """
        n = len(measured.values)
        if n == 0:
            return Score.unscored("nothing to score")
        if not bool(torch.isfinite(measured.values).all()) or not bool(torch.isfinite(measured.chance).all()):
            return Score.unscored("a value is not finite", n)
        value = float(measured.values.double().mean())
        if measured.trials is None:
            low, high = mean_interval(measured.values)
        else:
            low, high = clustered_share_interval(measured.values, measured.trials)
        return Score(value, min(low, value), max(high, value), n, float(measured.chance.double().mean()))
