"""The command line. Nothing heavy is imported before a command needs it: `--help` and `list` start without torch."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedspill.audit import commands as audit_commands
from fedspill.errors import ExitCode, FedspillError, UsageError
from fedspill.terminal import Screen, plain

if TYPE_CHECKING:
    from fedspill.audit.deployment import Deployment

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
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except FedspillError as error:
        Screen().error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        Screen().error("Interrupted.")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        # A fault of ours. Not its text, which may quote data; and not Python's own code 1, which means findings.
        if os.environ.get("FEDSPILL_DEBUG"):
            raise
        Screen().error(
            f"Internal error: {type(error).__name__} {_place_of(error)}. Please report it; FEDSPILL_DEBUG=1 shows all."
        )
        sys.exit(ExitCode.INCOMPLETE)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends a command as Ctrl-C does, with the code that shells expect."""
    sys.exit(128 + number)


def _place_of(error: BaseException) -> str:
    from fedspill.audit.worker import place_of

    return place_of(error)


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
    from fedspill.audit.recorded import recorded_knowledge
    from fedspill.registry import entries, make
    from fedspill.threat import adversary as named_adversary
    from fedspill.tracefolder import FolderTrace

    _one_thread("cpu")
    made = make("attacks", name, dict(map(_option, set_ or [])))
    threat = named_adversary(adversary)
    recorded = FolderTrace(trace, partial=partial)
    for event in recorded.events:
        Screen().say(f"round {event.round}, {plain(event.party)}: {plain(event.what)}")
    guess = made(
        recorded.view(threat, me="client:0", knowledge=recorded_knowledge(recorded.protocol, data_dir)),
        seed=seed,
        limit=limit,
    )
    truth = recorded.truth()
    metrics = [make("metrics", entry.name) for entry in entries("metrics")]
    scores = {metric.name: metric.score(guess, truth) for metric in metrics if isinstance(guess, metric.guesses)}
    rows = [
        [metric, f"{s.value:.4f}", f"[{s.low:.4f}, {s.high:.4f}]", str(s.n), f"{s.chance:.4f}"]
        for metric, s in scores.items()
    ]
    Screen().table(["metric", "value", "95 % interval", "n", "chance"], rows)
    as_json = {}
    for metric, score in scores.items():
        numbers = {"value": score.value, "low": score.low, "high": score.high, "chance": score.chance}
        finite = {word: number if math.isfinite(number) else None for word, number in numbers.items()}
        as_json[metric] = {**finite, "n": score.n, "status": score.status}
    _write_json(json_file, {"attack": name, "adversary": adversary, "scores": as_json, "notes": list(guess.notes)})


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="PAPER/TABLE as the paper names it, e.g. 003/1.")],
    scale: Annotated[Literal["quick", "full"], typer.Option(help="quick: minutes on 2 cores.")] = "quick",
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
    batch_size: Annotated[int | None, typer.Option(help="Samples per local step; always needed.")] = None,
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


audit_commands.register(app)


def _run_federation(deployment: Deployment, recorder: Any, device: str, workers: int, screen: Screen) -> float:
    """All rounds with a progress bar; returns the test accuracy of the global model."""
    from fedspill.federation.horizontal import Horizontal
    from fedspill.federation.local import accuracy

    federation = deployment.federation(recorder, device=device, workers=workers)
    if not isinstance(federation, Horizontal):
        federation.run()
        return accuracy(federation.model, deployment.dataset.test)
    try:
        for number in screen.progress(range(deployment.settings.rounds), "rounds"):
            for event in federation.round(number).events:
                screen.say(f"round {event.round}, {plain(event.party)}: {plain(event.what)}")
    finally:
        federation.close()
    recorder.finish()
    return accuracy(federation.model, deployment.dataset.test.to(device))


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
