"""Every command: what it prints, writes and exits with."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from fedspill.metric import Score
from fedspill.registry import entries
from fedspill.reproduce import Row, Table
from fedspill.threat import ADVERSARIES
from fedspill.version import __version__

FAMILIES = ["attacks", "defenses", "metrics", "datasets", "partitions", "models", "adversaries", "papers"]


def names_of(family: Any) -> list[str]:
    return list(ADVERSARIES) if family == "adversaries" else [entry.name for entry in entries(family)]


@pytest.mark.parametrize("family", FAMILIES)
def test_list_shows_and_writes_what_there_is(run: Run, tmp_path: Path, family: str) -> None:
    result = run("list", family, "--json", tmp_path / "list.json")
    assert result.code == 0
    found = json.loads((tmp_path / "list.json").read_text())
    assert [item["name"] for item in found] == names_of(family)
    assert all(set(item) >= {"name", "title", "paper"} for item in found)
    assert all(isinstance(value, str) for item in found for value in item.values())
    assert all(item["name"] and item["title"] for item in found)
    for item in found:
        assert item["name"] in result.said


def test_list_of_nothing_known_is_a_usage_error(run: Run) -> None:
    result = run("list", "attaks")
    assert result.code == 2
    assert "attaks" in result.said


def test_list_and_help_start_without_torch() -> None:
    for arguments in (["list", "attacks"], ["list", "datasets"], ["list", "papers"], ["--help"], ["audit", "--help"]):
        script = (
            "import sys; from fedspill.cli.main import main; sys.argv = ['fedspill', *sys.argv[1:]]\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'pydantic'} & set(sys.modules)\n"
            "sys.exit(', '.join(sorted(heavy)) or 0)"
        )
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stderr)


def test_the_command_is_there_as_a_module_and_survives_a_bare_locale() -> None:
    bare = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "60"}
    for arguments in (["list", "datasets"], ["explain", "llbg-aux"]):
        done = subprocess.run(
            [sys.executable, "-m", "fedspill", *arguments], capture_output=True, env=bare, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["llbg", "llbg-gamma", "digits", "mlp", "dirichlet", "003/1", "curious-client"])
def test_explain_says_what_a_thing_is(run: Run, tmp_path: Path, name: str) -> None:
    result = run("explain", name, "--json", tmp_path / "x.json")
    assert result.code == 0
    facts = json.loads((tmp_path / "x.json").read_text())
    assert facts["name"] == name
    assert facts["title"] in result.said


def test_explain_of_nothing_known_names_the_nearest(run: Run) -> None:
    result = run("explain", "llbq")
    assert result.code == 2
    assert "Did you mean 'llbg'?" in result.said


# simulate and attack


@pytest.fixture
def trace(run: Run, plan: Path, tmp_path: Path) -> Path:
    result = run("simulate", plan, "--trace", tmp_path / "run.trace", "--json", tmp_path / "simulate.json")
    assert result.code == 0, result.err
    assert "at most" in result.said
    assert "kB" in result.said
    written = json.loads((tmp_path / "simulate.json").read_text())
    assert written["rounds"] == 2
    assert 0 <= written["accuracy"] <= 1
    return tmp_path / "run.trace"


def test_simulate_then_attack(run: Run, trace: Path, tmp_path: Path) -> None:
    result = run("attack", "llbg", "--trace", trace, "--json", tmp_path / "attack.json")
    assert result.code == 0, result.err
    written = json.loads((tmp_path / "attack.json").read_text())
    assert (written["attack"], written["adversary"]) == ("llbg", "curious-server")
    score = written["scores"]["label-asr"]
    assert set(score) == {"value", "low", "high", "n", "chance", "status"}
    assert (score["n"], score["status"]) == (6, "ok")
    assert score["low"] <= score["value"] <= score["high"]
    assert score["value"] > score["chance"]
    assert "label-asr" in result.said


def test_the_size_said_before_recording_is_not_exceeded(run: Run, trace: Path) -> None:
    recorded = sum(path.stat().st_size for path in (trace / "rounds").iterdir())
    model = (64 * 16 + 16 + 16 * 10 + 10) * 4
    assert recorded >= 2 * 5 * model
    assert recorded < 2 * 5 * model + 20_000  # headers


@pytest.mark.parametrize("name", ["llg", "ebi", "llbg-gamma", "llbg-aux", "labels"])
def test_every_label_attack_runs_from_the_command_line(run: Run, trace: Path, name: str) -> None:
    assert run("attack", name, "--trace", trace).code == 0


def test_options_of_an_attack_are_set_and_checked(run: Run, trace: Path) -> None:
    assert run("attack", "llbg-gamma", "--trace", trace, "--set", "gamma=0.2").code == 0
    for option, says in (("gama=0.2", "Did you mean 'gamma'?"), ("gamma=much", "much"), ("gamma", "KEY=VALUE")):
        result = run("attack", "llbg-gamma", "--trace", trace, "--set", option)
        assert result.code == 2
        assert says in result.said


def test_an_adversary_that_cannot_is_told_what_it_lacks(run: Run, trace: Path) -> None:
    result = run("attack", "llbg", "--trace", trace, "--adversary", "curious-client")
    assert result.code == 2
    assert "llbg cannot be run by curious-client: it needs to see" in result.said
    assert run("attack", "llbg", "--trace", trace, "--adversary", "nobody").code == 2
    assert run("attack", "llbg", "--trace", trace, "--adversary", "curious-server-secagg").code == 0


def test_a_damaged_trace_is_refused_with_code_4(run: Run, trace: Path) -> None:
    path = trace / "rounds" / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    result = run("attack", "llbg", "--trace", trace)
    assert result.code == 4
    assert "altered" in result.said
    assert run("attack", "llbg", "--trace", trace, "--partial").code == 0
    assert run("attack", "llbg", "--trace", trace.parent / "none").code == 4


def test_a_folder_in_use_and_a_device_that_is_not_there_are_usage_errors(run: Run, plan: Path, trace: Path) -> None:
    assert run("simulate", plan, "--trace", trace).code == 2
    result = run("simulate", plan, "--trace", trace.parent / "other", "--device", "tpu")
    assert result.code == 2
    assert "'tpu' is not available" in result.said
    assert not (trace.parent / "other").exists()


def test_a_limit_stops_an_attack(run: Run, trace: Path) -> None:
    assert run("attack", "llbg", "--trace", trace, "--limit", "60").code == 0
    assert run("attack", "llbg", "--trace", trace, "--limit", "0").code == 2


def test_the_same_plan_gives_the_same_trace(run: Run, plan: Path, trace: Path) -> None:
    again = trace.parent / "again.trace"
    assert run("simulate", plan, "--trace", again).code == 0
    for path in [*trace.rglob("*.safetensors"), trace / "index.jsonl", trace / "trace.json"]:
        assert path.read_bytes() == (again / path.relative_to(trace)).read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data = 'digts'", "Did you mean 'digits'?"),
        ("[training]\nlr = -1", "lr"),
        ("[training]\nlearning_rate = 0.1", "learning_rate"),
        ("[training]\noptimizer = 'adamm'", "adam"),
        ("[federation]\nweighting = 'exmaples'", "exmaples"),
        ("[federation]\nclients = 0", "clients"),
        ("model = {name = 'mlp', width = 3}", "width"),
        ("= 3", "TOML"),
        ("adversaries = ['curious-serve']", "Did you mean 'curious-server'?"),
    ],
)
def test_a_mistake_in_a_plan_is_named(run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    result = run("simulate", tmp_path / "bad.toml", "--trace", tmp_path / "t")
    assert result.code == 2
    assert says in result.said
    assert not (tmp_path / "t").exists()


def test_all_mistakes_of_a_plan_are_named_at_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("data = 'digts'\nmodel = 'mpl'\nseed = -1\nattacks = ['llbh']")
    result = run("simulate", tmp_path / "bad.toml", "--trace", tmp_path / "t")
    assert result.code == 2
    for word in ("digits", "mlp", "seed", "llbg"):
        assert word in result.said


def test_a_plan_that_is_not_there_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        assert run("simulate", path, "--trace", tmp_path / "t").code == 2


def test_data_that_are_not_there_are_named_with_their_source(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("data = 'mnist'")
    result = run("simulate", tmp_path / "plan.toml", "--trace", tmp_path / "t", "--data-dir", tmp_path)
    assert result.code == 2
    assert "Get it from" in result.said


def test_json_that_cannot_be_written_is_said(run: Run, tmp_path: Path) -> None:
    result = run("list", "attacks", "--json", tmp_path / "none" / "x.json")
    assert result.code == 2
    assert "cannot be written" in result.said


def test_a_fault_of_our_own_is_neither_a_success_nor_a_finding_and_quotes_no_data(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("patient 17 has label 3")

    monkeypatch.setattr("fedspill.registry.entries", fails)
    result = run("list", "attacks")
    assert result.code == 3
    assert "KeyError" in result.said
    assert "patient" not in result.said


def test_an_interrupted_command_says_so_with_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedspill.registry.entries", interrupted)
    assert run("list", "attacks").code == 130


def test_without_arguments_there_is_help_and_an_unknown_command_is_named(run: Run) -> None:
    assert "Usage" in run().said
    result = run("atack")
    assert result.code == 2
    assert "atack" in result.said


def test_a_federation_of_one_client_and_one_round_can_be_attacked_with_json(
    run: Run, plan: Path, tmp_path: Path
) -> None:
    """One origin tells nothing of the spread: its interval is all that is possible, and JSON has no infinity."""
    plan.write_text(plan.read_text().replace("clients = 3", "clients = 1").replace("rounds = 2", "rounds = 1"))
    assert run("simulate", plan, "--trace", tmp_path / "t").code == 0
    result = run("attack", "llbg", "--trace", tmp_path / "t", "--json", tmp_path / "x.json")
    assert result.code == 0, result.said
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["scores"]["label-asr"]["n"] == 1
    wide = written["scores"]["label-count-error"]
    assert wide["low"] == 0
    assert wide["high"] > wide["value"]


def test_a_trace_cannot_name_code_to_run(run: Run, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace comes from outside; the plan in it may name `package.module:function`, which must not be called."""
    (tmp_path / "canary_module.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sang').touch()\n\ndef sing(*arguments):\n    return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("simulate", plan, "--trace", tmp_path / "t").code == 0
    header = json.loads((tmp_path / "t" / "trace.json").read_text())
    header["protocol"]["plan"]["data"] = {"name": "custom", "factory": "canary_module:sing"}
    header["protocol"]["plan"]["model"] = {"name": "custom", "factory": "canary_module:sing"}
    _reforge(tmp_path / "t", header)
    run("attack", "llbg", "--trace", tmp_path / "t")
    assert not (tmp_path / "sang").exists()


def _reforge(folder: Path, header: dict[str, Any]) -> None:
    from fedspill.files import dump_json, sha256
    from fedspill.trace_folder import _chain

    (folder / "trace.json").write_bytes(dump_json(header))
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_bytes().splitlines()]
    lines[0]["trace"] = sha256(folder / "trace.json")
    check, out = "", b""
    for line in lines:
        line.pop("check")
        check = _chain(check, line)
        out += dump_json({**line, "check": check}) + b"\n"
    (folder / "index.jsonl").write_bytes(out)


