"""Severity: from the cautious end of the interval, against chance, lowered by what it took."""

from __future__ import annotations

import math

import pytest

from fedspill.audit.severity import RULE, Severity, advantage, severity
from fedspill.metric import Score
from fedspill.threat import CURIOUS_SERVER, MALICIOUS_SERVER, VERTICAL_SERVER


def score(low: float, chance: float = 0.5, high: float = 1.0) -> Score:
    return Score((low + high) / 2, low, high, 30, chance)


@pytest.mark.parametrize(
    ("low", "level"),
    [
        (0.4, Severity.INFO),
        (0.5, Severity.INFO),
        (0.51, Severity.LOW),
        (0.61, Severity.MEDIUM),
        (0.75, Severity.HIGH),
        (0.95, Severity.CRITICAL),
    ],
)
def test_the_bars(low: float, level: Severity) -> None:
    assert severity(score(low), 1.0, CURIOUS_SERVER) is level


def test_acting_or_rare_knowledge_lower_by_one_but_never_to_info() -> None:
    assert severity(score(0.95), 1.0, MALICIOUS_SERVER) is Severity.HIGH
    assert severity(score(0.95), 1.0, CURIOUS_SERVER, ["aux_data"]) is Severity.HIGH
    assert severity(score(0.95), 1.0, MALICIOUS_SERVER, ["aux_data", "architecture"]) is Severity.HIGH
    assert severity(score(0.95), 1.0, CURIOUS_SERVER, ["architecture", "unlabelled_aux"]) is Severity.CRITICAL
    assert severity(score(0.51), 1.0, MALICIOUS_SERVER, ["aux_data"]) is Severity.LOW
    assert severity(score(0.95), 1.0, VERTICAL_SERVER) is Severity.CRITICAL  # choosing batches is its task


def test_where_less_is_better_the_upper_end_counts() -> None:
    assert advantage(Score(1.0, 0.5, 2.0, 30, 10.0), 0.0) == pytest.approx(0.8)
    assert severity(Score(1.0, 0.5, 11.0, 30, 10.0), 0.0, CURIOUS_SERVER) is Severity.INFO


def test_no_number_is_no_finding() -> None:
    assert severity(Score.unscored("x"), 1.0, CURIOUS_SERVER) is Severity.INFO
    assert math.isnan(advantage(Score.unscored("x"), 1.0))
    assert "low" in RULE
