"""Exit codes, accepted findings, comparison, the store: what people and CI build on."""

from __future__ import annotations

import copy
import json
import os
import sqlite3
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from audit_kit import Ended, here, tiny, typed, write_plan

from fedspill.audit.accepted import read_accepted
from fedspill.audit.compare import compare
from fedspill.audit.lock import locked
from fedspill.audit.result import AcceptedBecause
from fedspill.audit.store import Store
from fedspill.cli.finish import exit_code
from fedspill.errors import ExitCode, FedspillError, InputRefused, PlanError, UsageError

Audited = tuple[Path, dict[str, Any]]
Fedspill = Callable[..., Ended]


def test_exit_codes_of_results(audited: Audited) -> None:
    result = copy.deepcopy(audited[1])
    assert exit_code(typed(result)) is ExitCode.OK  # findings without --fail-on do not change the code
    result["plan"]["fail_on"] = "low"
    assert exit_code(typed(result)) is ExitCode.FINDINGS
    for finding in result["findings"]:
        finding["accepted"] = {"reason": "known", "until": "2999-01-01"}
    assert exit_code(typed(result)) is ExitCode.OK
    result["verdict"]["complete"] = False
    assert exit_code(typed(result)) is ExitCode.INCOMPLETE
    result["findings"][0]["accepted"] = None
    assert exit_code(typed(result)) is ExitCode.FINDINGS  # evidence at hand comes before what is missing


@pytest.fixture
def fedspill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fedspill:
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: here(*words, monkeypatch=monkeypatch, capsys=capsys)


def test_exit_codes_of_the_command(audited: Audited, tmp_path: Path, fedspill: Fedspill) -> None:
    folder, _ = audited
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert fedspill("report", folder).code == 0
    assert fedspill("report", folder, "--fail-on", "low").code == 1
    assert fedspill("report", folder, "--fail-on", "enormous").code == 2
    assert fedspill("report", tmp_path).code == 2
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "audit.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 50)
    refused = fedspill("report", "bad")
    assert refused.code == 4
    assert "audit.sqlite is damaged or foreign" in refused.err


def test_an_internal_error_is_never_a_success_nor_a_finding(
    fedspill: Fedspill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path | None) -> None:
        raise ZeroDivisionError("SECRET")

    monkeypatch.setattr("fedspill.deployment.plan.read_plan", broken)
    ended = fedspill("audit")
    assert ended.code == 3
    assert "ZeroDivisionError at test_audit_results.py" in ended.err
    assert "SECRET" not in ended.err


def test_dry_run_tells_the_matrix_and_the_cost(tmp_path: Path, fedspill: Fedspill) -> None:
    write_plan(tmp_path / "plan.toml")
    ended = fedspill("audit", "plan.toml", "--dry-run", "--json", "cost.json")
    assert ended.code == 0
    assert "2 pairs do not run: curious-client sees no updates (2)" in ended.out
    assert "minutes" in ended.out
    assert "bytes" in ended.out
    assert "of memory" in ended.out
    assert "of disk" in ended.out
    assert not (tmp_path / "fedspill-audit").exists()
    told = json.loads((tmp_path / "cost.json").read_text())
    assert told["runs"] == ["llbg/curious-server", "ebi/curious-server"]
    assert told["recordings"] == 1
    assert told["attacks"] == 2
    assert told["memory_bytes"] > told["unit_memory_bytes"] > 0
    assert told["disk_bytes"] > 0
    assert told["cpu_seconds"] == pytest.approx(60 * told["minutes"])  # by one worker
    assert (told["gpu_seconds"], told["gpu_memory_bytes"]) == (0, 0)


ACCEPT = """
[[accept]]
id = "llbg/curious-server"
reason = "the server is ours"
until = 2030-01-31

[[accept]]
id = "old/one"
reason = "was fixed"
until = 2020-01-01
"""


def test_accepted_findings_have_a_reason_and_an_end(tmp_path: Path) -> None:
    (tmp_path / "accept.toml").write_text(ACCEPT)
    accepted = read_accepted(tmp_path / "accept.toml")
    assert accepted.reason("llbg/curious-server", date(2030, 1, 31)) == AcceptedBecause(
        reason="the server is ours", until="2030-01-31"
    )
    assert accepted.reason("llbg/curious-server", date(2030, 2, 1)) is None
    states = [row.state for row in accepted.entries_now(date(2026, 1, 1), {"llbg/curious-server"})]
    assert states == ["in force", "expired"]
    (tmp_path / "bad.toml").write_text('[[accept]]\nid = "x"\nreason = ""\n[[accept]]\nidd = 1\n')
    with pytest.raises(PlanError) as caught:
        read_accepted(tmp_path / "bad.toml")
    assert len(caught.value.mistakes) == 6  # reason, until; idd, id, reason, until


