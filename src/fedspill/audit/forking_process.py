"""The fork server: a process with torch loaded and nothing else; it copies itself for whoever asks.

A copy becomes a worker, or the process of one attack. A worker first makes a fork server of its own, for the attacks
that it will run: whatever the worker comes to hold, nothing of it is in the memory of an attack.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedspill.audit import attack_process, worker_process
from fedspill.audit.fork_server import PIECE, use_server
from fedspill.audit.namespaces import die_with_parent


def serve_forks(orders: socket.socket) -> None:
    """Forks until its owner has gone."""
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while (order := _received(orders)) is not None:
        (read, write, files), told = order
        child = os.fork()
        if child == 0:
            orders.close()
            _become(read, write, files, told)
            os._exit(0)
        for end in (read, write, files):
            os.close(end)
        orders.sendall(str(child).encode())


def _become(read: int, write: int, files: int, told: dict[str, Any]) -> None:
    """What the copy is there for, until it is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    sys.path[:] = told["path"]
    with suppress(OSError):
        os.chdir(told["folder"])
    if told["serve"] == "worker":
        os.close(files)  # it opens files itself
        _make_server_for_attacks(read, write)
    with os.fdopen(read, "rb") as asked, os.fdopen(write, "wb", buffering=0) as answered:
        if told["serve"] == "worker":
            worker_process.serve(asked, answered)
        else:
            with socket.socket(fileno=files) as handed:
                attack_process.serve(asked, answered, handed, [Path(folder) for folder in told["hidden"]])


def _make_server_for_attacks(read: int, write: int) -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        for end in (read, write):
            os.close(end)
        ours.close()
        serve_forks(theirs)
        os._exit(0)
    theirs.close()
    use_server(child, ours)


def _received(orders: socket.socket) -> tuple[list[int], dict[str, Any]] | None:
    """Two ends of pipes and one for files, and what to do; None when the owner has gone."""
    text, ends, _, _ = socket.recv_fds(orders, PIECE, 3)
    while text and not text.endswith(b"\n"):
        more = orders.recv(PIECE)
        text = text + more if more else b""
    return (ends, json.loads(text)) if text else None


if __name__ == "__main__":
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
