"""`fedspill simulate`: runs the federation of a plan and records what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspill.cli.options import DataDir, Device, JsonFile, use_one_thread, write_json
from fedspill.cli.terminal import Screen
from fedspill.plain_text import plain

if TYPE_CHECKING:
    from fedspill.deployment.deployment import Deployment
    from fedspill.trace import Recorder


def simulate(
    plan: Annotated[Path, typer.Argument(help="The plan (TOML).")],
    trace: Annotated[Path, typer.Option(help="New folder for the recording.")],
    data_dir: DataDir = None,
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes for client training.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Runs the federation of a plan and records what is sent."""
    from fedspill.deployment.deployment import Deployment
    from fedspill.deployment.plan import read_plan
    from fedspill.trace_folder import FolderRecorder

    screen = Screen()
    checked = read_plan(plan)
    use_one_thread(device)
    deployment = Deployment.of(checked, data_dir)
    keep = deployment.keep()
    screen.say(f"Recording to {trace}: at most {_size(deployment.recording_bytes(keep))}.")
    recorder = FolderRecorder(trace, deployment.protocol(), keep)
    reached = _run_federation(deployment, recorder, device, workers, screen)
    screen.say(f"Recorded {checked.federation.rounds} rounds. Test accuracy {reached:.1%}.")
    write_json(json_file, {"trace": str(trace), "rounds": checked.federation.rounds, "accuracy": reached})


def _run_federation(deployment: Deployment, recorder: Recorder, device: str, workers: int, screen: Screen) -> float:
    """All rounds with a progress bar; returns the test accuracy of the global model."""
    from fedspill.audit.engines import federation_of
    from fedspill.federation.horizontal import Horizontal
    from fedspill.federation.local import accuracy

    federation = federation_of(deployment, recorder, device=device, workers=workers)
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


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
