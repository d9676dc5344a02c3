"""The commands of the audit: `audit`, `report` and `compare`. Nothing heavy is imported before one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedspill.errors import ExitCode, UsageError
from fedspill.terminal import Screen

if TYPE_CHECKING:
    from fedspill.audit.runner import Request

Level = Literal["low", "medium", "high", "critical"]
FailOn = Annotated[Level | None, typer.Option(help="Exit 1 when a finding is at or above this severity.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write the page to this file.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the JSON to this file.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", help="Also write SARIF to this file.")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Also write Markdown to this file.")]
Accept = Annotated[Path | None, typer.Option(help="TOML file of accepted findings (id, reason, until).")]


def register(app: typer.Typer) -> None:
    app.command()(audit)
    app.command()(report)
    app.command()(compare)


def audit(
    plan: Annotated[Path | None, typer.Argument(help="The plan (TOML); default: a small federation on digits.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the audit; the same one continues.")] = Path("fedspill-audit"),
    trace: Annotated[Path | None, typer.Option(help="Audit this recording instead of running a federation.")] = None,
    partial: Annotated[bool, typer.Option(help="Open an unfinished recording up to its last whole round.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of real data sets.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster; 'local' makes one.")] = None,
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
    from fedspill.audit.plan import read_plan
    from fedspill.audit.progress import LiveMatrix
    from fedspill.audit.runner import Request, run_audit, with_plan

    screen = Screen()
    checked = read_plan(plan)
    explicit = trace is None or {"data", "model"} <= checked.model_fields_set
    request = Request(
        checked, out, trace, partial, explicit, plan, data_dir, show_data, fresh, retry, read_accepted(accept)
    )
    request = with_plan(request, device=device, workers=workers, seed=seed, repeats=repeats, fail_on=fail_on)
    _check_device(request.plan.device)
    if dry_run:
        _tell(screen, request)
        return
    if ray is not None:
        request = _on_ray(request, ray)
    result = run_audit(request, LiveMatrix(screen))
    _finish(screen, out, result, html, json_file, sarif, junit, markdown)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an audit.")],
    fail_on: FailOn = None,
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
    sarif: Sarif = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Makes every output of an audit again from its store, finished or not."""
    from fedspill.audit.accepted import read_accepted
    from fedspill.audit.runner import result_of

    result = result_of(folder, read_accepted(accept) if accept else None)
    if fail_on is not None:
        result["plan"]["fail_on"] = fail_on
    _finish(Screen(), folder, result, html, json_file, sarif, junit, markdown)


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="An audit folder, or the JSON of an audit.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The later one.")],
    fail_on: Annotated[
        Level | None, typer.Option(help="Exit 1 when something new or worse is at or above this.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the result as JSON to this file.")
    ] = None,
) -> None:
    """Shows what is new, fixed, or changed by more than noise between two audits."""
    from fedspill.audit.compare import compare as differences
    from fedspill.audit.compare import read_result
    from fedspill.audit.severity import Severity
    from fedspill.files import write_bytes
    from fedspill.report.outputs import as_json

    found = differences(read_result(before), read_result(after))
    if json_file is not None:
        write_bytes(json_file, as_json({"schema": 1, "differences": [d.as_json() for d in found]}).encode())
    screen = Screen()
    changed = [difference for difference in found if difference.change != "same"]
    if changed:
        screen.table(["change", "finding", "before", "after"], [[d.change, d.id, d.before, d.after] for d in changed])
    screen.say(f"{len(changed)} changed beyond noise, {len(found) - len(changed)} did not.")
    bad = [d for d in changed if d.change in ("new", "worse") and d.severity]
    if fail_on and any(Severity[d.severity.upper()] >= Severity[fail_on.upper()] for d in bad if d.severity):
        raise typer.Exit(ExitCode.FINDINGS)


