"""Severity: how bad a finding is, from the lower end of its interval, against chance, and by what it took."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum

from fedspill.metric import Score
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

# Knowledge that an adversary must first get hold of: data with labels, or of the clients' own distribution, or the
# very records it looks for. The protocol and unlabelled inputs of the kind are public in most deployments.
HARD_TO_GET = frozenset({"aux_data", "shadow_data", "targets", "labels_per_client"})

# The whole rule in words, for the report.
RULE = (
    "Advantage is (score - chance) / (perfect - chance) at the cautious end of the 95 % interval. "
    f"Above 0: low. From {NOTICEABLE}: medium. From {MOST}: high. From {NEARLY_ALL}: critical. "
    "One level less, but never below low, for an adversary that must alter the model and may be caught, or for an "
    "attack that used data which are hard to get. The worst finding is the verdict."
)


def advantage(score: Score, perfect: float) -> float:
    """(score - chance) / (perfect - chance) at the cautious end of the interval; 0 is chance, 1 is perfect."""
    cautious = score.low if perfect > score.chance else score.high
    span = perfect - score.chance
    return (cautious - score.chance) / span if span else 0.0


def severity(score: Score, perfect: float, threat: ThreatModel, used: Iterable[str] = ()) -> Severity:
    """The level of what was gained, lowered once by what it took: acting, or the knowledge really `used`.

    Once, not twice: whoever runs the server and looks for a known record has both at hand. Choosing the batches of a
    vertical federation is the server's task and can be held against nobody.
    """
    gained = advantage(score, perfect)
    if math.isnan(gained) or gained <= 0:
        return Severity.INFO
    level = Severity.LOW
    for bar, name in ((NOTICEABLE, Severity.MEDIUM), (MOST, Severity.HIGH), (NEARLY_ALL, Severity.CRITICAL)):
        level = name if gained >= bar else level
    lowered = "alter_model" in threat.does or bool(HARD_TO_GET & set(used))
    return Severity(max(level - lowered, Severity.LOW))
