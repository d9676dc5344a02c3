"""Severity: how bad a finding is: its value against chance, if its interval lies above chance, and by what it took."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from fedspill.differences import TestedDifference
from fedspill.intervals import CONFIDENCE
from fedspill.leak import Degree
from fedspill.metric import Score
from fedspill.threat import KNOWLEDGE, POWERS

# found: surely above chance, with a severity. not found: at chance, and the interval leaves no room for a medium leak.
# undecided: the interval holds both chance and a medium leak. cannot: the adversary sees, knows or may do too little.
# read: an attack answered, and nothing is known to hold its answer against.
# not tested: no attack of ours applies, or the plan leaves out what it would need. errored: an attack failed.
State: TypeAlias = Literal["found", "undecided", "read", "errored", "not found", "not tested", "cannot"]


class Severity(IntEnum):
    INFO = 0  # consistent with chance: we did not find, which is not "safe"
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def word(self) -> str:
        return self.name.lower()


# Share of the way from chance to a perfect guess that the adversary covers.
NEARLY_ALL = 0.8  # what is left is noise: the records are as good as published
MOST = 0.5  # more known than unknown
NOTICEABLE = 0.2  # enough to single clients out or to improve a guess in practice
BARS = ((NOTICEABLE, Severity.MEDIUM), (MOST, Severity.HIGH), (NEARLY_ALL, Severity.CRITICAL))

DEGREES = {
    Severity.CRITICAL: Degree("nearly all", "nearly always"),
    Severity.HIGH: Degree("most", "in most cases"),
    Severity.MEDIUM: Degree("part", "often"),
    Severity.LOW: Degree("a little", "a little better than by guessing"),
}

# Knowledge that an adversary must first get hold of: data with labels, or of the clients' own distribution, or the
# very records it looks for. The protocol and unlabelled inputs of the kind are public in most deployments.
HARD_TO_GET = frozenset({"aux_data", "shadow_data", "targets", "labels_per_client", "few_labels", "paired_aux"})
# Choosing the batches of a vertical federation is the server's task and can be held against nobody.
MAY_BE_CAUGHT = frozenset({"alter_model", "alter_training"})

# The whole rule in words, for the report.
RULE = (
    "Advantage is (score - chance) / (perfect - chance), between 0 and 1. Where the cautious end of the 95 % interval "
    "does not lie above chance, nothing is found. Else it is low, "
    f"from {NOTICEABLE} medium, from {MOST} high, from {NEARLY_ALL} critical. "
    "One level less, but never below low, for an attack that alters the model and may be caught, or that used data "
    "which are hard to get. What an adversary can do, one who sees, knows and may do at least as much can do too: each "
    f"has the worst of both. An interval that holds chance and {NOTICEABLE} is undecided. "
    "The worst finding is the verdict."
)


def advantage(score: Score, perfect: float) -> float:
    """The share of the way from chance to a perfect guess that was measured; at most chance is 0."""
    return _share(_proven(score.value, score, perfect), score, perfect)


def sure_advantage(score: Score, perfect: float) -> float:
    """The same at the cautious end of the interval. What is proven of the recorded messages is sure, whatever n."""
    return _share(_proven(score.low if perfect > score.chance else score.high, score, perfect), score, perfect)


def possible_advantage(score: Score, perfect: float) -> float:
    """The same at the other end: what cannot be ruled out."""
    return _share(score.high if perfect > score.chance else score.low, score, perfect)


def _proven(value: float, score: Score, perfect: float) -> float:
    if score.proof is None or not score.proof.holds or perfect <= score.chance:
        return value
    return max(value, score.proof.share)


def _share(value: float, score: Score, perfect: float) -> float:
    return unit_advantage(value, score.chance, perfect)


def unit_advantage(value: float, chance: float, perfect: float) -> float:
    """(value - chance) / (perfect - chance), between 0 and 1."""
    span = perfect - chance
    if math.isnan(value) or math.isnan(span):
        return math.nan
    return min(max((value - chance) / span, 0.0), 1.0) if span else 0.0


def bar_of(gained: float) -> Severity:
    """The level of an advantage, whatever it took."""
    if math.isnan(gained) or gained <= 0:
        return Severity.INFO
    return max((name for bar, name in BARS if gained >= bar), default=Severity.LOW)


def lowered_by(used: Iterable[str], does: Iterable[str] = ()) -> str:
    """Why an attack counts one level less: what it `used` or `does` that is hard to have, or nothing."""
    for power in sorted(MAY_BE_CAUGHT & set(does)):
        return f"it must {POWERS[power]} and may be caught"
    for word in sorted(HARD_TO_GET & set(used)):
        return f"it used {KNOWLEDGE[word]}"
    return ""


@dataclass(frozen=True, slots=True)
class Levels:
    """The level of a finding by its value, and the levels that its interval leaves open."""

    level: Severity
    least: Severity
    most: Severity

    @property
    def undecided(self) -> bool:
        """Chance lies in the interval, and a noticeable leak too: neither a finding nor harmless."""
        return self.least == Severity.INFO and self.most >= Severity.MEDIUM

    @property
    def borderline(self) -> bool:
        """The interval holds a bar: another draw may well be called otherwise."""
        return self.least < self.level or self.most > self.level

    def changed_to(self, other: Levels, between: TestedDifference, level: float = 1 - CONFIDENCE) -> bool:
        """Another level, and for a real difference: beside a bar, levels differ by mere chance."""
        return self.level != other.level and between.p <= level


def levels_of(score: Score, perfect: float) -> Levels:
    """By the value, and by both ends of the interval.

    The value says how large a leak is, the cautious end whether there surely is one. A level that hangs on the end of
    an interval flips from draw to draw, since few federations know their own spread badly: with three, Student's end
    moves more than twice as much as the mean (docs/design/intervals.md).
    """
    value, sure, possible = (one(score, perfect) for one in (advantage, sure_advantage, possible_advantage))
    level, least = bar_of(value), bar_of(sure)
    return Levels(level, least, max(bar_of(possible), level))


def severity(score: Score, perfect: float, used: Iterable[str] = (), does: Iterable[str] = ()) -> Severity:
    """The level of what was gained, lowered once by what it took: acting, or the knowledge really `used`.

    Once, not twice: whoever runs the server and looks for a known record has both at hand.
    """
    levels = levels_of(score, perfect)
    level = levels.level if levels.least > Severity.INFO else Severity.INFO
    return Severity(max(level - bool(lowered_by(used, does)), min(level, Severity.LOW)))


def state_of(score: Score, perfect: float) -> State:
    """What a scored attack says: found, not found, or an interval too wide to say."""
    if score.status != "ok":
        return "errored"
    levels = levels_of(score, perfect)
    if levels.least > Severity.INFO:
        return "found"
    return "undecided" if levels.undecided else "not found"


def repeats_to_decide(score: Score, perfect: float, repeats: int) -> int | None:
    """About how many repeats would tell a leak from none, if the value stayed; None where one cannot say.

    Intervals shrink with the root of the number of repeats. Decided is an interval that lies above chance, or one that
    ends below a noticeable leak.
    """
    span = perfect - score.chance
    if not span or not all(map(math.isfinite, (score.low, score.high, score.value))):
        return None
    at = (score.value - score.chance) / span
    half = abs(score.high - score.low) / abs(span) / 2
    room = max(at, NOTICEABLE - at)  # at least half of NOTICEABLE
    return repeats * max(2, math.ceil((half / room) ** 2))
