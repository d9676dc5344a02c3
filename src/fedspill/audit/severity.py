"""Severity: how bad a finding is, from the lower end of its interval, against chance."""

from __future__ import annotations

import math
from enum import IntEnum

from fedspill.metrics.base import Score
from fedspill.threat import ThreatModel


class Severity(IntEnum):
    INFO = 0  # consistent with chance: we did not find, which is not "safe"
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def word(self) -> str:
        return self.name.lower()


# Share of the way from chance to a perfect guess that the adversary surely covers.
NEARLY_ALL = 0.8  # what is left is noise: the records are as good as published
MOST = 0.5  # more known than unknown
NOTICEABLE = 0.2  # enough to single clients out or to improve a guess in practice


def advantage(score: Score, perfect: float) -> float:
    """(score - chance) / (perfect - chance) at the cautious end of the interval; 0 is chance, 1 is perfect."""
    cautious = score.low if perfect > score.chance else score.high
    span = perfect - score.chance
    return (cautious - score.chance) / span if span else 0.0


def severity(score: Score, perfect: float, threat: ThreatModel) -> Severity:
    """An adversary that only listens is worse than one that must act and may be caught: acting lowers by one."""
    gained = advantage(score, perfect)
    if math.isnan(gained) or gained <= 0:
        return Severity.INFO
    level = Severity.LOW
    for bar, name in ((NOTICEABLE, Severity.MEDIUM), (MOST, Severity.HIGH), (NEARLY_ALL, Severity.CRITICAL)):
        level = name if gained >= bar else level
    return Severity(max(level - bool(threat.does), Severity.LOW))
