"""The commands of the page on Flower, on the example app: Flower starts its own simulation on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import ROOT, lines, run

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@contextmanager
def flower_home(folder: Path) -> Iterator[dict[str, str]]:
    """A home and ports of its own. The SuperLink that `flwr run` leaves running there is ended."""
    ports = {f"FLWR_LOCAL_{name}_PORT": free_port() for name in ("SUPERLINK_HTTP_API", "CONTROL_API")}
    try:
        yield {**QUIET, **ports, "FLWR_HOME": str(folder)}
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                named = str(folder).encode() in (process / "cmdline").read_bytes()
            except OSError:  # it has ended meanwhile
                continue
            if named:
                os.kill(int(process.name), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_runs_and_its_recording_is_audited(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs flwr")
    pytest.importorskip("ray", reason="needs Ray")
    app = tmp_path / "app"
    shutil.copytree(ROOT / "examples" / "flower", app, ignore=shutil.ignore_patterns("__pycache__", "*.trace"))
    start, audit = lines("docs/flower.md")
    with flower_home(tmp_path / "flwr") as home:
        for _ in range(3):  # Flower gives its SuperLink 15 seconds to come up, which a busy machine may need twice
            started = run(app, *start, **home)
            if "Failed to start local SuperLink within" not in started.stderr:
                break
    assert started.returncode == 0, started.stdout + started.stderr
    audited = run(app, *audit)
    assert audited.returncode == 5, audited.stdout + audited.stderr  # read, and no truth to hold it against
