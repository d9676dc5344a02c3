"""Recordings: the deployments and recorded federations that a worker's jobs need, each made once and kept."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from fedspill.audit.controls import OwnModel
from fedspill.audit.engines import federation_of
from fedspill.audit.outcomes import RecordOutcome
from fedspill.audit.planted_run import PlantedRun, Planter, run_with_plants
from fedspill.audit.private_folder import private_folder
from fedspill.audit.result import DefenseCheck, PrivacyClaim
from fedspill.audit.sealed_attack import AttackProcess, is_foreign
from fedspill.audit.target import AS_DEPLOYED, DefenseSetting, Target
from fedspill.audit.turned_away import told, turned_away
from fedspill.dataset import Examples
from fedspill.defenses.verify import check_defenses, guarantee_of
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.recorded_plan import recorded_deployment, recorded_plan
from fedspill.deployment.twin import Twin
from fedspill.dp_audit.of_plan import audit_defense
from fedspill.errors import NotApplicable, NotKnown, NoTwin
from fedspill.federation.local import accuracy
from fedspill.files import sha256
from fedspill.metric import Metric
from fedspill.registry import find, make
from fedspill.trace import MemoryTrace, Trace, Truth
from fedspill.trace_folder import FolderRecorder, FolderTrace
from fedspill.truth_table import brought_truth


@final
class Recordings:
    """The deployments and recordings of one target."""

    def __init__(self, target: Target, hidden: Sequence[Path] = ()) -> None:
        self._target = target
        self._also_hidden = hidden  # from attacks, beside what every audit hides
        self._deployments: dict[int, Deployment] = {}
        self._attack_process: AttackProcess | None = None
        self._twin: Twin | None = None
        self._trace: tuple[str, Trace] | None = None  # the last one opened: jobs come in order

    @property
    def show_data(self) -> bool:
        return self._target.show_data

    @property
    def is_own_model(self) -> bool:
        """Whether the model is the user's own, or of a recording that does not say it: none that our tests know."""
        if self._target.trace is not None and not self._target.explicit_plan:
            return True
        model = self._target.plan.model.name
        return model == "custom" or find("models", model).is_plugin

    def own_model(self) -> OwnModel | None:
        """The user's model with data for it, to run controls on; None where it is one of ours, or is not said."""
        target = self._target
        if not self.is_own_model or (target.trace is not None and not target.explicit_plan):
            return None
        return OwnModel(target.plan, target.data_dir)

    def record(self, setting: DefenseSetting, seed: int) -> RecordOutcome:
        """Trains with the setting's defense in place, records it, tests the model."""
        folder = self._target.trace_folder(setting, seed)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=_made(folder.parent)))
        began = time.perf_counter()
        try:
            deployment = self._deployment(seed).with_defenses(*setting.defenses())
            plan = deployment.plan
            recorder = FolderRecorder(part, deployment.protocol(), deployment.keep())
            federation = federation_of(deployment, recorder, device=plan.device)
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
        return RecordOutcome(
            status="ok",
            right=right,
            tested=len(test),
            epsilon=claim.epsilon if claim and math.isfinite(claim.epsilon) else None,
            delta=claim.delta if claim else None,
            checks=[DefenseCheck(**asdict(check)) for check in checks],
            events=[told(event) for done in rounds for event in done.events],
            turned_away=turned_away([event for done in rounds for event in done.events]),
            trace=sha256(folder / "index.jsonl"),  # a chain over everything in the recording
            seconds_per_round=(time.perf_counter() - began) / max(len(rounds), 1),
        )

    def trace(self, setting: DefenseSetting, seed: int) -> Trace:
        """The recording; made again where it is missing, since the same seed says the same."""
        folder = self._target.trace_folder(setting, seed)
        if self._target.trace is None and not folder.is_dir():
            self.record(setting, seed)
        if self._trace is None or self._trace[0] != str(folder):
            self._trace = (str(folder), FolderTrace(folder, partial=self._target.partial))
        return self._trace[1]

    def truth(self, trace: Trace, seed: int) -> Truth:
        """What is known to be true of a recording: its own facts, those that were brought, and the clients' data."""
        target = self._target
        truth = trace.truth() if target.truth is None else brought_truth(trace, target.truth, target.nodes)
        return truth.beside(self.clients(seed))

    def knowledge(self, setting: DefenseSetting, seed: int) -> dict[str, Any]:
        """What adversaries that may know such things are given, beside the protocol."""
        if self._target.trace is None:
            return self._deployment(seed).with_defenses(*setting.defenses()).knowledge()
        if not self._target.explicit_plan:
            deployment = recorded_deployment(self.trace(setting, seed).protocol, self._target.data_dir)
            return deployment.knowledge() if deployment else {}
        return Deployment.of(self._target.plan, self._target.data_dir).knowledge()

    def tested_claim(self, place: int, seed: int) -> PrivacyClaim | None:
        """What the deployed defense at that place claims, tested by canaries; None where it claims nothing."""
        deployment = self._deployment(seed)
        defense = deployment.settings.defenses[place]
        found = audit_defense(deployment, defense, seed)
        return None if found is None else PrivacyClaim.of(defense.name, found)

    def altered(self, setting: DefenseSetting, seed: int, altering: frozenset[str]) -> Trace:
        """The recording of a federation in which a participant does other than agreed, made for an attack by it."""
        if self._target.trace is not None:
            raise NotApplicable(
                "Who does other than agreed needs a federation to do so in; this is a recording of another.",
                remedy="Audit a plan instead.",
            )
        deployment = self._deployment(seed).with_defenses(*setting.defenses())
        trace = MemoryTrace(deployment.protocol())
        deployment.federation(trace, device=deployment.plan.device, altering=altering).run()
        return trace

    def twin(self) -> Twin:
        """The recorded federation, ready to run with proxy data; raises NoTwin where it cannot be."""
        if self._twin is None:
            trace = self.trace(AS_DEPLOYED, 0)
            plan = self._target.plan if self._target.explicit_plan else recorded_plan(trace.protocol)
            if plan is None:
                raise NoTwin(
                    "Neither the recording nor a plan says which model and which data of the kind to take.",
                    remedy="Audit with a plan that names data and model.",
                )
            self._twin = Twin.of(trace, plan, self._target.data_dir)
        return self._twin

    def twin_trace(self, seed: int) -> Trace:
        """The recording of one twin, made where it is missing."""
        folder = self._target.twin_folder(seed)
        if not folder.is_dir():
            part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=_made(folder.parent)))
            try:
                self.twin().run(FolderRecorder(part, self.trace(AS_DEPLOYED, 0).protocol), seed)
                _take_place(part, folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return FolderTrace(folder)

    def planted(self, attack: Planter, setting: DefenseSetting, seed: int) -> PlantedRun:
        """The recording of an attack that plants, made for it alone, and what its adversary knows."""
        if self._target.trace is not None:
            raise NotApplicable(
                "An attack that alters the model needs a federation to run it in; this is a recording of another.",
                remedy="Audit a plan instead.",
            )
        return run_with_plants(attack, self._deployment(seed).with_defenses(*setting.defenses()))

    @contextmanager
    def attack_process(self, attack: str) -> Iterator[AttackProcess]:
        """The process that runs it. Ours is used again, as long as it lives; code of others has one to itself."""
        if is_foreign(attack):
            with AttackProcess(self._hidden(), self._target.plan.device) as process:
                yield process
            return
        process = self._attack_process or AttackProcess(self._hidden(), self._target.plan.device)
        self._attack_process = None
        try:
            yield process
        except (NotKnown, NotApplicable):
            self._attack_process = process
            raise
        except BaseException:
            process.close()
            raise
        self._attack_process = process

    def _hidden(self) -> list[Path]:
        """Where the truth lies, or what it can be made from: the audit, the recording, the data."""
        data = self._target.data_dir or os.environ.get("FEDSPILL_DATA")
        brought = [path.parent if path else None for path in (self._target.truth, self._target.nodes)]
        folders = [self._target.folder, self._target.trace, data, private_folder(), *brought, *self._also_hidden]
        return [Path(folder) for folder in folders if folder]

    def metrics(self) -> list[Metric[Any]]:
        """Those that the plan names beside the leaks' own."""
        return [make("metrics", choice.name, choice.options) for choice in self._target.plan.metrics or ()]

    def clients(self, seed: int) -> Sequence[Examples]:
        """The clients' data, for the truth about inputs; of a recording only those that its own plan makes again."""
        if self._target.trace is None:
            return self._deployment(seed).shares.clients
        deployment = recorded_deployment(self.trace(AS_DEPLOYED, seed).protocol, self._target.data_dir)
        return deployment.shares.clients if deployment else ()

    def _deployment(self, seed: int) -> Deployment:
        if seed not in self._deployments:
            self._deployments[seed] = Deployment.of(self._target.plan.with_seed(seed), self._target.data_dir)
        return self._deployments[seed]


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
