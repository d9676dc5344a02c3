"""What a command and all that it starts cost: CPU seconds, peak memory and peak disk, looked at from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
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


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Cost:
    """Runs it; the size of `folder` is what it takes of the disk."""
    began, seen, memory, disk = time.monotonic(), dict[int, float](), 0, 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for pid in tree_of(process.pid):
                # Processes that ended keep what they had taken when last seen; who waits for children counts them too.
                seen[pid] = max(seen.get(pid, 0.0), _cpu_of(pid))
            memory = max(memory, memory_of(process.pid))
            disk = max(disk, size_of(folder))
            time.sleep(_GLANCE)
    return Cost(process.returncode, time.monotonic() - began, sum(seen.values()), memory, disk)


def foretold_and_measured(plan: Path | None, folder: Path, *importable: Path) -> tuple[dict[str, Any], Cost]:
    """What `--dry-run` says of a plan (None: the default one), and what its audit by one worker then takes."""
    paths = os.pathsep.join(filter(None, [*map(str, importable), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedspill", "audit", *([] if plan is None else [str(plan)])]
    measured([*command, "--dry-run", "--json", str(folder / "told.json")], folder, environment)
    cost = measured([*command, "--out", str(folder / "out")], folder / "out", environment)
    if cost.code:
        raise SystemExit(f"the audit of {plan} ended with {cost.code}")
    return json.loads((folder / "told.json").read_text()), cost


def figures(told: dict[str, Any], cost: Cost) -> list[str]:
    """CPU seconds, MB of memory and MB of disk, each with what was foretold over what was measured."""
    both = (
        (cost.cpu, told["cpu_seconds"], 1.0),
        (cost.memory, told["memory_bytes"], 2.0**20),
        (cost.disk, told["disk_bytes"], 2.0**20),
    )
    return [f"{real / unit:,.1f} ({foretold / real:.2f})" for real, foretold, unit in both]


def size_of(folder: Path) -> int:
    """Bytes of all files under it; files that go away meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _cpu_of(pid: int) -> float:
    """Seconds that the process itself has run."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
