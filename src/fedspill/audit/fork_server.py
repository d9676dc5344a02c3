"""The fork server, seen from its owner: a process with torch loaded, of which the process of every attack is a copy.

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
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedspill.audit.process_tree import end_tree

# What a process of Python and torch needs to run; no secret of the auditor's shell, and not where data lie.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
_PIECE = 1 << 16

_server: _ForkServer | None = None


@dataclass(frozen=True)
class Forked:
    """A process that serves an attack, and our ends of its pipes."""

    pid: int
    orders: BinaryIO
    answers: BinaryIO


def fork(hidden: Sequence[Path]) -> Forked:
    """A fresh process for one attack, for which `hidden` folders are empty; the server is started at the first call."""
    global _server
    if _server is None or not _server.alive:
        _server = _ForkServer()
        atexit.register(_server.close)
    return _server.fork(hidden)


class _ForkServer:
    """The owner's side. The server ends with its owner, and all that it forked with it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-W", "ignore", "-m", "fedspill.audit.attack_process", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,  # what attacks print goes nowhere
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        end_tree(self._process.pid)
        self._process.wait()
        self._socket.close()

    def fork(self, hidden: Sequence[Path]) -> Forked:
        order = json.dumps({"hidden": [str(folder) for folder in hidden], "path": list(filter(None, sys.path))})
        read_orders, write_orders = os.pipe()
        read_answers, write_answers = os.pipe()
        try:
            socket.send_fds(self._socket, [order.encode() + b"\n"], [read_orders, write_answers])
            pid = int(self._socket.recv(_PIECE))
        except (OSError, ValueError):
            os.close(write_orders)
            os.close(read_answers)
            raise
        finally:
            os.close(read_orders)
            os.close(write_answers)
        return Forked(pid, os.fdopen(write_orders, "wb"), os.fdopen(read_answers, "rb"))
