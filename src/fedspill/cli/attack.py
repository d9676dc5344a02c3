"""`fedspill attack`: one attack on a recorded federation, scored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspill.cli.options import DataDir, Device, JsonFile, Partial, option_value, use_one_thread, write_json
from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode, NotApplicable
from fedspill.plain_text import plain

if TYPE_CHECKING:
    from fedspill.attack_run import Outcome
    from fedspill.metric import Score
    from fedspill.reading import Reading


def attack(
    name: Annotated[str, typer.Argument(help="The attack, or module:Class of your own.")],
    trace: Annotated[Path, typer.Option(help="A recorded trace.")],
    adversary: Annotated[str, typer.Option(help="Who attacks.")] = "curious-server",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the attack.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="module:Class of a metric of your own.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="The plan of the recording, where it names code or data of your own.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Table of what clients trained on: client,round,label,count.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 7,
    limit: Annotated[float | None, typer.Option(help="Seconds after which the attack is stopped.")] = None,
    partial: Partial = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    json_file: JsonFile = None,
) -> None:
    """Runs one attack on a recorded trace and scores it.

    An attack that alters the model, a party's training or what goes back to it runs in a federation of its own: the
    recorded one, made again.
    """
    from fedspill.attack import ActiveAttack, refuse_unfit
    from fedspill.attack_run import run_attack
    from fedspill.audit.planted_run import run_planted
    from fedspill.deployment.deployment import Deployment
    from fedspill.deployment.plan import make_importable, read_plan
    from fedspill.deployment.recorded_plan import recorded_deployment
    from fedspill.registry import make
    from fedspill.threat import ALTERING
    from fedspill.threat import adversary as named_adversary
    from fedspill.trace import MemoryTrace, Trace
    from fedspill.trace_folder import FolderTrace
    from fedspill.truth_table import brought_truth

    screen = Screen()
    use_one_thread(device)
    for folder in (Path.cwd(), *([plan.resolve().parent] if plan else [])):
        make_importable(folder)  # for code of one's own: module:Class
    made = make("attacks", name, dict(map(option_value, set_ or [])))
    threat = named_adversary(adversary)
    recorded: Trace = FolderTrace(trace, partial=partial)
    for event in recorded.events:
        screen.say(f"round {event.round}, {plain(event.party)}: {plain(event.what)}")
    deployment = Deployment.of(read_plan(plan), data_dir) if plan else recorded_deployment(recorded.protocol, data_dir)
    knowledge = deployment.knowledge() if deployment else {}
    altering = made.needs.does & ALTERING
    if isinstance(made, ActiveAttack) or altering:
        if deployment is None:
            raise NotApplicable(
                f"{name} alters the federation, and the recording does not say how to run it again.",
                remedy="Name its plan with --plan.",
            )
        refuse_unfit(made, threat)
    if isinstance(made, ActiveAttack) and deployment is not None:
        recorded, knowledge = run_planted(made, threat, deployment)
    elif altering and deployment is not None:
        recorded = altered = MemoryTrace(deployment.protocol())
        deployment.federation(altered, altering=altering).run()
    known = brought_truth(recorded, truth) if truth else recorded.truth()
    outcome = run_attack(
        made,
        recorded,
        threat,
        knowledge=knowledge,
        seed=seed,
        truth=known.beside(deployment.shares.clients) if deployment else known,
        metrics=[make("metrics", one) for one in metric or []],
        limit=limit,
        progress=screen,
        device=device,
    )
    _show(screen, outcome)
    scores = {one: _as_json(score) for one, score in outcome.scores.items()}
    reading = outcome.reading.model_dump(mode="json") if outcome.reading else None
    said = {"attack": name, "adversary": adversary, "scores": scores, "notes": outcome.notes, "reading": reading}
    write_json(json_file, said)
    if outcome.status == "read":
        raise typer.Exit(ExitCode.READ)


def _show(screen: Screen, outcome: Outcome) -> None:
    rows = [
        [metric, f"{s.value:.4f}", f"[{s.low:.4f}, {s.high:.4f}]", str(s.n), f"{s.chance:.4f}"]
        for metric, s in outcome.scores.items()
        if s.status == "ok"
    ]
    unscored = {metric: s.why for metric, s in outcome.scores.items() if s.status != "ok"}
    if outcome.status == "read" and outcome.reading is not None:
        _show_reading(screen, outcome.reading)
    elif rows:
        screen.table(["metric", "value", "95 % interval", "n", "chance"], rows)
    elif not unscored:
        screen.say(f"Not scored: {outcome.why}.")
    for metric, why in unscored.items():
        screen.say(f"{metric}: not scored, {why}.")


def _show_reading(screen: Screen, reading: Reading) -> None:
    """What was read, where nothing is known to hold it against."""
    from fedspill.reading import FEW

    screen.say(f"Reads {reading.summary}; nothing is known to hold that against.")
    if reading.expects is not None:
        screen.say(f"It expects {round(100 * reading.expects)} of 100 to be right.")
    for table in reading.tables:
        screen.say(f"{table.title}:")
        rows = [[f"under {FEW}" if entry is None else str(entry) for entry in row] for row in table.rows]
        screen.table(table.columns, rows)


def _as_json(score: Score) -> dict[str, Any]:
    numbers = {"value": score.value, "low": score.low, "high": score.high, "chance": score.chance}
    finite = {word: number if math.isfinite(number) else None for word, number in numbers.items()}
    return {**finite, "n": score.n, "status": score.status}
