"""The command line. Nothing heavy is imported before a command needs it: `--help` and `list` start without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedspill.errors import ExitCode, FedspillError, UsageError
from fedspill.terminal import Screen, plain

if TYPE_CHECKING:
    from fedspill.audit.deployment import Deployment
    from fedspill.audit.findings import Finding
    from fedspill.trace import Trace

app = typer.Typer(
    help="Measures what a federated-learning deployment leaks, to whom, how surely, and what stops it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the result as JSON to this file.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of real data sets (default: FEDSPILL_DATA, then ./data).")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Listable = Literal["attacks", "defenses", "metrics", "datasets", "partitions", "models", "adversaries", "papers"]


def main() -> None:
    """The entry point: our errors become one message and an exit code; anything else is never a success."""
    try:
        app()
    except FedspillError as error:
        Screen().error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        Screen().error("Interrupted.")
        sys.exit(ExitCode.INTERRUPTED)


@app.command("list")
def list_(what: Annotated[Listable, typer.Argument(help="What to list.")], json_file: JsonFile = None) -> None:
    """Lists what there is, without importing any of it."""
    from fedspill.registry import entries
    from fedspill.threat import ADVERSARIES

    if what == "adversaries":
        found = [{"name": name, "title": threat.title, "paper": ""} for name, threat in ADVERSARIES.items()]
    else:
        found = [{"name": entry.name, "title": entry.title, "paper": entry.paper} for entry in entries(what)]
    _write_json(json_file, found)
    Screen().table(["name", "title", "paper"], [[item["name"], item["title"], item["paper"]] for item in found])


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="The name of anything that `list` shows.")], json_file: JsonFile = None
) -> None:
    """Says what a thing is, where it comes from, what it needs and which options it takes."""
    from fedspill.explain import explain as explain_thing

    about = explain_thing(name)
    _write_json(json_file, about)
    Screen().facts(about)


@app.command()
def simulate(
    plan: Annotated[Path, typer.Argument(help="The plan (TOML).")],
    trace: Annotated[Path, typer.Option(help="New folder for the recording.")],
    data_dir: DataDir = None,
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes for client training.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Runs the federation of a plan and records what is sent."""
    from fedspill.audit.deployment import Deployment
    from fedspill.audit.plan import read_plan
    from fedspill.tracefolder import FolderRecorder

    screen = Screen()
    checked = read_plan(plan)
    _one_thread(device)
    deployment = Deployment.of(checked, data_dir)
    keep = checked.record.keep()
    screen.say(f"Recording to {trace}: at most {_size(deployment.recording_bytes(keep))}.")
    recorder = FolderRecorder(trace, deployment.protocol(), keep)
    accuracy = _run_federation(deployment, recorder, device, workers, screen)
    screen.say(f"Recorded {checked.federation.rounds} rounds. Test accuracy {accuracy:.1%}.")
    _write_json(json_file, {"trace": str(trace), "rounds": checked.federation.rounds, "accuracy": accuracy})


@app.command()
def attack(
    name: Annotated[str, typer.Argument(help="The attack.")],
    trace: Annotated[Path, typer.Option(help="A recorded trace.")],
    adversary: Annotated[str, typer.Option(help="Who attacks.")] = "curious-server",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the attack.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 7,
    limit: Annotated[float | None, typer.Option(help="Seconds after which the attack is stopped.")] = None,
    partial: Annotated[bool, typer.Option(help="Open an unfinished recording up to its last whole round.")] = False,
    data_dir: DataDir = None,
    json_file: JsonFile = None,
) -> None:
    """Runs one attack on a recorded trace and scores it."""
    from fedspill.registry import entries, make
    from fedspill.threat import adversary as named_adversary
    from fedspill.tracefolder import FolderTrace

    _one_thread("cpu")
    made = make("attacks", name, dict(map(_option, set_ or [])))
    threat = named_adversary(adversary)
    recorded = FolderTrace(trace, partial=partial)
    guess = made(recorded.view(threat, me="client:0", knowledge=_knowledge(recorded, data_dir)), seed=seed, limit=limit)
    truth = recorded.truth()
    metrics = [make("metrics", entry.name) for entry in entries("metrics")]
    scores = {metric.name: metric.score(guess, truth) for metric in metrics if isinstance(guess, metric.guesses)}
    rows = [
        [metric, f"{s.value:.4f}", f"[{s.low:.4f}, {s.high:.4f}]", str(s.n), f"{s.chance:.4f}"]
        for metric, s in scores.items()
    ]
    Screen().table(["metric", "value", "95 % interval", "n", "chance"], rows)
    as_json = {
        metric: {"value": s.value, "low": s.low, "high": s.high, "n": s.n, "chance": s.chance, "status": s.status}
        for metric, s in scores.items()
    }
    _write_json(json_file, {"attack": name, "adversary": adversary, "scores": as_json, "notes": list(guess.notes)})


