"""What a command and all that it starts cost: CPU seconds, peak memory, disk and GPU memory, looked at from outside."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspill.audit.process_tree import memory_of, tree_of

_TICKS = os.sysconf("SC_CLK_TCK")
_GLANCE = 0.1  # seconds; a process that lives shorter is not seen


@dataclass(frozen=True)
class Cost:
    """Of one command, start to end; memory as `[limits]` counts it."""

    code: int
    wall: float
    cpu: float
    memory: int
    disk: int
    gpu_memory: int  # 0 where there is none
    unit_seconds: float  # of the clock, all units of the audit: while a unit runs, it has the GPU


class GpuWatch:
    """The most memory of the GPU that was taken beyond what others held at the start.

    The driver does not tell containers whose memory it is, so others that come or go meanwhile count too.
    """

    def __init__(self) -> None:
        self._before = self._most = _gpu_memory()
        self._ended = threading.Event()
        if self._before:
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            self._most = max(self._most, _gpu_memory())

    def taken(self) -> int:
        self._ended.set()
        return self._most - self._before


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Cost:
    """Runs it; the size of `folder` is what it takes of the disk."""
    began, seen, memory, disk = time.monotonic(), dict[int, float](), 0, 0
    gpu = GpuWatch()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for pid in tree_of(process.pid):
                # Processes that ended keep what they had taken when last seen; who waits for children counts them too.
                seen[pid] = max(seen.get(pid, 0.0), _cpu_of(pid))
            memory = max(memory, memory_of(process.pid))
            disk = max(disk, size_of(folder))
            time.sleep(_GLANCE)
    wall = time.monotonic() - began
    return Cost(process.returncode, wall, sum(seen.values()), memory, disk, gpu.taken(), unit_seconds(folder))


def foretold_and_measured(
    plan: Path | None, folder: Path, *importable: Path, options: Sequence[str] = ()
) -> tuple[dict[str, Any], Cost]:
    """What `--dry-run` says of a plan (None: the default one), and what its audit by one worker then takes."""
    paths = os.pathsep.join(filter(None, [*map(str, importable), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedspill", "audit", *([] if plan is None else [str(plan)]), *options]
    measured([*command, "--dry-run", "--json", str(folder / "told.json")], folder, environment)
    cost = measured([*command, "--out", str(folder / "out")], folder / "out", environment)
    if cost.code:
        raise SystemExit(f"the audit of {plan} ended with {cost.code}")
    return json.loads((folder / "told.json").read_text()), cost


def figures(told: dict[str, Any], cost: Cost) -> list[str]:
    """CPU seconds, MB of memory and of disk, on a GPU its seconds and MB; each with what was foretold over it."""
    both = [
        (cost.cpu, told["cpu_seconds"], 1.0),
        (cost.memory, told["memory_bytes"], 2.0**20),
        (cost.disk, told["disk_bytes"], 2.0**20),
    ]
    if told["gpu_seconds"]:
        both += [(cost.unit_seconds, told["gpu_seconds"], 1.0)]
        both += [(cost.gpu_memory, told["gpu_memory_bytes"], 2.0**20)] if cost.gpu_memory else []
    return [f"{real / unit:,.1f} ({foretold / real:.2f})" for real, foretold, unit in both]


def size_of(folder: Path) -> int:
    """Bytes of all files under it; files that go away meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def unit_seconds(folder: Path) -> float:
    """Seconds of the clock that all units of the audit in the folder took; 0 where there is no audit."""
    store = folder / "audit.sqlite"
    if not store.is_file():
        return 0.0
    with closing(sqlite3.connect(store)) as database:
        return float(database.execute("SELECT coalesce(sum(seconds), 0) FROM results").fetchone()[0])


def _gpu_memory() -> int:
    """Bytes of the first GPU that are in use, by anyone; 0 where there is none."""
    if shutil.which("nvidia-smi") is None:
        return 0
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return int(told) << 20 if told.isdigit() else 0


def _cpu_of(pid: int) -> float:
    """Seconds that the process itself has run."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
