"""The defense frontier: what is tried, what it leaves, what it costs, and what is recommended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_kit import tiny

from fedspill.audit.defense_frontier import Accuracy, Point, advice, best_of, candidates_of, summarise_leaks
from fedspill.audit.result import (
    AccuracyFigures,
    DefensesTried,
    DefenseTrial,
    Finding,
    ScoreFigures,
)
from fedspill.audit.severity import Severity
from fedspill.audit.target import DefenseSetting

Audited = tuple[Path, dict[str, Any]]


def point(name: str, level: Severity, right: int, used: tuple[str, ...] = (), status: Any = "ok") -> Point:
    score = ScoreFigures(metric="label-asr", value=0.6, low=0.5, high=0.7, n=30, chance=0.5)
    finding = Finding(
        id="a/b",
        attack="a",
        title="A",
        adversary="b",
        family="labels",
        status=status,
        severity=level,
        advantage=float(level) / 12,
        score=score,
        used=list(used),
    )
    return Point(DefenseSetting.one(name), finding, Accuracy(right, 100), None, None)


def test_candidates_come_from_the_plan_or_from_the_defenses_themselves() -> None:
    chosen = candidates_of(tiny(candidates=[{"name": "clip-noise", "strengths": [{"sigma": 0.5}]}, "compression"]))
    labels = [setting.label for setting in chosen]
    assert labels[0] == "clip-noise(sigma=0.5)"
    assert labels[1:] == ["compression(drop=0.9)"]
    assert len(candidates_of(tiny(candidates=None))) >= 6
    assert candidates_of(tiny(candidates=[])) == []


def test_the_best_is_the_most_accurate_of_those_that_help_enough() -> None:
    weak, good, strong = point("w", Severity.HIGH, 90), point("g", Severity.LOW, 80), point("s", Severity.INFO, 40)
    assert best_of([weak, good, strong]) is good
    assert best_of([weak, good, strong], Accuracy(82, 100)) is good
    assert best_of([weak, good, strong], Accuracy(90, 100)) is None, "ten points are too many"
    assert best_of([weak]) is None
    assert best_of([point("e", Severity.INFO, 99, status="errored")]) is None


def test_advice_says_what_it_knows() -> None:
    before = Accuracy(81, 100)
    bad = point("", Severity.CRITICAL, 90).finding
    good, knowing = point("g", Severity.LOW, 80), point("k", Severity.LOW, 80, used=("defense",))
    assert advice(bad, before, [good], good) == (
        "g(): critical to low, accuracy -1.0 points; tested against an attacker who does not know of it."
    )
    assert "who knows it" in advice(bad, before, [knowing], knowing)
    weak = point("w", Severity.HIGH, 90)
    assert advice(bad, before, [weak], None).startswith(
        "None of the 1 settings tried surely brings its advantage below 0.1"
    )
    dear = advice(bad, Accuracy(95, 100), [weak, good], None)
    assert dear.endswith("the cheapest that brings it down is g(), accuracy -15.0 points.")
    private = replace(good, epsilon=3.0, delta=1e-5)
    assert "epsilon 3.0 at delta 1e-05 with secure noise" in advice(bad, before, [private], private)
    assert "could be measured" in advice(bad, before, [point("e", Severity.INFO, 9, status="errored")], None)


def test_what_is_undecided_is_not_recommended() -> None:
    before, bad = Accuracy(81, 100), point("", Severity.CRITICAL, 90).finding
    good = point("g", Severity.INFO, 80)
    wide = replace(good, finding=good.finding.model_copy(update={"state": "undecided"}))
    assert best_of([good], before) is good
    assert best_of([wide], before) is None
    assert "least is left by g(): 0.0, undecided" in advice(bad, before, [wide], None)


def test_really_trained_and_really_attacked(audited: Audited) -> None:
    _, result = audited
    finding = next(finding for finding in result["findings"] if finding["id"] == "llbg/curious-server")
    weak, strong = finding["defenses"]["tried"]
    assert (weak["setting"], strong["setting"]) == ("clip-noise(sigma=0.001)", "clip-noise(sigma=1.0)")
    assert weak["score"]["value"] == pytest.approx(finding["score"]["value"], abs=0.2)
    assert strong["advantage"] < 0.1 < finding["advantage"]
    assert strong["accuracy"]["n"] == result["accuracy"]["n"] == 359
    assert finding["defenses"]["best"] is None, "noise that hides labels costs more than two points"
    assert strong["setting"] in finding["defenses"]["advice"]
    assert weak["adaptive"] is strong["adaptive"] is False
    assert weak["epsilon"] > strong["epsilon"] > 0


def test_a_family_is_as_safe_as_its_worst_attack(audited: Audited) -> None:
    _, result = audited
    (family,) = result["families"]
    tried = [finding["defenses"]["tried"] for finding in result["findings"] if finding["defenses"]]
    for index, row in enumerate(family["settings"]):
        assert row["attacks"] == len(tried)
        assert row["advantage"] == max(points[index]["advantage"] for points in tried)
    assert summarise_leaks([]) == []


def tried(setting: str, status: Any, advantage: float | None) -> DefenseTrial:
    return DefenseTrial(
        setting=setting,
        defense="secure-aggregation",
        options={},
        status=status,
        why="",
        severity=Severity.LOW if advantage else None,
        advantage=advantage,
        score=ScoreFigures(),
        accuracy=AccuracyFigures(value=0.9, low=0.8, high=0.95, n=100),
        accuracy_change=0.0,
        epsilon=None,
        delta=None,
        adaptive=False,
    )


def finding(*points: DefenseTrial) -> Finding:
    defenses = DefensesTried(tried=list(points), best=None, advice="")
    return Finding(
        id="a/b", attack="a", title="A", adversary="b", family="labels", severity=Severity.HIGH, defenses=defenses
    )


def test_attacks_that_a_defense_blinds_are_counted_apart() -> None:
    """What can still be run is the measure; where nothing can, that is said and is no measurement."""
    blind, off = tried("sums", "skipped", None), tried("off", "skipped", None)
    (leak,) = summarise_leaks([finding(tried("sums", "ok", 0.3), off), finding(blind, off)])
    sums, none = leak.settings
    assert (sums.advantage, sums.attacks, sums.blinded) == (0.3, 2, 1)
    assert (none.advantage, none.severity, none.blinded) == (None, None, 2)
    assert "least is left by sums: 0.3" in leak.advice
    assert leak.advice.endswith("No attack finds what it needs under off.")
    (failed,) = summarise_leaks([finding(tried("sums", "errored", None), off), finding(blind, off)])
    assert failed.settings[0].advantage is None, "an attack that failed proves nothing"
