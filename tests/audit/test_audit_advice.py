"""Advice: what a defense can act on, what it needs, which combination is proposed, and lines that can be pasted."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from fedspill.audit.advice import (
    acts_on,
    advised,
    closes,
    flower_lines,
    gain,
    needs_of,
    plan_lines,
    proposals,
)
from fedspill.audit.matrix import Pair
from fedspill.audit.result import AccuracyFigures, Advice, LeakChange, SettingSummary
from fedspill.audit.severity import Severity
from fedspill.audit.target import DefenseSetting
from fedspill.deployment.plan import check_plan


def pair(attack: str, adversary: str) -> Pair:
    return Pair(attack, adversary, {})


def test_only_what_can_act_on_an_attack_is_tried_on_it() -> None:
    guard, sums, noise = (DefenseSetting.one(name) for name in ("guard", "secure-aggregation", "clip-noise"))
    passive, active = pair("llbg", "curious-server"), pair("planted-membership", "malicious-server")
    assert not acts_on(guard, passive), "nobody alters the model there"
    assert acts_on(guard, active)
    assert acts_on(sums, passive)
    assert not acts_on(sums, active), "it sees sums only as it is"
    assert acts_on(sums, pair("membership", "curious-server")), (
        "it needs models alone, and reads updates where they are"
    )
    assert not acts_on(sums, pair("membership", "curious-client")), "it sees no update of others"
    assert acts_on(noise, passive)
    assert acts_on(noise, active)
    assert acts_on(DefenseSetting((*guard.chosen, *noise.chosen)), passive)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixed-classes", "public labelled data"),
        ("secure-aggregation", "secure aggregation among the clients"),
        ("guard", "check the models"),
        ("clip-noise", "alter what it sends"),
        ("dp-sgd", "training code"),
    ],
)
def test_what_a_defense_needs_is_said(name: str, said: str) -> None:
    (defense,) = DefenseSetting.one(name).defenses()
    assert any(said in need for need in needs_of(defense))


def test_lines_to_paste_are_a_plan_and_python() -> None:
    chosen = [advised("clip-noise", {"clip": 1.0, "sigma": 0.1}), advised("secure-aggregation", {})]
    plan = check_plan(tomllib.loads(plan_lines(chosen)), "the advice")
    assert plan.federation.secure_aggregation
    assert [(choice.name, choice.options) for choice in plan.defenses] == [("clip-noise", {"clip": 1.0, "sigma": 0.1})]
    lines = flower_lines(chosen)
    compile(lines, "the advice", "exec")
    assert "mod(ClipNoise(clip=1.0, sigma=0.1))" in lines


def test_nothing_is_pasted_into_a_flower_client_that_no_mod_could_do() -> None:
    assert flower_lines([advised("embedding-noise", {"sigma": 0.2}), advised("redrawn-labels", {})]) == ""


def advice(name: str, change: float, **left: Severity) -> Advice:
    """A defense that leaves these levels of leaks that were high."""
    after: Any = {
        leak: (None, "not found") if level == Severity.INFO else (level, "found") for leak, level in left.items()
    }
    changes = [
        LeakChange(leak=leak, title=leak, before=Severity.HIGH, after=level, state=state, advantage=0.0, adaptive=False)
        for leak, (level, state) in after.items()
    ]
    accuracy = AccuracyFigures(value=0.9 + change, low=0.8, high=1.0, n=100)
    return Advice(
        defenses=[advised(name, {})],
        changes=changes,
        accuracy=accuracy,
        accuracy_change=change,
        epsilon=None,
        plan_lines="",
        flower_lines="",
    )


def test_the_best_combination_covers_all_leaks_and_is_affordable() -> None:
    sums = advice("secure-aggregation", 0.0, labels=Severity.INFO, membership=Severity.HIGH)
    guard = advice("guard", -0.01, membership=Severity.INFO)
    dear = advice("mixed-classes", -0.015, labels=Severity.INFO, membership=Severity.LOW)
    first = proposals([sums, guard, dear])[0]
    assert {defense.name for defense in first.chosen} == {"secure-aggregation", "guard"}
    assert first.chosen[-1].name == "secure-aggregation"
    alone = proposals([advice("mixed-classes", 0.0, labels=Severity.INFO, membership=Severity.INFO), sums, guard])[0]
    assert [defense.name for defense in alone.chosen] == ["mixed-classes"], "fewer are better where they do as much"


@pytest.mark.parametrize(("state", "levels"), [("not found", 3), ("cannot", 3), ("undecided", 0), ("errored", 0)])
def test_only_what_was_measured_and_decided_is_an_improvement(state: Any, levels: int) -> None:
    change = LeakChange(
        leak="labels", title="", before=Severity.HIGH, after=None, state=state, advantage=0.0, adaptive=True
    )
    assert gain([change]) == levels


@pytest.mark.parametrize("undecided", [False, True])
def test_a_setting_whose_interval_is_too_wide_closes_nothing(undecided: bool) -> None:
    setting = SettingSummary(
        setting="s",
        title="",
        severity=Severity.INFO,
        undecided=undecided,
        advantage=0.02,
        attacks=1,
        blinded=0,
        accuracy=AccuracyFigures(value=0.9, low=0.8, high=1.0, n=100),
        accuracy_change=0.0,
        epsilon=None,
        adaptive=True,
    )
    assert closes(setting) is not undecided
