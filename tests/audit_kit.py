"""What the audit's tests share: tiny plans, the command line in a process of its own, and plug-ins made on the spot."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import signal
import sqlite3
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedspill.audit.controls import run_control
from fedspill.audit.matrix import Pair
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.result import AuditResult
from fedspill.audit.run_audit import Request, answer, run_audit
from fedspill.audit.sealed_attack import AttackProcess
from fedspill.audit.watcher import Quiet
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.trace import MemoryTrace
from fedspill.trace_folder import FolderRecorder

TINY: dict[str, Any] = {
    "model": {"name": "mlp", "widths": [16]},
    "federation": {"clients": 12, "rounds": 2},  # fewer clients decide nothing in one federation
    "training": {"lr": 0.05, "batch_size": 16, "steps": 2},
    "adversaries": ["curious-server", "curious-client"],
    "attacks": ["llbg", "ebi"],
    "candidates": [],
}


def tiny(**changes: Any) -> Plan:
    """A federation of a second or so."""
    return check_plan({**TINY, **changes}, "the tiny plan")


def audit(plan: Plan, folder: Path) -> dict[str, Any]:
    """The audit of a plan, as its JSON."""
    return run_audit(plan, folder).as_json()


def answered(request: Request) -> dict[str, Any]:
    """What a request comes to, as JSON."""
    return answer(request, Quiet()).as_json()


def typed(result: dict[str, Any]) -> AuditResult:
    """JSON of an audit as what the report reads."""
    return AuditResult.model_validate(result)


@cache
def _attack_process() -> AttackProcess:
    process = AttackProcess(())
    atexit.register(process.close)
    return process


def controls_of(pair: Pair) -> ControlOutcome:
    """Both controls of an attack, in a process that all tests share."""
    return run_control(pair, _attack_process())


@cache
def audit_once(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The tiny plan with two strengths of a defense, audited once for all tests of this process."""
    candidates = [{"name": "clip-noise", "strengths": [{"sigma": 0.001}, {"sigma": 1.0}]}]
    return folder, audit(tiny(candidates=candidates, try_from="low"), folder)


def write_plan(path: Path, **changes: Any) -> Path:
    """The tiny plan as a TOML file."""
    lines, tables = [], []
    for key, value in {**TINY, **changes}.items():
        if isinstance(value, dict):
            tables += [f"[{key}]", *(f"{k} = {_toml(v)}" for k, v in value.items()), ""]
        else:
            lines.append(f"{key} = {_toml(value)}")
    path.write_text("\n".join([*lines, "", *tables]))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **extra}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "fedspill", *map(str, words)]


@dataclass(frozen=True)
class Ended:
    """How a command that ran in this process ended."""

    code: int
    out: str
    err: str


def here(*words: str | Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """The command line in this process: what it printed, and its exit code."""
    from fedspill.cli.main import main

    monkeypatch.setattr(sys, "argv", ["fedspill", *map(str, words)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    return Ended(code, out, err)


def outcomes(folder: Path) -> str:
    """A hash of everything that was stored but times and the order of coming."""
    with sqlite3.connect(folder / "audit.sqlite") as database:
        rows = database.execute("SELECT key, kind, job, outcome FROM results ORDER BY key").fetchall()
    kept = [(key, kind, job, _without_times(json.loads(outcome))) for key, kind, job, outcome in rows]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def stored(folder: Path) -> int:
    if not (folder / "audit.sqlite").exists():
        return 0
    with sqlite3.connect(folder / "audit.sqlite", timeout=10) as database:
        try:
            return int(database.execute("SELECT COUNT(*) FROM results").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def _without_times(outcome: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in outcome.items() if key != "seconds_per_round"}


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what may differ between equal audits: times, and the folder that a command names."""
    kept = {key: value for key, value in result.items() if key != "timing"}
    kept["findings"] = [{k: v for k, v in finding.items() if k != "repeat"} for finding in result["findings"]]
    kept["plan"] = {k: v for k, v in result["plan"].items() if k not in ("workers", "limits", "fail_on")}
    return kept


def plug_in(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, attacks: dict[str, str]) -> None:
    """A package of somebody's with attacks, as pip would have installed it; for this process and its workers."""
    site = folder / "site"
    info = site / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "theirs.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "\n".join(f"{name} = theirs:{made}" for name, made in attacks.items())
    (info / "entry_points.txt").write_text(f"[fedspill.attacks]\n{points}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


HEAD = """
from dataclasses import dataclass
from typing import ClassVar, final
import os, sys, time
import torch
from fedspill.attack import Attack
from fedspill.observe.last_layer import LABEL_NEEDS, read_last_layer
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
"""


def attack_code(class_name: str, name: str, body: str) -> str:
    """An attack on labels whose `run` is `body`; `layer` and `honest` (LLBG's counts) are at hand."""
    indented = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f'''
@final
@dataclass(frozen=True)
class {class_name}(Attack):
    """Somebody's attack."""
    name: ClassVar[str] = "{name}"
    title: ClassVar[str] = "Somebody's {name}"
    paper: ClassVar[str] = "none"
    needs = LABEL_NEEDS
    leak = LABELS

    def run(self, view, rng):
        layer = read_last_layer(view)
        per_step = torch.tensor([schedule.per_step for schedule in layer.schedules])
        zeros = torch.zeros(len(layer.of), layer.classes)
        honest = llbg_counts(layer.require_bias("theirs"), per_step, layer.samples, zeros)
{indented}
'''


def record_without_truth(plan: Plan, folder: Path, **said: Any) -> Deployment:
    """The recording that a user brings: messages and protocol, neither truth nor plan; `said` alters the protocol."""
    deployment = Deployment.of(plan)
    heard = MemoryTrace(deployment.protocol())
    deployment.federation(heard).run()
    recorder = FolderRecorder(folder, {**heard.protocol, "plan": None, **said})
    for number in range(plan.federation.rounds):
        for message in heard.messages(round=number):
            recorder.say(message)
        recorder.end_round(number)
    recorder.finish()
    return deployment
