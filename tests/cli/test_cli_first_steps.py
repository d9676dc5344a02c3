"""First steps: `init` writes a plan that runs, `doctor` says what an audit of it would do."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedspill.audit.examination import examine
from fedspill.cli.main import app
from fedspill.deployment.first_plan import FirstAnswers, plan_text
from fedspill.deployment.plan import check_plan, read_plan


def test_the_plan_of_six_answers_is_what_was_answered_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    words = ["init", str(path), "--data", "digits", "--model", "mlp", "--clients", "4", "--rounds", "2"]
    done = CliRunner().invoke(app, [*words, "--lr", "0.2", "--batch-size", "8"])
    assert done.exit_code == 0, done.output
    plan = read_plan(path)
    assert (plan.federation.clients, plan.federation.rounds) == (4, 2)
    assert (plan.training.lr, plan.training.batch_size) == (0.2, 8)
    found = examine(plan)
    assert "One round was trained" in found.tried[0]
    assert any("labels" in row[1] for row in found.runs)


def test_questions_that_are_not_answered_by_options_are_asked(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    done = CliRunner().invoke(app, ["init", str(path), "--data", "digits"], input="logistic\n3\n2\n0.1\n8\n")
    assert done.exit_code == 0, done.output
    assert read_plan(path).model.name == "logistic"


def test_a_table_brings_its_columns_and_its_users() -> None:
    answers = FirstAnswers("rows.csv", "mlp", 4, 2, 0.1, 8, label="ill", user="hospital", leave_out=("id",))
    content = tomllib.loads(plan_text(answers))
    assert content["data"] == {
        "name": "csv",
        "path": "rows.csv",
        "label": "ill",
        "user": "hospital",
        "leave_out": ["id"],
    }
    assert content["partition"] == {"name": "by-user"}


def test_a_plan_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("seed = 1\n")
    assert CliRunner().invoke(app, ["init", str(path), "--data", "digits"]).exit_code != 0
    assert path.read_text() == "seed = 1\n"


@pytest.mark.parametrize(("per_class", "expected"), [(0, True), (10, False)])
def test_doctor_says_what_one_more_fact_would_add(per_class: int, expected: bool) -> None:
    plan = check_plan(
        {
            "model": {"name": "mlp", "widths": [8]},
            "federation": {"clients": 3, "rounds": 1},
            "adversary_data": {"per_class": per_class},
        },
        "a plan",
    )
    facts = dict(examine(plan).more)
    assert ("[adversary_data] per_class = 10" in facts) == expected
    assert "[adversary_data] shadow = 500" in facts


def test_doctor_gives_one_reason_for_each_attack_that_nobody_runs() -> None:
    plan = check_plan({"model": {"name": "mlp", "widths": [8]}, "federation": {"clients": 3, "rounds": 1}}, "a plan")
    found = examine(plan)
    reasons = {attack: reason for reason, attacks in found.reasons for attack in attacks}
    assert sum(len(attacks) for _, attacks in found.reasons) == len(reasons)
    assert all(reasons.values())
    running = {attack for _, attacks, _ in found.runs for attack in attacks.split(", ")}
    assert not running & reasons.keys()
    assert reasons["dager"] == "the inputs are no tokens"
    assert "set aside" in reasons["aai"]
