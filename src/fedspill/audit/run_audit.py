"""The audit, start to end: plan, federation, recording, every attack by every adversary, controls, defenses, result.

Everything it does is a job with a key. Jobs that the store has are not done again, so the same command continues where
it stopped, and the result is a function of the plan alone: not of the workers, their number, or what interrupted them.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedspill.audit.accepted import NOTHING_ACCEPTED, Acceptance, Accepted
from fedspill.audit.advice import MOST_PROPOSED
from fedspill.audit.code_fingerprint import fingerprint
from fedspill.audit.course import Course
from fedspill.audit.defense_frontier import candidates_of
from fedspill.audit.lock import locked
from fedspill.audit.matrix import pairs_of
from fedspill.audit.outcomes import JobOutcome, RecordOutcome
from fedspill.audit.result import AuditResult
from fedspill.audit.result_from_store import Cell, StoredAudit
from fedspill.audit.store import NAME, Store
from fedspill.audit.target import AS_DEPLOYED, Target
from fedspill.audit.watcher import Quiet, Watcher
from fedspill.audit.worker_pool import LocalWorkers, Workers
from fedspill.defenses.verify import check_defenses
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.deployment.recorded_plan import recorded_plan
from fedspill.dp_audit.of_plan import claims_something
from fedspill.errors import FedspillError, UsageError
from fedspill.files import sha256
from fedspill.plain_text import one_line
from fedspill.registry import find
from fedspill.trace_folder import FolderTrace
from fedspill.truth_table import brought_truth
from fedspill.version import __version__

TWINS = 5  # three make intervals half as wide again, ten cost twice as much for a fifth less


@dataclass(frozen=True)
class Request:
    """What a caller asks for."""

    plan: Plan
    folder: Path
    trace: Path | None = None
    partial: bool = False
    explicit_plan: bool = True
    plan_file: Path | None = None
    data_dir: Path | None = None
    show_data: bool = False
    fresh: bool = False
    retry: bool = False
    accepted: Accepted = NOTHING_ACCEPTED
    truth: Path | None = None  # of a recording: a table of what clients trained on
    nodes: Path | None = None
    twins: int = TWINS  # of a recording whose truth is not known; 0: none
    workers: Callable[[Target], Workers] | None = None  # None: processes of this machine, as many as the plan says


def run_audit(
    plan: Plan,
    folder: Path | str,
    *,
    trace: Path | str | None = None,
    data_dir: Path | str | None = None,
    watcher: Watcher | None = None,
    show_data: bool = False,
    fresh: bool = False,
) -> AuditResult:
    """Audits a plan, or a recording under a plan, into a folder; the same call continues what was stopped.

    Args:
        plan: The deployment, who attacks it with what, and how it is run.
        folder: Where everything is kept; `fedspill report FOLDER` makes the report from it.
        trace: A recording to audit instead of running the plan's federation.
        data_dir: The folder of real data sets.
        watcher: Whoever wants to know how far it is.
        show_data: Whether what was reconstructed may be in the result.
        fresh: Whether to start over, whatever the folder holds.
    """
    request = Request(
        plan,
        Path(folder),
        trace=None if trace is None else Path(trace),
        explicit_plan=trace is None or {"data", "model"} <= plan.model_fields_set,
        data_dir=None if data_dir is None else Path(data_dir),
        show_data=show_data,
        fresh=fresh,
    )
    return answer(request, watcher or Quiet())


def answer(request: Request, watcher: Watcher) -> AuditResult:
    """Runs what is not done yet; the result is made from the store alone."""
    _make_folder(request.folder)
    with locked(request.folder):
        if request.fresh:
            _clear(request.folder)
        store = Store(request.folder, create=True)
        target = _prepare(request, store, watcher)
        make_workers = request.workers or (lambda t: LocalWorkers(t, t.plan.workers, t.plan.limits))
        _drop_failed(store, request.retry)
        if done := len(store.results()):
            watcher.say(f"{done} done, continuing.")
        state = StoredAudit(store, request.folder)
        with make_workers(target) as workers:
            try:
                Course(store, state, workers, watcher).run()
            finally:
                watcher.ended()
        _tidy(target, state.seeds)
        return state.result(request.accepted, date.today())


def result_of(folder: Path, accepted: Accepted | None = None) -> AuditResult:
    """The result of a stored audit, finished or not."""
    store = Store(folder, create=False)
    facts = store.facts()
    if "target" not in facts:
        raise UsageError(f"The audit in {folder} stopped before it began.", remedy="Run the same command again.")
    kept = Accepted(tuple(Acceptance.model_validate(entry) for entry in facts.get("accepted", [])))
    return StoredAudit(store, folder).result(kept if accepted is None else accepted, date.today())


def _drop_failed(store: Store, retry: bool) -> None:
    """What could not be recorded is tried again: a full disk or a killed process is no property of a defense."""
    for key, stored in store.results().items():
        if _is_failed_record(stored.outcome) or (retry and stored.outcome.status == "errored"):
            store.drop([key])


def _is_failed_record(outcome: JobOutcome) -> bool:
    return isinstance(outcome, RecordOutcome) and outcome.status != "ok"


def _prepare(request: Request, store: Store, watcher: Watcher) -> Target:
    """Writes down what is audited, or checks that it is what the folder holds already."""
    plan = request.plan
    target = Target(
        plan,
        request.folder,
        fingerprint(plan),
        request.trace,
        request.partial,
        request.explicit_plan,
        request.data_dir,
        request.show_data,
        request.truth,
        request.nodes,
        request.twins if request.trace else 0,
    )
    identity = {"plan": plan.essence(), "show_data": request.show_data, **_trace_identity(request)}
    facts = store.facts()
    if "identity" in facts and facts["identity"] != identity:
        raise UsageError(
            f"{request.folder} holds another audit; it differs in {_difference(facts['identity'], identity)}.",
            remedy="Name another --out folder, or start over with --fresh.",
        )
    if facts.get("code") != target.code or "about" not in facts:
        # Loading what is deployed finds what no look at the plan can: missing data, shares that cannot be met.
        about = _about_trace(request.trace, request) if request.trace else _about_plan(target)
        if "code" in facts:
            watcher.say("The code has changed since this folder was made; everything is done anew.")
            store.drop(list(store.results()))
        store.note({"about": about, "code": target.code})
    about = store.facts()["about"]
    cells = []
    for pair in pairs_of(plan, about["secure_aggregation"]):
        try:
            said = pair.facts
        except FedspillError:  # a faulty plug-in: its own job will say what is wrong, the others go on
            cells.append(Cell(pair, find("attacks", pair.attack).title, "unknown", ()))
        else:
            cells.append(Cell(pair, said.title, said.leak, tuple(pair.lacks())))
    candidates = candidates_of(plan) if request.trace is None else []
    store.note(
        {
            "identity": identity,
            "target": target.as_json(),
            "matrix": [cell.as_json() for cell in cells],
            "candidates": [setting.as_json() for setting in candidates],
            "fedspill": __version__,
            "plan_file": str(request.plan_file) if request.plan_file else None,
            "traces": [identity["trace"]] if request.trace else [],
            "versions": {name: version(name) for name in ("torch", "numpy", "scipy")}
            | {"python": platform.python_version()},
            "accepted": [entry.model_dump(mode="json") for entry in request.accepted.entries],
        }
    )
    return target


def _about_plan(target: Target) -> dict[str, Any]:
    deployment = Deployment.of(target.plan, target.data_dir)
    candidates = candidates_of(target.plan)
    recordings = 1 + len(candidates) + (MOST_PROPOSED if candidates else 0)
    first, others = (deployment.recording_bytes(keep) for keep in (deployment.keep(), target.plan.record.keep()))
    needed = target.plan.repeats * (first + (recordings - 1) * others)
    free = shutil.disk_usage(target.folder).free
    if needed > 0.9 * free:
        raise UsageError(
            f"Recording takes up to {needed:,} bytes, {free:,} are free under {target.folder}.",
            remedy="Record fewer rounds, clients or layers ([record] in the plan), or try fewer candidates.",
        )
    return {
        "description": deployment.describe(),
        "data_note": deployment.dataset.note,
        "classes": list(deployment.dataset.classes),
        "secure_aggregation": target.plan.federation.secure_aggregation,
    }


def _about_trace(folder: Path, request: Request) -> dict[str, Any]:
    trace = FolderTrace(folder, partial=request.partial)
    protocol = trace.protocol
    plan = recorded_plan(protocol)
    # Defenses that the plan names are what should be on, even where it leaves data and model to the recording.
    deployed = request.plan if request.explicit_plan or request.plan.defenses else plan
    what = plan.data.name if plan else "a federation of others"
    classes = protocol.get("classes")
    defenses = deployed.settings().defenses if deployed else ()
    return {
        "description": one_line(
            f"recording {folder.name}: {what}, {protocol.get('algorithm', 'unknown algorithm')}, "
            f"{protocol.get('client_count', 'an unknown number of')} clients a round"
        ),
        "classes": [str(index) for index in range(classes if isinstance(classes, int) else 0)],
        "secure_aggregation": bool(protocol.get("secure_aggregation")),
        "checks": [asdict(check) for check in check_defenses(defenses, trace)],
        "claims": [defense.name for defense in defenses if claims_something(defense)],
    }


def _trace_identity(request: Request) -> dict[str, Any]:
    """The recording and the truth that was brought, by their content."""
    if request.trace is None:
        if request.truth or request.nodes:
            raise UsageError("--truth and --nodes are of a recording.", remedy="Name the recording with --trace.")
        return {}
    brought = [path for path in (request.truth, request.nodes) if path is not None]
    if brought and request.truth is None:
        raise UsageError("--nodes says which client of the truth is which node.", remedy="Name the truth with --truth.")
    if request.truth is not None:
        brought_truth(FolderTrace(request.trace, partial=request.partial), request.truth, request.nodes)
    files = [file for path in brought for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    said = {"truth": [sha256(file) for file in files]} if files else {}
    return {"trace": sha256(request.trace / "index.jsonl"), **said}


def _difference(before: dict[str, Any], now: dict[str, Any], place: str = "") -> str:
    """The first place where two plans differ, and how."""
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            return _difference(old, new, f"{place}{key}.")
        if old != new:
            return f"{place}{key} ({old!r} there, {new!r} asked for)"
    return "nothing"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}.", remedy="Name another --out folder.") from None


def _clear(folder: Path) -> None:
    """Removes what an audit wrote, and nothing else; a store that cannot be read is kept beside, as somebody's work."""
    try:
        sound = (folder / NAME).is_file() and bool(Store(folder, create=False).facts() or True)
    except FedspillError:
        sound = False
    for name in (NAME, f"{NAME}-journal"):
        path = folder / name
        if sound:
            path.unlink(missing_ok=True)
        elif path.exists() or path.is_symlink():
            path.replace(path.with_name(f"{name}.aside-{time.time_ns()}"))
    for name in ("traces", "twins"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _tidy(target: Target, seeds: Sequence[int]) -> None:
    """Keeps the recordings of the deployment as it is, to repeat attacks on; the others can be made again."""
    shutil.rmtree(target.folder / "twins", ignore_errors=True)
    traces = target.folder / "traces"
    if target.trace is not None or not traces.is_dir():
        return
    kept = {target.trace_folder(AS_DEPLOYED, seed).name for seed in seeds}
    for path in traces.iterdir():
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def with_plan(request: Request, **changes: Any) -> Request:
    """The same request with some of the plan replaced, checked again."""
    values = {**request.plan.model_dump(mode="json"), **{k: v for k, v in changes.items() if v is not None}}
    return replace(request, plan=check_plan(values, "the command line"))


def with_proxy(request: Request, name: str) -> Request:
    """The same request with these data in the place of the recording's own, which nobody else has."""
    if request.trace is None:
        raise UsageError("--proxy names data for twins of a recording.", remedy="Name the recording with --trace.")
    plan = request.plan
    if "model" not in plan.model_fields_set:
        recorded = recorded_plan(FolderTrace(request.trace, partial=request.partial).protocol)
        if recorded is None:
            raise UsageError("The recording does not say its model.", remedy="Name it in a plan beside --proxy.")
        plan = recorded
    values = {**plan.model_dump(mode="json", exclude_unset=True), "model": plan.model.model_dump(), "data": name}
    return replace(request, plan=check_plan(values, "the command line"), explicit_plan=True)
