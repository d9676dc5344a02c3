"""`fedspill schema`: printed, written, and held against files."""

import json
from pathlib import Path

import pytest
from command_line import Run


@pytest.mark.parametrize("what", ["plan", "result"])
def test_the_schema_is_printed_and_written_with_its_version(run: Run, tmp_path: Path, what: str) -> None:
    printed = run("schema", what)
    assert printed.code == 0
    assert run("schema", what, "--json", tmp_path / "schema.json").code == 0
    assert json.loads(printed.out) == json.loads((tmp_path / "schema.json").read_text())
    assert json.loads(printed.out)["$id"] == f"urn:fedspill:{what}:1"


def test_all_plans_are_checked_and_the_wrong_one_is_named(run: Run, plan: Path, tmp_path: Path) -> None:
    assert run("schema", "plan", plan).code == 0
    (tmp_path / "bad.toml").write_text("data = 'digts'")
    result = run("schema", "plan", tmp_path / "bad.toml", plan)
    assert result.code == 2
    assert "Did you mean 'digits'?" in result.said
    assert f"{plan.name}: ok" in result.said


def test_a_file_that_is_no_result_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text('{"schema": 1}')
    assert run("schema", "result", tmp_path / "audit.json").code == 4
