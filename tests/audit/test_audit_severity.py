"""Severity: the value against chance, where the interval lies above chance, lowered by what it took."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedspill.audit.severity import (
    RULE,
    Severity,
    advantage,
    lowered_by,
    possible_advantage,
    repeats_to_decide,
    severity,
    state_of,
    sure_advantage,
)
from fedspill.intervals import Proof
from fedspill.metric import Score
from fedspill.threat import ADVERSARIES


def score(value: float, chance: float = 0.5, off: float = 0.005) -> Score:
    return Score(value, value - off, min(value + off, 1.0), 30, chance)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (0.4, Severity.INFO),
        (0.5, Severity.INFO),
        (0.51, Severity.LOW),
        (0.61, Severity.MEDIUM),
        (0.75, Severity.HIGH),
        (0.95, Severity.CRITICAL),
    ],
)
def test_the_bars(value: float, level: Severity) -> None:
    assert severity(score(value), 1.0) is level


def test_the_value_says_how_bad_and_the_interval_whether_at_all() -> None:
    assert severity(score(0.95, off=0.4), 1.0) is Severity.CRITICAL
    assert severity(score(0.95, off=0.46), 1.0) is Severity.INFO
    assert state_of(score(0.95, off=0.46), 1.0) == "undecided"


def test_what_is_proven_is_found_whatever_n() -> None:
    wide = Score(1.0, 0.01, 1.0, 1, 0.2)
    assert state_of(wide, 1.0) == "undecided"
    assert severity(replace(wide, proof=Proof(1, 1)), 1.0) is Severity.CRITICAL
    assert state_of(replace(wide, proof=Proof(1, 1, refuted=1)), 1.0) == "undecided"


def test_acting_or_rare_knowledge_lower_by_one_but_never_to_info() -> None:
    assert severity(score(0.95), 1.0, does=["alter_model"]) is Severity.HIGH
    assert severity(score(0.95), 1.0, ["aux_data"]) is Severity.HIGH
    assert severity(score(0.95), 1.0, ["aux_data", "architecture"], ["alter_model"]) is Severity.HIGH
    assert severity(score(0.95), 1.0, ["architecture", "unlabelled_aux"]) is Severity.CRITICAL
    assert severity(score(0.51), 1.0, ["aux_data"]) is Severity.LOW
    assert severity(score(0.4), 1.0, ["aux_data"]) is Severity.INFO
    assert severity(score(0.95), 1.0, does=["choose_batch"]) is Severity.CRITICAL  # choosing batches is its task
    assert "may be caught" in lowered_by(["aux_data"], ["alter_model"])
    assert "labelled set" in lowered_by(["aux_data"])


def test_where_less_is_better_the_upper_end_counts() -> None:
    assert sure_advantage(Score(1.0, 0.5, 2.0, 30, 10.0), 0.0) == pytest.approx(0.8)
    assert severity(Score(1.0, 0.5, 11.0, 30, 10.0), 0.0) is Severity.INFO


def test_advantage_lies_between_0_and_1_and_points_one_way() -> None:
    assert advantage(score(0.1), 1.0) == 0
    assert advantage(Score(1.0, 1.0, 1.0, 3, 0.5), 1.0) == 1
    assert possible_advantage(Score(0.5, -math.inf, math.inf, 1, 0.5), 1.0) == 1
    assert advantage(Score(0.5, -math.inf, math.inf, 1, 0.5), 1.0) == 0


def test_a_wide_interval_around_chance_is_undecided_and_a_narrow_one_is_not() -> None:
    wide, narrow, below = (Score((a + b) / 2, a, b, 9, 0.5) for a, b in ((0.4, 0.8), (0.47, 0.55), (0.1, 0.3)))
    assert [state_of(s, 1.0) for s in (wide, narrow, below)] == ["undecided", "not found", "not found"]
    assert state_of(score(0.51), 1.0) == "found"
    assert state_of(Score.unscored("x"), 1.0) == "errored"
    needed = repeats_to_decide(wide, 1.0, 1)
    assert needed == 4  # half of 0.4 must shrink below the 0.2 from chance to the value, of a span of 0.5
    assert repeats_to_decide(Score(0.5, -math.inf, math.inf, 1, 0.5), 1.0, 1) is None


SERVERS = ("curious-server", "curious-server-secagg", "eavesdropper", "malicious-server")


def test_who_has_all_of_whom() -> None:
    stronger = {
        (one, two) for one, a in ADVERSARIES.items() for two, b in ADVERSARIES.items() if a is not b and a.has_all_of(b)
    }
    assert stronger == {
        ("curious-server", "eavesdropper"),
        ("curious-server", "curious-server-secagg"),
        ("malicious-server", "curious-server-secagg"),
        *(("malicious-server-updates", weaker) for weaker in SERVERS),
        ("malicious-party", "curious-party"),
        ("malicious-active-party", "active-party"),
    }


def test_no_number_is_no_finding() -> None:
    assert severity(Score.unscored("x"), 1.0) is Severity.INFO
    assert math.isnan(advantage(Score.unscored("x"), 1.0))
    assert "low" in RULE
