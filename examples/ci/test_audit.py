"""A test that fails when the federation leaks more than we accept. Copy it beside your other tests."""

from datetime import date
from pathlib import Path

import pytest

from fedspill.audit.accepted import read_accepted
from fedspill.audit.run_audit import audit
from fedspill.deployment.plan import read_plan

HERE = Path(__file__).parent
TOO_BAD = ("critical",)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return audit(read_plan(HERE / "audit.toml"), tmp_path_factory.mktemp("audit"))


def test_everything_was_measured(result: dict) -> None:
    assert result["verdict"]["complete"], [f["why"] for f in result["findings"] if f["status"] != "ok"]
    assert all(control["passed"] for control in result["controls"])


def test_nothing_leaks_that_we_have_not_accepted(result: dict) -> None:
    accepted = read_accepted(HERE / "accept.toml")
    leaks = [f for f in result["findings"] if f["severity"] in TOO_BAD]
    assert [f["id"] for f in leaks if not accepted.reason(f["id"], date.today())] == []
