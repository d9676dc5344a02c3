"""One audit at a time in a folder: the second is told who is there; a lock whose owner died is taken over."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedspill.errors import FedspillError, UsageError

LIFE = 60  # seconds without a sign of life after which an owner that cannot be asked is taken for dead


class FolderBusy(UsageError):
    """Another process works in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock. The system drops it with its owner, however that ended; the file says who it was."""
    path = folder / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", remedy="Name another --out folder.") from None
    with os.fdopen(descriptor, "r+") as file:
        owner = _owner(file.read())
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderBusy(
                f"Another audit works in {folder}: process {owner[0]} on {owner[1]}.",
                remedy="Wait for it, or name another --out folder.",
            ) from None
        # The lock itself is ours now. On a file system without locks between machines the owner may live elsewhere:
        # its sign of life says so. A container that died leaves none, and its host name never comes back.
        if owner[1] not in (socket.gethostname(), "?") and _is_fresh(path):
            raise FolderBusy(
                f"{folder} is in use by process {owner[0]} on {owner[1]}, seen less than {LIFE} s ago.",
                remedy=f"Wait; if it has ended, the folder is free in {LIFE} s.",
            )
        _write(file.fileno(), json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        stop = threading.Event()
        beat = threading.Thread(target=_show_life, args=(path, stop), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            _write(file.fileno(), "")


def _show_life(path: Path, stop: threading.Event) -> None:
    while not stop.wait(LIFE / 4):
        with suppress(OSError):
            os.utime(path)


def _is_fresh(path: Path) -> bool:
    return 0 <= time.time() - path.stat().st_mtime < LIFE


def _owner(text: str) -> tuple[str, str]:
    try:
        written = json.loads(text)
        return str(int(written["pid"])), str(written["host"])
    except (ValueError, KeyError, TypeError):
        return "?", "?"


def _write(descriptor: int, text: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError as error:
        raise FedspillError(f"The lock cannot be written: {error.strerror}.") from None
