"""A recording for certain leaks holds what their attacks read, and they read the same out of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.errors import PlanError
from fedspill.reads import EVERYTHING, HEAD_OF_UPDATES, Reads, read_by_any
from fedspill.registry import entries, load, make
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "widths": [16]},
    "federation": {"clients": 6, "rounds": 3},
    "training": {"lr": 0.1, "batch_size": 16, "steps": 2},
}


def plan(**changes: Any) -> Plan:
    return check_plan({**SMALL, **changes}, "the plan of this test")


def recorded(deployment: Deployment) -> MemoryTrace:
    trace = MemoryTrace(deployment.protocol(), deployment.keep())
    deployment.federation(trace).run()
    return trace


def test_for_attacks_on_the_last_layer_nothing_but_the_last_layer_is_recorded() -> None:
    deployment = Deployment.of(plan(attacks=["llg", "ebi", "membership"], record={"leaks": ["labels"]}))
    trace = recorded(deployment)
    assert {message.kind for message in trace.messages()} == {"update", "aggregate"}
    head = {trace.protocol["head_weight"], trace.protocol["head_bias"]}
    assert all(set(message.tensors) == head for message in trace.messages())
    whole = Deployment.of(plan())
    assert deployment.recording_bytes(deployment.keep()) == sum(message.nbytes for message in trace.messages())
    assert whole.recording_bytes(whole.keep()) == sum(message.nbytes for message in recorded(whole).messages())


def test_for_an_attack_that_reads_all_or_code_of_others_all_is_recorded() -> None:
    for attacks, leak in ((["llg", "decaf"], "composition"), (["llg", "nowhere.at_all:Attack"], "labels")):
        keep = Deployment.of(plan(attacks=["llg"])).keep()
        deployment = Deployment.of(plan(attacks=attacks[:1], record={"leaks": [leak]}))
        named = deployment.plan.model_copy(update={"attacks": plan_attacks(attacks)})
        assert (
            Deployment(named, deployment.dataset, deployment.shares, deployment.settings, deployment.build_model).keep()
            == keep
        )


def test_behind_a_defense_all_is_recorded() -> None:
    """Attacks then read other layers too; a recording without them would praise a defense that hides the last one."""
    deployment = Deployment.of(plan(attacks=["llg"], record={"leaks": ["labels"], "rounds": [0]}))
    assert deployment.keep() != deployment.plan.record.keep()
    defended = deployment.with_defenses(make("defenses", "frozen-head"))
    assert defended.keep() == deployment.plan.record.keep()


def plan_attacks(names: list[str]) -> Any:
    return Plan.model_validate({"attacks": names}).attacks


def test_a_leak_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="labels"):
        plan(record={"leaks": ["label"]})


def test_plans_that_say_nothing_of_it_are_the_same_audits_as_before() -> None:
    assert "leaks" not in plan().essence()["record"]
    assert plan(record={"leaks": ["labels"]}).essence()["record"]["leaks"] == ["labels"]


def test_together_attacks_read_what_any_of_them_reads() -> None:
    assert read_by_any([HEAD_OF_UPDATES, Reads("all", "none", "none")]) == Reads("all", "head", "head")
    assert read_by_any([]) == EVERYTHING


def _declares_less(name: str) -> bool:
    declared: bool = load("attacks", name).reads != EVERYTHING
    return declared


def _param(name: str) -> Any:
    rehearses = name in ("labels", "composition-by-counts")
    return pytest.param(name, marks=pytest.mark.slow) if rehearses else name


@pytest.mark.parametrize(
    "name", [_param(entry.name) for entry in entries("attacks") if not entry.is_plugin and _declares_less(entry.name)]
)
def test_what_an_attack_says_that_it_reads_is_enough(name: str) -> None:
    """The same guess out of a recording of that as out of a whole one."""
    leak = load("attacks", name).leak.name
    threat = adversary("curious-server")
    guesses = []
    for record in ({}, {"leaks": [leak]}):
        deployment = Deployment.of(plan(attacks=[name], record=record))
        outcome = run_attack(
            make("attacks", name), recorded(deployment), threat, knowledge=deployment.knowledge(), seed=1
        )
        assert outcome.status == "ok", outcome.why
        guesses.append(outcome.measured[outcome.metric].values)
    assert torch.allclose(torch.tensor(guesses[0]), torch.tensor(guesses[1]))
