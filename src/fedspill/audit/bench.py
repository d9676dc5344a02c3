"""Bench: what a worker has at hand for its jobs: deployments and recordings, each made once and kept."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from fedspill.attacks.base import ActiveAttack
from fedspill.audit.deployment import Deployment
from fedspill.audit.plan import Plan
from fedspill.audit.recorded import recorded_knowledge, recorded_plan
from fedspill.audit.siege import Siege, besiege
from fedspill.data.base import Examples
from fedspill.defenses.base import Defense
from fedspill.defenses.verify import check_defenses, guarantee_of
from fedspill.errors import DataMissing, NotApplicable
from fedspill.federation.local import accuracy
from fedspill.files import dump_json, sha256
from fedspill.registry import make
from fedspill.threat import ThreatModel
from fedspill.trace import Trace
from fedspill.tracefolder import FolderRecorder, FolderTrace


@dataclass(frozen=True)
class Setting:
    """A defense tried on top of those in place; without a name, the deployment as it is."""

    defense: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.defense}({options})" if self.defense else "as deployed"

    def defenses(self) -> tuple[Defense, ...]:
        return (make("defenses", self.defense, dict(self.options)),) if self.defense else ()

    def as_json(self) -> dict[str, Any]:
        return {"defense": self.defense, "options": dict(self.options)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Setting:
        return Setting(value["defense"], tuple(sorted(value["options"].items())))


AS_DEPLOYED = Setting()
AS_DEPLOYED_NAME = "as-deployed"


@dataclass(frozen=True)
class Target:
    """What is audited: the federation of a plan, or a recording; the same for every job of an audit."""

    plan: Plan
    folder: Path  # of the audit
    code: str  # fingerprint of the code that runs
    trace: Path | None = None  # a recording instead of a federation of our own
    partial: bool = False
    explicit_plan: bool = True  # whether the plan's data and model are those of the recording
    data_dir: Path | None = None
    show_data: bool = False

    def absolute(self) -> Target:
        """For workers, which may stand elsewhere."""
        return replace(
            self,
            folder=self.folder.absolute(),
            trace=self.trace.absolute() if self.trace else None,
            data_dir=self.data_dir.absolute() if self.data_dir else None,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.model_dump(mode="json"),
            "folder": str(self.folder),
            "code": self.code,
            "trace": str(self.trace) if self.trace else None,
            "partial": self.partial,
            "explicit_plan": self.explicit_plan,
            "data_dir": str(self.data_dir) if self.data_dir else None,
            "show_data": self.show_data,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Target:
        return Target(
            Plan.model_validate(value["plan"]),
            Path(value["folder"]),
            value["code"],
            Path(value["trace"]) if value["trace"] else None,
            value["partial"],
            value["explicit_plan"],
            Path(value["data_dir"]) if value["data_dir"] else None,
            value["show_data"],
        )


@final
class Bench:
    """The deployments and recordings of one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._deployments: dict[int, Deployment] = {}
        self._trace: tuple[str, Trace] | None = None  # the last one opened: jobs come in order

    @property
    def show_data(self) -> bool:
        return self._target.show_data

    def record(self, setting: Setting, seed: int) -> dict[str, Any]:
        """Trains with the setting's defense in place, records it, tests the model."""
        folder = trace_folder(self._target, setting, seed)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=_made(folder.parent)))
        began = time.perf_counter()
        try:
            deployment = self._deployment(seed).with_defenses(*setting.defenses())
            plan = deployment.plan
            recorder = FolderRecorder(part, deployment.protocol(), plan.record.keep())
            federation = deployment.federation(recorder, device=plan.device)
            rounds = federation.run()
            _take_place(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        test = deployment.dataset.test
        right = round(accuracy(federation.model, test.to(plan.device)) * len(test))
        settings, samples = deployment.settings, [len(own) for own in deployment.shares.clients if len(own)]
        claim = None
        if not deployment.is_vertical:  # there the server names the batches, and no accountant counts on that
            claim = guarantee_of(settings, samples, sum(p.numel() for p in federation.model.parameters()))
        checks = check_defenses(settings.defenses, FolderTrace(folder, partial=self._target.partial))
        return {
            "status": "ok",
            "right": right,
            "tested": len(test),
            "epsilon": claim.epsilon if claim and math.isfinite(claim.epsilon) else None,
            "delta": claim.delta if claim else None,
            "checks": [asdict(check) for check in checks],
            "events": [f"round {e.round}, {e.party}: {e.what}" for done in rounds for e in done.events],
            "trace": sha256(folder / "index.jsonl"),  # a chain over everything in the recording
            "seconds_per_round": (time.perf_counter() - began) / max(len(rounds), 1),
        }

    def trace(self, setting: Setting, seed: int) -> Trace:
        """The recording; made again where it is missing, since the same seed says the same."""
        folder = trace_folder(self._target, setting, seed)
        if self._target.trace is None and not folder.is_dir():
            self.record(setting, seed)
        if self._trace is None or self._trace[0] != str(folder):
            self._trace = (str(folder), FolderTrace(folder, partial=self._target.partial))
        return self._trace[1]

    def knowledge(self, setting: Setting, seed: int) -> dict[str, Any]:
        """What adversaries that may know such things are given, beside the protocol."""
        if self._target.trace is None:
            return self._deployment(seed).with_defenses(*setting.defenses()).knowledge()
        if not self._target.explicit_plan:
            return recorded_knowledge(self.trace(setting, seed).protocol, self._target.data_dir)
        return Deployment.of(self._target.plan, self._target.data_dir).knowledge()

    def siege(self, attack: ActiveAttack, threat: ThreatModel, setting: Setting, seed: int) -> Siege:
        """The recording of an attack that plants, made for it alone, and what its adversary knows."""
        if self._target.trace is not None:
            raise NotApplicable(
                "An attack that alters the model needs a federation to run it in; this is a recording of another.",
                remedy="Audit a plan instead.",
            )
        return besiege(attack, threat, self._deployment(seed).with_defenses(*setting.defenses()))

    def clients(self, seed: int) -> Sequence[Examples]:
        """The clients' data, for the truth about inputs; of a recording only those that its own plan makes again."""
        if self._target.trace is None:
            return self._deployment(seed).shares.clients
        plan = recorded_plan(self.trace(AS_DEPLOYED, seed).protocol)
        try:
            return Deployment.of(plan, self._target.data_dir).shares.clients if plan else ()
        except DataMissing:
            return ()

    def _deployment(self, seed: int) -> Deployment:
        if seed not in self._deployments:
            self._deployments[seed] = Deployment.of(self._target.plan.with_seed(seed), self._target.data_dir)
        return self._deployments[seed]


def trace_folder(target: Target, setting: Setting, seed: int) -> Path:
    """Where the recording of one setting and seed belongs."""
    if target.trace is not None:
        return target.trace
    plan = target.plan.with_seed(seed)
    what = hashlib.sha256(dump_json([target.code, plan.essence(), setting.as_json()])).hexdigest()[:16]
    # A worker on another machine may not see the audit's folder: it then records for itself.
    shared = target.folder.is_dir()
    base = target.folder if shared else Path(tempfile.gettempdir()) / f"fedspill-{os.getuid()}"
    return base / "traces" / f"{setting.defense or AS_DEPLOYED_NAME}-{seed}-{what}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _take_place(part: Path, folder: Path) -> None:
    """Whole or absent; when another worker was faster, its recording says the same."""
    try:
        part.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