def test_accepted_findings_do_not_fail_a_build(audited: Audited, tmp_path: Path, fedspill: Fedspill) -> None:
    folder, result = audited
    entries = [
        f'[[accept]]\nid = "{finding["id"]}"\nreason = "known"\nuntil = 2999-01-01\n'
        for finding in result["findings"]
        if finding["status"] == "ok"
    ]
    (tmp_path / "accept.toml").write_text("\n".join(entries))
    assert fedspill("report", folder, "--fail-on", "low", "--accept", "accept.toml").code == 0


def altered(result: dict[str, Any], **score: Any) -> dict[str, Any]:
    changed = copy.deepcopy(result)
    finding = next(finding for finding in changed["findings"] if finding["id"] == "llbg/curious-server")
    finding["score"] |= {k: v for k, v in score.items() if k in finding["score"]}
    finding |= {k: v for k, v in score.items() if k not in finding["score"]}
    if "value" in score:  # three federations around it
        finding["score"]["federations"] = [score["value"] + step for step in (-0.015, 0.0, 0.015)]
        finding["score"]["by_clients"] = [score["low"], score["high"]]
    return changed


def test_compare_tells_new_fixed_and_changed_beyond_noise(audited: Audited) -> None:
    result = altered(audited[1], value=0.7, low=0.65, high=0.75, severity="medium", advantage=0.3)
    safe = altered(result, value=0.3, low=0.25, high=0.35, severity="info", advantage=-0.2)
    noisy = altered(result, value=0.71, low=0.66, high=0.76)
    gone = copy.deepcopy(result)
    gone["findings"] = [finding for finding in gone["findings"] if finding["id"] != "llbg/curious-server"]
    unscored = altered(result, status="unscored", severity=None)

    def change(before: dict[str, Any], after: dict[str, Any]) -> str:
        return next(d.change for d in compare(typed(before), typed(after)) if d.id == "llbg/curious-server")

    assert change(result, safe) == "fixed"
    assert change(safe, result) == "new"
    assert change(result, noisy) == "same"
    assert change(result, gone) == "gone"
    assert change(gone, result) == "new"
    assert change(result, unscored) == "lost"
    worse = altered(result, value=0.99, low=0.98, high=1.0, severity="critical", advantage=0.98)
    assert change(result, worse) == "worse"
    assert change(worse, result) == "better"


def test_compare_as_a_command(audited: Audited, tmp_path: Path, fedspill: Fedspill) -> None:
    before = altered(audited[1], value=0.7, low=0.65, high=0.75, severity="medium", advantage=0.3)
    after = altered(audited[1], value=0.999, low=0.998, high=1.0, severity="critical", advantage=0.99)
    (tmp_path / "a.json").write_text(json.dumps(before))
    (tmp_path / "b.json").write_text(json.dumps(after))
    ended = fedspill("compare", "a.json", "b.json", "--json", "d.json")
    assert ended.code == 0, ended.err
    assert "worse" in ended.out
    changes = {d["id"]: d["change"] for d in json.loads((tmp_path / "d.json").read_text())["differences"]}
    assert changes["llbg/curious-server"] == "worse"
    assert fedspill("compare", "a.json", "b.json", "--fail-on", "high").code == 1
    assert fedspill("compare", audited[0], audited[0]).code == 0
    (tmp_path / "c.json").write_text("{}")
    assert fedspill("compare", "a.json", "c.json").code == 4


def test_a_stale_lock_is_taken_over_and_a_strange_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"pid": 999999, "host": os.uname().nodename}))
    with locked(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
        with pytest.raises(UsageError, match=f"process {os.getpid()}"), locked(tmp_path):
            pass
    (tmp_path / "lock").write_text(json.dumps({"pid": 5, "host": "elsewhere"}))
    with pytest.raises(UsageError, match="elsewhere"), locked(tmp_path):
        pass
    # A container that died leaves no sign of life, and its name never comes back.
    os.utime(tmp_path / "lock", (0, 0))
    with locked(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_store_of_another_version_or_cut_short_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    store.note({"version": 99})
    with pytest.raises(InputRefused, match="another version"):
        Store(tmp_path, create=True)
    (tmp_path / "audit.sqlite").write_bytes((tmp_path / "audit.sqlite").read_bytes()[:-3000])
    with pytest.raises(FedspillError):
        Store(tmp_path, create=False)


def test_an_unfinished_audit_reports_itself_as_such(audited: Audited, tmp_path: Path) -> None:
    import shutil

    from fedspill.audit.run_audit import result_of

    shutil.copytree(audited[0], tmp_path / "copy")
    with sqlite3.connect(tmp_path / "copy" / "audit.sqlite") as database:
        database.execute("DELETE FROM results WHERE kind = 'attack'")
    result = result_of(tmp_path / "copy")
    assert result.verdict.complete is False
    assert {f.status for f in result.findings} == {"unscored", "skipped"}
    assert exit_code(result) is ExitCode.INCOMPLETE
    assert tiny().fail_on is None