@app.command()
def audit(
    plan: Annotated[Path | None, typer.Argument(help="The plan (TOML); default: a small federation on digits.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html and audit.json.")] = Path("fedspill-audit"),
    data_dir: DataDir = None,
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes for client training.")] = 1,
    fail_on: Annotated[
        Literal["low", "medium", "high", "critical"] | None, typer.Option(help="Exit 1 at or above this severity.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Runs every attack that an adversary of the deployment could run, ranks what leaked and writes a report."""
    from fedspill import __version__
    from fedspill.audit.deployment import Deployment
    from fedspill.audit.findings import ranked
    from fedspill.audit.plan import read_plan
    from fedspill.audit.runner import run_unit, units_of
    from fedspill.audit.severity import Severity
    from fedspill.report.html import write_report
    from fedspill.trace import MemoryTrace

    screen = Screen()
    checked = read_plan(plan)
    _one_thread(device)
    deployment = Deployment.of(checked, data_dir)
    screen.say(deployment.describe())
    trace = MemoryTrace(deployment.protocol(), checked.record.keep())
    accuracy = _run_federation(deployment, trace, device, workers, screen)
    units, knowledge = units_of(checked), deployment.knowledge()
    found = [run_unit(unit, trace, knowledge, checked.seed) for unit in screen.progress(units, "attacks")]
    findings = ranked(found)
    result = {
        "schema": 1,
        "fedspill": __version__,
        "deployment": deployment.describe(),
        "accuracy": accuracy,
        "seed": checked.seed,
        "plan": checked.model_dump(mode="json"),
        "findings": [finding.as_json() for finding in findings],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_report(out / "report.html", result)
    _write_json(out / "audit.json", result)
    _write_json(json_file, result)
    _show_findings(screen, findings)
    screen.say(f"Report: {out / 'report.html'}")
    worst = max((finding.severity for finding in findings if finding.status == "ok"), default=Severity.INFO)
    if fail_on is not None and worst >= Severity[fail_on.upper()]:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="PAPER/TABLE as the paper names it, e.g. 003/1.")],
    scale: Annotated[Literal["quick", "full"], typer.Option(help="quick: about 2 minutes on 2 cores.")] = "quick",
    data_dir: DataDir = None,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(min=0)] = 2024,
    json_file: JsonFile = None,
) -> None:
    """Runs a published table and prints our figures beside the printed ones."""
    from fedspill.reproduce import Run
    from fedspill.reproduce import table as published_table

    screen = Screen()
    chosen = published_table(table)
    _one_thread(device)
    screen.say(f"{table}: {chosen.title} ({scale})")
    rows = []
    for row in chosen.rows(Run(scale, data_dir, device, seed)):
        rows.append(row)
        screen.say(row.line())
        # Written after every row, so that an interrupted run keeps what it has.
        paper, _, name = table.partition("/")
        _write_json(json_file, {"paper": paper, "table": name, "scale": scale, "rows": [r.as_json() for r in rows]})


