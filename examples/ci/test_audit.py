"""A test that fails when the federation leaks more than we accept. Copy it beside your other tests."""

from datetime import date
from pathlib import Path

import pytest

from fedspill import AuditResult, run_audit
from fedspill.audit.accepted import read_accepted
from fedspill.audit.severity import Severity
from fedspill.deployment.plan import read_plan

HERE = Path(__file__).parent
PLAN = read_plan(HERE / "audit.toml")
TOO_BAD = Severity[str(PLAN.fail_on).upper()]  # the bar stands in the plan alone


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return run_audit(PLAN, tmp_path_factory.mktemp("audit"))


def test_everything_was_measured(result: AuditResult) -> None:
    assert result.verdict.complete, [finding.why for finding in result.findings if finding.status != "ok"]
    assert all(control.passed for control in result.controls)


def test_nothing_leaks_that_we_have_not_accepted(result: AuditResult) -> None:
    accepted = read_accepted(HERE / "accept.toml")
    leaks = [finding.id for finding in result.findings if finding.severity is not None and finding.severity >= TOO_BAD]
    assert [name for name in leaks if not accepted.reason(name, date.today())] == []