# audit, lightly: tests/audit has the rest


def test_audit_runs_and_writes_its_report(run: Run, plan: Path, tmp_path: Path) -> None:
    plan.write_text("attacks = ['llbg']\nadversaries = ['curious-server']\n" + plan.read_text())
    result = run("audit", plan, "--out", tmp_path / "audit", "--json", tmp_path / "audit.json")
    assert result.code == 0, result.said
    assert (tmp_path / "audit" / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")
    written = json.loads((tmp_path / "audit.json").read_text())
    assert any(finding["attack"] == "llbg" for finding in written["findings"])
    assert "report.html" in result.said


# reproduce


class Quick(Table):
    """A table that takes no time."""

    name = "999/1"
    title = "A table"
    paper = "999"

    def rows(self, run: Any) -> Any:
        cell = {"attack": "llbg", "model": "mlp"}
        yield Row(cell, "paper", "ASR", 99.6, 99.1, 98.0, 99.9, 100, 25.0, "reproduced", f"scale {run.scale}")
        yield Row(cell, "baseline", "ASR", None, None, None, None, 0, None, "not runnable", "no data")


def test_reproduce_prints_and_writes_its_rows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspill.reproduce.table", lambda name: Quick())
    result = run("reproduce", "999/1", "--scale", "full", "--json", tmp_path / "x.json")
    assert result.code == 0
    assert "99.10 [98.00, 99.90]" in result.said
    written = json.loads((tmp_path / "x.json").read_text())
    assert (written["paper"], written["table"], written["scale"]) == ("999", "1", "full")
    expected = {"cell", "by", "metric", "published", "measured", "low", "high", "n", "chance", "verdict", "note"}
    assert [set(row) for row in written["rows"]] == [expected] * 2
    assert [row["by"] for row in written["rows"]] == ["paper", "baseline"]
    assert written["rows"][0]["note"] == "scale full"
    assert written["rows"][1]["measured"] is None


def test_reproduce_of_an_unknown_table_names_the_nearest(run: Run) -> None:
    result = run("reproduce", "003/1x")
    assert result.code == 2
    assert "003/1" in result.said
    assert run("reproduce", "003/1", "--scale", "huge").code == 2


def test_a_table_without_its_data_says_so_row_by_row(run: Run, tmp_path: Path) -> None:
    result = run("reproduce", "003/1", "--data-dir", tmp_path, "--json", tmp_path / "x.json")
    assert result.code == 0
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert rows
    assert {row["verdict"] for row in rows} == {"not runnable"}
    assert all("Get it from" in row["note"] for row in rows)
    assert {99.56, 81.93, 79.11} <= {row["published"] for row in rows}


@pytest.mark.parametrize(
    ("value", "low", "high", "printed", "verdict"),
    [
        (0.99, 0.98, 1.0, 99.6, "reproduced"),
        (0.90, 0.85, 0.95, 99.6, "not reproduced"),
        (0.90, 0.80, 1.0, 99.6, "reproduced"),
        (0.90, 0.88, 0.92, 80.0, "exceeded"),
        (0.90, 0.88, 0.92, None, "not runnable"),
        (0.50, 0.0, 1.0, 99.6, "not runnable"),  # an interval that holds everything reproduces nothing
    ],
)
def test_a_verdict_needs_tolerance_or_interval(
    value: float, low: float, high: float, printed: float | None, verdict: str
) -> None:
    from fedspill.reproduce import verdict as judge

    assert judge(Score(value, low, high, 30, 0.1), printed, tolerance=2.0, unit=100) == verdict
    assert judge(Score(value, low, high, 2, 0.1), printed, tolerance=2.0, unit=100) == "not runnable"
    assert judge(Score.unscored("broken", 30), printed, tolerance=2.0, unit=100) == "not runnable"


def test_a_line_judges_what_was_printed_by_what_was_attacked() -> None:
    from fedspill.reproduce import Row

    def line(by: str, printed: float | None) -> str:
        return Row({"a": "b"}, by, "m", printed, 1.0, 0.5, 1.5, 9, 0.1, "not reproduced").line()  # type: ignore[arg-type]

    assert line("paper", 3.0).endswith("not reproduced")
    assert line("baseline", 3.0).endswith("0.10")
    assert line("fedspill", None).endswith("0.10")


def test_verdicts_of_errors_go_the_other_way() -> None:
    from fedspill.reproduce import verdict as judge

    score = Score(0.3, 0.29, 0.31, 30, 1.0)
    assert judge(score, 0.5, tolerance=0.05, higher_is_better=False) == "exceeded"
    assert judge(score, 0.1, tolerance=0.05, higher_is_better=False) == "not reproduced"


def test_the_make_file_and_the_package_agree_on_the_command() -> None:
    assert shutil.which("fedspill", path=str(Path(sys.executable).parent)) is not None


def test_it_says_its_version(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.out.strip()) == (0, f"fedspill {__version__}")