@app.command()
def inspect(
    before: Annotated[Path | None, typer.Option(help="Checkpoint before local training (safetensors).")] = None,
    after: Annotated[Path | None, typer.Option(help="Checkpoint after local training (safetensors).")] = None,
    gradient: Annotated[Path | None, typer.Option(help="One mean gradient (safetensors).")] = None,
    lr: Annotated[float | None, typer.Option(help="The client's learning rate.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per local step.")] = 1,
    samples: Annotated[int | None, typer.Option(help="Samples in all.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Local steps in all.")] = None,
    head: Annotated[str | None, typer.Option(help="Name of the last linear layer (default: found).")] = None,
    unchecked: Annotated[bool, typer.Option(help="Accept a head whose gradient does not add up to zero.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Reads label counts out of two checkpoints or one gradient, without any model code."""
    from fedspill.inspection import inspect_gradient, inspect_update

    if gradient is not None and (before or after):
        raise UsageError("Give either --gradient, or --before and --after.")
    if gradient is not None:
        result = inspect_gradient(gradient, batch_size=batch_size, head=head, unchecked=unchecked)
    elif before is not None and after is not None and lr is not None:
        result = inspect_update(
            before,
            after,
            lr=lr,
            batch_size=batch_size,
            samples=samples,
            local_steps=local_steps,
            head=head,
            unchecked=unchecked,
        )
    else:
        raise UsageError("Give --before, --after and --lr, or --gradient.")
    _write_json(json_file, result.as_json())
    screen = Screen()
    screen.say(f"Last layer: {plain(result.head.name)}, {result.head.weight.shape[0]} classes.")
    present = [index for index in range(result.head.weight.shape[0]) if int(result.counts[result.best][index])]
    rows = [[str(index), *(str(int(counts[index])) for counts in result.counts.values())] for index in present]
    screen.table(["class", *(f"{name} (best)" if name == result.best else name for name in result.counts)], rows)
    for note in result.notes:
        screen.say(f"Note: {plain(note)}.")


def _run_federation(deployment: Deployment, recorder: Any, device: str, workers: int, screen: Screen) -> float:
    """All rounds with a progress bar; returns the test accuracy of the global model."""
    from fedspill.federation.local import accuracy

    federation = deployment.federation(recorder, device=device, workers=workers)
    try:
        for number in screen.progress(range(deployment.settings.rounds), "rounds"):
            for event in federation.round(number).events:
                screen.say(f"round {event.round}, {plain(event.party)}: {plain(event.what)}")
    finally:
        federation.close()
    recorder.finish()
    return accuracy(federation.model, deployment.dataset.test.to(device))


def _knowledge(trace: Trace, data_dir: Path | None) -> dict[str, Any]:
    """What the trace's own plan lets an adversary know; less where the data are not at hand."""
    from fedspill.audit.deployment import Deployment
    from fedspill.audit.plan import check_plan
    from fedspill.errors import DataMissing

    if "plan" not in trace.protocol:
        return {}
    try:
        return Deployment.of(check_plan(trace.protocol["plan"], "the plan in the trace"), data_dir).knowledge()
    except DataMissing as error:
        Screen().say(f"Note: attacks that need auxiliary data cannot run. {plain(str(error))}")
        return {}


def _show_findings(screen: Screen, findings: list[Finding]) -> None:
    rows = []
    for finding in findings:
        if finding.status == "skipped":
            continue
        score = finding.score
        if finding.status == "ok":
            value = f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
            rows.append(
                [
                    finding.severity.word,
                    finding.attack,
                    finding.adversary,
                    finding.metric,
                    value,
                    f"{score.chance:.3f}",
                    str(score.n),
                ]
            )
        else:
            rows.append([finding.status, finding.attack, finding.adversary, finding.why, "", "", ""])
    screen.table(["severity", "attack", "adversary", "metric", "score [95 %]", "chance", "n"], rows)
    skipped = sum(finding.status == "skipped" for finding in findings)
    screen.say(f"{skipped} of {len(findings)} attack-adversary pairs were skipped; the report says why.")


def _option(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as TOML where it is, else as text."""
    import tomllib

    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"Expected KEY=VALUE, got {text!r}.")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _one_thread(device: str) -> None:
    """One torch thread per process, and an early word when the device is not there."""
    import torch

    torch.set_num_threads(1)
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise UsageError(f"Device {device!r} is not available here.", remedy="Use --device cpu.")


def _write_json(path: Path | None, value: object) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
