"""A process and all that it started, however far removed: how much memory they hold, and how to end them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_ROUNDS = 50  # of killing: a process may start another while it is being looked for


def tree_of(root: int) -> list[int]:
    """The process and its descendants, children before their own; only the process where the system does not say."""
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and (parent := _parent(entry.name)) is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def memory_of(root: int) -> int:
    """Bytes that the whole tree holds for itself; pages of shared libraries count for nobody."""
    return sum(held_by(pid) for pid in tree_of(root))


def end_tree(root: int) -> None:
    """Ends the process and all its descendants, also those that left its process group."""
    for _ in range(_ROUNDS):
        descendants = tree_of(root)[1:]
        if not descendants:
            break
        for pid in descendants:
            _kill(pid)
        time.sleep(0.005)
        if all(is_dead(pid) for pid in tree_of(root)[1:]):
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    _kill(root)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _fields(pid: int | str) -> list[str]:
    """Of /proc/PID/stat, those behind the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: str) -> int | None:
    fields = _fields(pid)
    return int(fields[1]) if len(fields) > 1 else None


def is_dead(pid: int) -> bool:
    if not Path("/proc/self/stat").exists():
        return not _answers(pid)
    fields = _fields(pid)
    return not fields or fields[0] in "ZX"


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def held_by(pid: int) -> int:
    """The same of one process alone."""
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
        return max(int(resident) - int(shared), 0) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
