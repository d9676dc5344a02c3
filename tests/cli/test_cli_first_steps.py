"""First steps: `init` writes a plan that runs, `doctor` says what an audit of it would do."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedspill import run_audit
from fedspill.audit.examination import examine
from fedspill.audit.why_not import skipped
from fedspill.cli.main import app
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.first_plan import FirstAnswers, plan_text
from fedspill.deployment.plan import Plan, check_plan, read_plan
from fedspill.errors import NotKnown
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace


def plan_of(*attacks: str, **more: object) -> Plan:
    """A tiny federation on digits; no attacks named: all."""
    federation = {"clients": 3, "rounds": 1}
    tiny = {"model": {"name": "mlp", "widths": [8]}, "federation": federation, "candidates": [], **more}
    return check_plan({**tiny, "attacks": list(attacks)} if attacks else tiny, "a plan")


def test_the_plan_of_six_answers_is_what_was_answered_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    words = ["init", str(path), "--data", "digits", "--model", "mlp", "--clients", "4", "--rounds", "2"]
    done = CliRunner().invoke(app, [*words, "--lr", "0.2", "--batch-size", "8"])
    assert done.exit_code == 0, done.output
    plan = read_plan(path)
    assert (plan.federation.clients, plan.federation.rounds) == (4, 2)
    assert (plan.training.lr, plan.training.batch_size) == (0.2, 8)
    found = examine(plan.model_copy(update={"attacks": plan_of("ebi", "labels").attacks}))
    assert "2 rounds were trained" in found.tried[0]
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
    plan = plan_of("ami", "aai", "llbg-aux", "rmia", adversary_data={"per_class": per_class})
    facts = dict(examine(plan).more)
    assert ("[adversary_data] per_class = 10" in facts) == expected
    assert facts["[adversary_data] shadow = 500"] == ["ami"], "aai would want an attribute besides"


def test_doctor_advises_no_more_data_than_there_are(tmp_path: Path) -> None:
    lines = [f"{20 + n % 70},{n % 9},{int(n % 8 == 0)}" for n in range(100)]
    (tmp_path / "few.csv").write_text("\n".join(["age,stay,ill", *lines]))
    data = {"name": "csv", "path": str(tmp_path / "few.csv"), "label": "ill"}
    none, shape = {"per_class": 0}, {"partition": {"name": "iid"}, "federation": {"clients": 2, "rounds": 1}}
    found = examine(plan_of("ami", "llbg-aux", data=data, adversary_data=none, **shape))
    assert found.description.startswith("few.csv, 2 clients (2 a round), 1 round, mlp with"), "by the user's own names"
    facts = [fact for fact, _ in found.more]
    assert facts == ["[adversary_data] shadow = 40", "[adversary_data] per_class = 5"]
    for fact in facts:
        name, value = fact.removeprefix("[adversary_data] ").split(" = ")
        Deployment.of(plan_of(data=data, adversary_data={name: int(value)}, **shape))


def test_doctor_tells_of_a_network_that_ends_in_a_softmax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "softened.py").write_text(
        "from torch import nn\n\n\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Softmax(1))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    said = examine(plan_of("ebi", model={"name": "custom", "factory": "softened:net"})).tried
    assert any("softmax" in line for line in said)
    assert not any("softmax" in line for line in examine(plan_of("ebi")).tried)


def test_a_reason_is_told_as_a_whole_sentence() -> None:
    assert skipped("Not read: the network does not have two linear layers, one behind the other.") == (
        "the network does not have two linear layers, one behind the other"
    )


def test_what_nobody_gave_an_adversary_is_named_in_a_few_words() -> None:
    with pytest.raises(NotKnown) as refused:
        MemoryTrace({}).view(CURIOUS_SERVER).knows("architecture")
    assert skipped(str(refused.value)) == "not given: the model's code"


def test_doctor_gives_one_reason_for_each_attack_that_nobody_runs() -> None:
    found = examine(plan_of("ebi", "dager", "aai", "records", "dlg", "loki", "planted-inputs", "whole-determination"))
    reasons = {attack: reason for reason, attacks in found.reasons for attack in attacks}
    assert sum(len(attacks) for _, attacks in found.reasons) == len(reasons)
    assert all(reasons.values())
    running = {attack for _, attacks, _ in found.runs for attack in attacks.split(", ")}
    assert not running & reasons.keys()
    assert reasons["dager"] == "the inputs are no tokens"
    assert "set aside" in reasons["aai"]
    assert reasons["records"] == "the data are no table"
    assert reasons["dlg"] == "batches of more than 4 samples are not tried", "it says so only when it is tried"
    assert reasons["loki"].startswith("LOKI is planted in convolutions")
    assert "compared" in reasons["whole-determination"], "one round has no two models"
    assert running == {"ebi", "planted-inputs"}


@pytest.mark.slow
def test_doctor_promises_what_the_audit_tests(tmp_path: Path) -> None:
    lines = [f"{20 + n % 70},{'mf'[n % 2]},h{n % 3},{int(n % 70 > 30)}" for n in range(300)]
    (tmp_path / "people.csv").write_text("\n".join(["age,sex,hospital,ill", *lines]))
    data = {"name": "csv", "path": str(tmp_path / "people.csv"), "label": "ill", "user": "hospital"}
    federation = {"clients": 3, "rounds": 3}
    plan = plan_of(data=data, partition={"name": "by-user"}, federation=federation, adversary_data={"per_class": 5})
    promised = {attack for _, attacks, _ in examine(plan).runs for attack in attacks.split(", ")}
    result = run_audit(plan, tmp_path / "audit")
    assert promised == {finding.attack for finding in result.findings if finding.status != "skipped"}


def test_a_dry_run_names_no_attack_on_what_the_plan_has_not(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'attacks = ["ebi", "dager", "tableak", "planted"]\nadversaries = ["curious-server", "malicious-server"]\n'
        'candidates = []\n[model]\nname = "mlp"\nwidths = [8]\n[federation]\nclients = 3\nrounds = 1\n'
    )
    done = CliRunner().invoke(
        app, ["audit", str(tmp_path / "plan.toml"), "--dry-run", "--json", str(tmp_path / "cost")]
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "cost").read_text())["runs"] == ["ebi/curious-server", "ebi/malicious-server"]
    assert all(why in done.output for why in ("the inputs are no tokens", "the data are no table", "no attribute"))
