"""`fedspill audit`: every attack that an adversary of the deployment could run, ranked, with a report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspill.cli.options import (
    Accept,
    FailOn,
    Html,
    Json,
    Junit,
    Markdown,
    Partial,
    Sarif,
    refuse_missing_device,
    write_json,
)
from fedspill.cli.terminal import Screen

if TYPE_CHECKING:
    from fedspill.audit.run_audit import Request
    from fedspill.audit.target import Target
    from fedspill.deployment.plan import Plan


def audit(
    plan: Annotated[Path | None, typer.Argument(help="The plan (TOML); default: a small federation on digits.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the audit; the same one continues.")] = Path("fedspill-audit"),
    trace: Annotated[Path | None, typer.Option(help="Audit this recording instead of running a federation.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Table of what clients of the recording trained on: client,round,label,count.")
    ] = None,
    nodes: Annotated[Path | None, typer.Option(help="Table node,client: whose name in --truth is which node.")] = None,
    partial: Partial = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of real data sets.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster; 'local' makes one.")] = None,
    proxy: Annotated[
        str | None, typer.Option(metavar="DATA", help="Data of the kind, for twins of a recording without truth.")
    ] = None,
    twins: Annotated[int, typer.Option(min=0, help="Twins of a recording without truth; 0: none.")] = 5,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Federations with seeds of their own.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would run, and what it would cost.")] = False,
    fresh: Annotated[bool, typer.Option(help="Start over, whatever the folder holds.")] = False,
    retry: Annotated[bool, typer.Option(help="Run again what errored.")] = False,
    show_data: Annotated[bool, typer.Option(help="Put what was reconstructed into the report.")] = False,
    fail_on: FailOn = None,
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
    sarif: Sarif = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Runs every attack that an adversary of the deployment could run, ranks what leaked and writes a report."""
    from fedspill.audit.accepted import read_accepted
    from fedspill.audit.run_audit import Request, answer, with_plan, with_proxy
    from fedspill.cli.finish import finish
    from fedspill.cli.live_matrix import LiveMatrix
    from fedspill.deployment.plan import read_plan

    screen = Screen()
    checked = read_plan(plan)
    explicit = trace is None or {"data", "model"} <= checked.model_fields_set
    request = Request(
        checked, out, trace, partial, explicit, plan, data_dir, show_data, fresh, retry, read_accepted(accept)
    )
    request = replace(with_proxy(request, proxy) if proxy else request, truth=truth, nodes=nodes, twins=twins)
    request = with_plan(request, device=device, workers=workers, seed=seed, repeats=repeats, fail_on=fail_on)
    if ray is None or dry_run:  # a cluster may have GPUs where this machine has none
        refuse_missing_device(request.plan.device)
    if dry_run:
        _tell(screen, request, json_file)
        return
    if ray is not None:
        request = _on_ray(request, ray, request.plan.workers if workers or _names_workers(checked) else None)
    result = answer(request, LiveMatrix(screen))
    finish(screen, out, result, html, json_file, sarif, junit, markdown)


def _tell(screen: Screen, request: Request, json_file: Path | None) -> None:
    """What --dry-run prints, and, with --json, writes."""
    from fedspill.audit.cost_estimate import estimate
    from fedspill.audit.matrix import pairs_of
    from fedspill.audit.why_not import reason
    from fedspill.report.figures import counted

    if request.trace is not None:
        pairs = [(pair, reason(pair)) for pair in pairs_of(request.plan)]
        screen.say(f"Recording {request.trace}.")
    else:
        told = estimate(request.plan, request.data_dir)
        pairs = told.pairs
        screen.say(f"{told.description}.")
    runs: dict[str, list[str]] = {}
    reasons: Counter[str] = Counter()
    for pair, why_not in pairs:
        if why_not:
            reasons[why_not] += 1
        else:
            runs.setdefault(pair.id.rpartition("/")[0], []).append(pair.adversary)
    screen.table(["attack", "by"], [[attack, ", ".join(by)] for attack, by in runs.items()])
    told_why = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    screen.say(f"{sum(reasons.values())} pairs do not run: {told_why}." if reasons else "Every pair runs.")
    if request.trace is None:
        screen.say(
            f"About {told.recordings} federations and {told.attacks} attacks (defenses are tried on findings only): "
            f"{max(told.minutes, 0.1):.1f} minutes with {counted(request.plan.workers, 'worker')} on idle cores, "
            f"and {told.bytes:,} bytes."
        )
        gpu = f", {_size(told.gpu_memory_bytes)} of GPU memory a worker" if told.gpu_memory_bytes else ""
        screen.say(
            f"Within a factor of two: {told.cpu_seconds:.0f} CPU seconds, {_size(told.memory_bytes)} of memory "
            f"({_size(told.unit_memory_bytes)} a worker){gpu}, {_size(told.disk_bytes)} of disk."
        )
        write_json(json_file, told.as_json())


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.1f} MB"


def _names_workers(plan: Plan) -> bool:
    return "workers" in plan.model_fields_set


def _on_ray(request: Request, address: str, count: int | None) -> Request:
    """Where nobody says how many workers, a cluster has as many as it has room for."""
    from fedspill.audit.cost_estimate import needs_of
    from fedspill.audit.ray_workers import RayWorkers

    def workers(target: Target) -> RayWorkers:
        return RayWorkers(target, address, count, target.plan.limits, needs_of(target))

    return replace(request, workers=workers)
