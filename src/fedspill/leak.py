"""Leak: one thing that a federation can give away. A folder of leaks/, a row of the report, a page of the manual."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from fedspill.guess import Guess
from fedspill.metric import Metric, Score
from fedspill.reading import Reading, plain_reading
from fedspill.threat import FederationKind

G = TypeVar("G", bound=Guess)


@dataclass(frozen=True)
class Words:
    """A score as a person would say it."""

    figure: str  # "87 of 100 labels"
    by_guessing: str  # "57 of 100 labels"
    sentence: str  # "87 of 100 labels of a client's round are read correctly"


@dataclass(frozen=True)
class Degree:
    """How much is read, in words that a leak's claim has room for."""

    much: str  # "{much} of the labels"
    often: str  # "tell it {often}"


def _between_0_and_1(value: float) -> float:
    return min(max(value, 0.0), 1.0)


@dataclass(frozen=True, eq=False)
class Leak(Generic[G]):
    """What is guessed, how it is scored, where it must be found, and how people speak of it.

    The first metric is the headline: findings are ranked by it, the others are details.
    """

    name: str
    title: str  # the heading of its row: "Labels in a round"
    question: str
    guess: type[G]
    metrics: tuple[Metric[G], ...]
    # A tiny plan whose federation surely leaks it: the positive control of every attack on this leak. With the truth of
    # its origins swapped it is the negative control. Without one nothing of this leak is scored.
    control: Mapping[str, Any]
    figure: Callable[[float], str]  # a value of the headline metric in words
    sentence: str  # with the figure in the place of {figure}
    taxonomy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # nearest ids of public lists
    # What whoever finds it can do, for "The server can ...": "read {much} of the labels ..." or "tell ... {often}".
    claim: str = ""
    share: Callable[[float], float] = _between_0_and_1  # a value of the headline metric as a share, for a picture
    implied_by: tuple[str, ...] = ()  # leaks that say this one too, to an adversary who has them
    federations: tuple[FederationKind, ...] = ("horizontal", "shared towers")  # those that can have it
    split_learning_only: bool = False  # whether of these only those of one client and a server can
    held_by: tuple[str, ...] = ()  # adversaries who have it without any attack, because it is theirs
    # What a guess says, for those who do not know the truth; with `private`, of single records too.
    reader: Callable[[G, bool], Reading] | None = None

    @property
    def headline(self) -> Metric[G]:
        return self.metrics[0]

    def words(self, score: Score) -> Words:
        """The score, and what guessing would get, in this leak's own words."""
        figure = self.figure(score.value)
        return Words(figure, self.figure(score.chance), self.sentence.format(figure=figure))

    def read(self, guess: G, *, private: bool = False) -> Reading:
        """The guess in words and tables."""
        return self.reader(guess, private) if self.reader else plain_reading(guess)

    def claimed(self, surely: Degree, measured: Degree) -> str:
        """What can surely be done, with how much of it; and how much was measured, where that is not as sure."""
        claim = self.claim or f"learn this {{often}}: {self.title.lower()}"
        said = claim.format(much=surely.much, often=surely.often)
        if surely == measured:
            return said
        return f"{said}, perhaps {measured.much if '{much}' in claim else measured.often}"


def of_hundred(things: str) -> Callable[[float], str]:
    """A share said as a count: 0.868 is "87 of 100 labels"."""
    return lambda share: f"{round(100 * share)} of 100 {things}"


def short_guessing(figure: str, guessing: str) -> str:
    """ "57 by guessing", where it differs from the figure by its number alone; else in full."""
    number = re.compile(r"-?\d+(\.\d+)?( %)?")
    alike = number.sub("", figure, count=1) == number.sub("", guessing, count=1)
    short = number.search(guessing) if alike else None
    return f"{short[0] if short else guessing} by guessing"


def told_apart(area: float) -> str:
    """A restricted ROC area on its scale from one half, guessing, to one, always right. It is no share of anything."""
    return f"{round(100 * area)} % told apart"


# Nearest ids of public taxonomies; none of them speaks of federated learning.
RECONSTRUCTION_IDS = MappingProxyType(
    {"NIST AI 100-2": "NISTAML.032", "MITRE ATLAS": "AML.T0024.001", "OWASP ML": "ML03"}
)
MEMBERSHIP_IDS = MappingProxyType({"NIST AI 100-2": "NISTAML.033", "MITRE ATLAS": "AML.T0024.000", "OWASP ML": "ML04"})
PROPERTY_IDS = MappingProxyType({"NIST AI 100-2": "NISTAML.034", "MITRE ATLAS": "AML.T0024.000"})
ATTRIBUTE_IDS = MappingProxyType({"NIST AI 100-2": "NISTAML.032"})
