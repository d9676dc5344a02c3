"""The runner: same result whatever runs it, resumes, refuses another plan, survives attacks that misbehave."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import pytest
import torch
from audit_kit import (
    HEAD,
    answered,
    attack_code,
    audit,
    command,
    environment,
    here,
    outcomes,
    plug_in,
    stored,
    timeless,
    tiny,
    write_plan,
)

from fedspill.audit.jobs import Job
from fedspill.audit.recordings import Recordings
from fedspill.audit.run_audit import Request, result_of
from fedspill.audit.target import Target
from fedspill.audit.worker_pool import Done, LocalWorkers, Take, Workers
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.deployment.recorded_plan import recorded_plan
from fedspill.errors import FedspillError, TraceRefused, UsageError

Audited = tuple[Path, dict[str, Any]]


@final
class Backwards(Workers):
    """Two processes; of the jobs that are ready the last one first."""

    def __init__(self, target: Target) -> None:
        self._inner = LocalWorkers(target, 2, target.plan.limits)

    def run(self, take: Take) -> Iterator[Done]:
        ready: list[Job] = []

        def last() -> Job | None:
            ready.extend(iter(take, None))
            return ready.pop() if ready else None

        return self._inner.run(last)

    def close(self) -> None:
        self._inner.close()


@final
class Nobody(Workers):
    """Does nothing; fails when asked to."""

    def run(self, take: Take) -> Iterator[Done]:
        assert take() is None, "everything was done already"
        return iter(())

    def close(self) -> None:
        pass


def test_results_do_not_depend_on_workers_or_order(audited: Audited, tmp_path: Path) -> None:
    folder, result = audited
    again = answered(Request(_plan_of(result), tmp_path / "two", workers=Backwards))
    assert timeless(again) == timeless(result)
    assert outcomes(tmp_path / "two") == outcomes(folder)


def test_a_finished_audit_is_not_run_again(audited: Audited, tmp_path: Path) -> None:
    folder, result = audited
    shutil.copytree(folder, tmp_path / "copy")
    again = answered(Request(_plan_of(result), tmp_path / "copy", workers=lambda target: Nobody()))
    assert timeless(again) == timeless(result)
    assert timeless(result_of(tmp_path / "copy").as_json()) == timeless(result)


def test_every_unit_is_stored_with_what_made_it(audited: Audited) -> None:
    folder, _ = audited
    with sqlite3.connect(folder / "audit.sqlite") as database:
        jobs = [json.loads(job) for (job,) in database.execute("SELECT job FROM results")]
    attacks = [job for job in jobs if job["kind"] == "attack"]
    assert {job["pair"]["attack"] for job in attacks} == {"llbg", "ebi"}
    assert all({"options", "adversary"} <= job["pair"].keys() and "setting" in job and "seed" in job for job in attacks)
    # 1 federation as deployed and 2 with a defense, 2 controls, 2 attacks on each of the 3.
    assert len(jobs) == 3 + 2 + 6
    assert (folder / "audit.sqlite").stat().st_mode & 0o077 == 0
    assert [path.name.startswith("as-deployed-") for path in (folder / "traces").iterdir()] == [True]


def test_another_plan_is_refused_by_name_unless_fresh(audited: Audited, tmp_path: Path) -> None:
    folder, result = audited
    shutil.copytree(folder, tmp_path / "copy")
    other = _plan_of(result).model_copy(update={"seed": 8})
    with pytest.raises(UsageError, match=r"differs in plan\.seed \(7 there, 8 asked for\)"):
        answered(Request(other, tmp_path / "copy"))
    fresh = answered(Request(tiny(), tmp_path / "copy", fresh=True))
    assert fresh["provenance"]["seeds"] == [7]
    assert stored(tmp_path / "copy") == 1 + 2 + 2


def test_repeats_pool_all_origins(tmp_path: Path) -> None:
    result = audit(tiny(repeats=2, attacks=["llbg"], adversaries=["curious-server"]), tmp_path / "out")
    assert result["provenance"]["seeds"] == [7, 8]
    assert result["findings"][0]["score"]["n"] == 2 * 2 * 12  # repeats, rounds, clients
    assert len(set(result["provenance"]["traces"])) == 2


MISBEHAVING = {
    "hangs": ("Hangs", "while True: pass"),
    "eats": ("Eats", "hoard = []\nwhile True: hoard.append(bytearray(50_000_000))"),
    "raises": ("Raises", "raise ValueError('SECRET 12345')"),
    "exits": ("Exits", "sys.exit(0)"),
    "dies": ("Dies", "os._exit(0)"),
    "nan": ("Nan", "return LabelCounts(layer.of, honest.double() * float('nan'))"),
    "shouts": (
        "Shouts",
        "print('SECRET 12345' * 100000)\ntorch.set_num_threads(7)\nreturn LabelCounts(layer.of, honest)",
    ),
}


def test_attacks_that_misbehave_hurt_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = HEAD + "".join(attack_code(made, name, body) for name, (made, body) in MISBEHAVING.items())
    plug_in(tmp_path, monkeypatch, code, {name: made for name, (made, _) in MISBEHAVING.items()})
    plain = tiny(attacks=["llbg"], adversaries=["curious-server"])
    alone = audit(plain, tmp_path / "alone")
    everybody = tiny(
        attacks=[*MISBEHAVING, "llbg"],
        adversaries=["curious-server"],
        limits={"seconds": 20, "memory_mb": 1500},
        workers=2,
    )
    result = audit(everybody, tmp_path / "all")
    found = {finding["attack"]: finding for finding in result["findings"]}
    assert {name: found[name]["status"] for name in MISBEHAVING} == {
        "hangs": "errored",
        "eats": "errored",
        "raises": "errored",
        "exits": "errored",
        "dies": "errored",
        "nan": "errored",
        "shouts": "ok",
    }
    for name, words in {
        "hangs": "time limit",
        "eats": "memory limit",
        "dies": "ended before it answered",
        "nan": "whole",
    }.items():
        assert words in found[name]["why"], found[name]["why"]
    assert found["llbg"]["score"] == alone["findings"][0]["score"]
    assert found["llbg"]["evidence"] == alone["findings"][0]["evidence"]
    assert result["verdict"]["complete"] is False
    assert "SECRET" not in json.dumps(result)


def test_a_federation_that_cannot_run_is_an_error_not_a_report(tmp_path: Path) -> None:
    with pytest.raises(FedspillError, match="lacks examples"):
        audit(tiny(federation={"clients": 5000, "rounds": 1}), tmp_path / "out")
    assert stored(tmp_path / "out") == 0


def test_a_recording_is_a_target_too(
    audited: Audited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, result = audited
    monkeypatch.chdir(tmp_path)
    trace = next((folder / "traces").iterdir())
    write_plan(tmp_path / "plan.toml")
    words = ("audit", "plan.toml", "--trace", trace, "--out", "again", "--json", "again.json")
    ended = here(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 0, ended.err
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["target"] == "trace"
    assert again["accuracy"] is None
    for before, after in zip(result["findings"], again["findings"], strict=True):
        assert (before["id"], before["score"]) == (after["id"], after["score"])
    shutil.copytree(trace, tmp_path / "broken")
    (tmp_path / "broken" / "trace.json").write_text("{}")
    ended = here("audit", "--trace", "broken", "--out", "nothing", monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 4


def test_a_recording_of_our_own_has_its_clients_again(audited: Audited, tmp_path: Path) -> None:
    """What recovered inputs are held against: made anew by the plan in the recording, whatever plan audits it."""
    trace = next((audited[0] / "traces").iterdir())
    other = Target(tiny(federation={"clients": 2, "rounds": 1}), tmp_path, "", trace=trace, explicit_plan=False)
    again = Recordings(other).clients(0)
    clients = Deployment.of(tiny()).shares.clients
    assert len(again) == len(clients) == 12
    assert all(torch.equal(one.x, two.x) for one, two in zip(again, clients, strict=True))


def test_a_recording_chooses_neither_attacks_nor_code() -> None:
    honest = tiny().essence()
    assert recorded_plan({"plan": {**honest, "attacks": [], "adversaries": ["curious-client"]}}) == tiny(
        attacks=None, adversaries=None, candidates=None
    )
    named = {"name": "custom", "factory": "os:getcwd"}
    assert recorded_plan({"plan": {**honest, "data": named}}) is None
    assert recorded_plan({"plan": {**honest, "model": named}}) is None
    assert recorded_plan({}) is None
    with pytest.raises(TraceRefused, match="does not say"):
        recorded_plan({"plan": {**honest, "data": "digitz"}})


def test_the_command_that_repeats_a_finding_does(
    audited: Audited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = audited[1]["findings"][0]
    words = shlex.split(finding["repeat"])[1:]
    ended = here(*words, "--json", tmp_path / "one.json", monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 0, ended.err
    one = json.loads((tmp_path / "one.json").read_text())
    assert one["scores"]["label-asr"]["value"] == pytest.approx(finding["score"]["value"], abs=1e-4)


def test_two_in_one_folder_the_second_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "plan.toml")
    words = ("audit", "plan.toml", "--out", "out")
    first = subprocess.Popen(command(*words), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lock = tmp_path / "out" / "lock"
    while not lock.exists() or not lock.read_text():
        assert first.poll() is None, "the first one ended too soon"
        time.sleep(0.01)
    second = here(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert second.code == 2
    assert f"process {first.pid} on {os.uname().nodename}" in second.err
    assert first.wait() == 0
    assert lock.read_text() == ""


def _plan_of(result: dict[str, Any]) -> Plan:
    return check_plan(result["plan"], "the audited plan")