def exit_code(result: dict[str, Any]) -> ExitCode:
    """1 for findings at or above the bar, else 3 when something was not measured, else 0."""
    from fedspill.audit.severity import Severity

    bar = result["plan"]["fail_on"]
    open_ = [f for f in result["findings"] if f["status"] == "ok" and not f["accepted"]]
    if bar and any(Severity[finding["severity"].upper()] >= Severity[bar.upper()] for finding in open_):
        return ExitCode.FINDINGS
    return ExitCode.OK if result["verdict"]["complete"] else ExitCode.INCOMPLETE


def _finish(screen: Screen, folder: Path, result: dict[str, Any], *also: Path | None) -> None:
    """Writes, shows, and ends with the code that the result deserves."""
    from fedspill.report.outputs import write_all

    names = ("html", "json", "sarif", "junit", "markdown")
    written = write_all(folder, result, {name: path for name, path in zip(names, also, strict=True) if path})
    _show(screen, result)
    screen.say(f"Report: {written['html']}")
    code = exit_code(result)
    if code:
        raise typer.Exit(code)


def _show(screen: Screen, result: dict[str, Any]) -> None:
    screen.say(result["deployment"])
    rows = []
    for finding in result["findings"]:
        score = finding["score"]
        if finding["status"] == "ok":
            word = finding["severity"] + (" (accepted)" if finding["accepted"] else "")
            value = f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"
            chance, n = f"{score['chance']:.3f}", str(score["n"])
            rows.append([word, finding["attack"], finding["adversary"], score["metric"], value, chance, n])
        elif finding["status"] != "skipped":
            rows.append([finding["status"], finding["attack"], finding["adversary"], finding["why"], "", "", ""])
    if rows:
        screen.table(["severity", "attack", "adversary", "metric", "score [95 %]", "chance", "n"], rows)
    for check in result["defense_checks"]:
        if check["on"] is False:
            screen.say(f"Configured but not applied: {check['defense']}: {check['why']}.")
    for family in result["families"]:
        screen.say(f"What helps against leaks of {family['family']}, measured: {family['advice']}")
    counts, controls = result["verdict"]["statuses"], result["controls"]
    screen.say(
        f"{counts['ok']} scored, {counts['unscored']} unscored, {counts['errored']} errored, "
        f"{counts['skipped']} skipped; "
        f"{sum(control['passed'] for control in controls)} of {len(controls)} controls passed."
    )


def _tell(screen: Screen, request: Request) -> None:
    """What --dry-run prints."""
    from fedspill.audit.estimate import SECONDS_PER_STRIKE, estimate
    from fedspill.audit.matrix import pairs_of

    if request.trace is not None:
        pairs = [(pair, pair.lacks()) for pair in pairs_of(request.plan)]
        screen.say(f"Recording {request.trace}.")
    else:
        told = estimate(request.plan, request.data_dir)
        pairs = told.pairs
        screen.say(f"{told.description}.")
    rows = []
    for pair, lacks in pairs:
        runs = f"skipped: needs {'; '.join(lacks)}" if lacks else "yes"
        rows.append([pair.id.rpartition("/")[0], pair.adversary, runs])
    screen.table(["attack", "adversary", "runs"], rows)
    if request.trace is None:
        screen.say(
            f"At most {told.recordings} federations and {told.strikes} attacks (defenses are tried on findings only): "
            f"about {max(told.minutes, 0.1):.1f} minutes with {request.plan.workers} workers, taking "
            f"{SECONDS_PER_STRIKE:g} s for an attack, and {told.bytes:,} bytes."
        )


def _on_ray(request: Request, address: str) -> Request:
    from dataclasses import replace

    from fedspill.audit.ray_workers import RayWorkers

    plan = request.plan
    return replace(request, workers=lambda target: RayWorkers(target, address, plan.workers, plan.limits))


def _check_device(device: str) -> None:
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise UsageError(f"Device {device!r} is not available here.", remedy="Use --device cpu.")
