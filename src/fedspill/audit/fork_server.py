"""The fork server, seen from its owner: every worker and the process of every attack is a copy of it.

Loading torch takes seconds, and code of others has a process of its own for each unit of work.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from fedspill.audit.process_tree import end_tree, is_dead

# What a process of Python and torch needs to run; no secret of the auditor's shell, and not where data lie.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
PIECE = 1 << 16

ForkedFor: TypeAlias = Literal["attack", "worker"]
_server: _ForkServer | None = None


@dataclass(frozen=True)
class Forked:
    """A process that takes orders, and our ends of its pipes."""

    pid: int
    orders: BinaryIO
    answers: BinaryIO
    files: socket.socket  # through which it is handed open files

    def end(self) -> None:
        """Ends it and whatever it started, also what left its process group."""
        end_tree(self.pid)
        for pipe in (self.orders, self.answers, self.files):
            with suppress(OSError):
                pipe.close()


def fork(serve: ForkedFor, hidden: Sequence[Path] = ()) -> Forked:
    """A fresh process, for which `hidden` folders are empty; the server is started at the first call."""
    return start_server().fork(serve, hidden)


def start_server() -> _ForkServer:
    """The one that runs, or a new one; nobody waits until it has loaded torch."""
    global _server
    if _server is None or not _server.alive:
        _server = _started()
        atexit.register(_server.close)
    return _server


def use_server(pid: int, orders: socket.socket) -> None:
    """From now on that server, a child of this process, is asked."""
    global _server
    _server = _ForkServer(pid, orders)


class _ForkServer:
    """The owner's side. The server ends with its owner, and all that it forked with it."""

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self._pid, self._socket = pid, orders

    @property
    def alive(self) -> bool:
        return not is_dead(self._pid)

    def close(self) -> None:
        end_tree(self._pid)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._socket.close()

    def fork(self, serve: ForkedFor, hidden: Sequence[Path]) -> Forked:
        told = {"serve": serve, "hidden": [str(folder) for folder in hidden], "path": list(filter(None, sys.path))}
        order = json.dumps({**told, "folder": _working_folder()})
        read_orders, write_orders = os.pipe()
        read_answers, write_answers = os.pipe()
        give_files, get_files = socket.socketpair()
        try:
            socket.send_fds(self._socket, [order.encode() + b"\n"], [read_orders, write_answers, get_files.fileno()])
            pid = int(self._socket.recv(PIECE))
        except (OSError, ValueError):
            os.close(write_orders)
            os.close(read_answers)
            give_files.close()
            raise
        finally:
            os.close(read_orders)
            os.close(write_answers)
            get_files.close()
        return Forked(pid, os.fdopen(write_orders, "wb"), os.fdopen(read_answers, "rb"), give_files)


def _started() -> _ForkServer:
    """A server in a process of its own."""
    ours, theirs = socket.socketpair()
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-W", "ignore", "-m", "fedspill.audit.forking_process", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,  # what attacks print goes nowhere
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    process.returncode = 0  # it is waited for by its number
    return _ForkServer(process.pid, ours)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"
