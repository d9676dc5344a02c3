"""Lost work never ends with code 0: what could not be measured is not clean."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from audit_kit import typed

from fedspill.audit.jobs import RecordJob
from fedspill.audit.result_from_store import StoredAudit, verdict
from fedspill.audit.run_audit import _is_failed_record, result_of
from fedspill.audit.severity import Severity
from fedspill.audit.store import Store
from fedspill.cli.finish import ending, exit_code
from fedspill.errors import ExitCode
from fedspill.report import junit

Audited = tuple[Path, dict[str, Any]]


def test_where_nothing_was_scored_the_audit_is_incomplete() -> None:
    assert not verdict([]).complete


def test_a_defended_federation_that_failed_is_shown_retried_and_never_green(audited: Audited, tmp_path: Path) -> None:
    folder, result = Path(shutil.copytree(audited[0], tmp_path / "audit")), audited[1]
    assert result["verdict"]["complete"], result["cannot_tell"]
    store = Store(folder, create=False)
    stored = StoredAudit(store, folder)
    setting, seed = stored.candidates[0], stored.seeds[0]
    job = RecordJob(setting, seed)
    key = job.key(stored.target.code)
    outcome = store.results()[key].outcome
    store.add(key, job, outcome.model_copy(update={"status": "errored", "why": "the disk is full"}), 1.0)
    again = result_of(folder)
    assert not again.verdict.complete
    assert any("the disk is full" in line for line in again.cannot_tell)
    assert exit_code(again) is not ExitCode.OK
    assert _is_failed_record(store.results()[key].outcome)


def test_an_undecided_finding_at_the_bar_is_not_green(audited: Audited) -> None:
    whole = typed(audited[1])
    found = [
        finding.model_copy(
            update={
                "state": "undecided",
                "severity": Severity.INFO,
                "likely": Severity.HIGH,
                "status": "ok",
                "accepted": None,
            }
        )
        for finding in whole.findings[:1]
    ]
    undecided = whole.model_copy(update={"findings": found, "plan": {**whole.plan, "fail_on": "high"}})
    assert exit_code(undecided) is ExitCode.INCOMPLETE
    assert found[0].id in ending(undecided)[1]
    assert 'type="undecided"' in junit.render(undecided)
    calm = undecided.model_copy(update={"plan": {**whole.plan, "fail_on": "critical"}})
    assert exit_code(calm) is (ExitCode.OK if whole.verdict.complete else ExitCode.INCOMPLETE)


def test_the_end_names_the_findings_that_an_accept_file_would(audited: Audited) -> None:
    whole = typed(audited[1])
    bar = max(finding.level for finding in whole.findings)
    failing = whole.model_copy(update={"plan": {**whole.plan, "fail_on": bar.word}})
    code, reason = ending(failing)
    assert code is ExitCode.FINDINGS
    assert all(finding.id in reason for finding in whole.findings if finding.level == bar)
