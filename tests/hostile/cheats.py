"""Ten attacks that cheat: each looks for the truth where it must not be, and answers with it if it finds it.

Copied beside a plan by test_hostile_cheats.py. Each writes what it found into its notes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import socket
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.threat import needs
from fedspill.trace import Origin, Truth


def answer(view, facts, how):
    """The truth if it was found, else nothing but ones."""
    sent = view.get("update")
    of = [Origin(message.round, message.sender) for message in sent]
    classes = int(view.public["classes"])
    counts = torch.ones(len(of), classes, dtype=torch.int64)
    for place, origin in enumerate(of):
        for (found, name), value in facts.items():
            if name == "label_counts" and tuple(found) == tuple(origin):
                counts[place] = value.long()
    return LabelCounts(of, counts, notes=(f"{how}: found {len(facts)} facts",))


def facts_in_files(roots):
    """Every truth file below these folders, read as its own trace would."""
    import safetensors.torch

    facts = {}
    for root in roots:
        for path in Path(root).rglob("truth/*.safetensors"):
            for key, value in safetensors.torch.load_file(path).items():
                sender, _, name = key.rpartition("/")
                facts[Origin(int(path.stem), sender), name] = value
    return facts


def facts_in(objects):
    facts = {}
    for thing in objects:
        try:
            if isinstance(thing, Truth):
                facts.update(thing.facts)
            elif isinstance(thing, dict) and thing and all(isinstance(k, tuple) and len(k) == 2 for k in thing):
                facts.update({k: v for k, v in thing.items() if k[1] == "label_counts"})
        except Exception:  # whatever the objects of others do when they are looked at
            continue
    return facts


class Cheat(Attack):
    paper: ClassVar[str] = "none"
    title: ClassVar[str] = "Cheats"
    needs = needs(sees=["update"])
    leak = LABELS


@final
@dataclass(frozen=True)
class ByGc(Cheat):
    name: ClassVar[str] = "cheat-gc"

    def run(self, view, rng):
        return answer(view, facts_in(gc.get_objects()), "gc")


@final
@dataclass(frozen=True)
class ByFrames(Cheat):
    name: ClassVar[str] = "cheat-frames"

    def run(self, view, rng):
        found, frame = [], sys._getframe()
        while frame is not None:
            found += list(frame.f_locals.values())
            frame = frame.f_back
        source = getattr(view, "_View__source", None) or getattr(view, "_View__said", None)
        found += [cell.cell_contents for cell in (getattr(source, "__closure__", None) or ())]
        found += [getattr(source, "__self__", None)]
        for thing in list(found):
            try:
                found.append(thing.truth())
            except Exception:
                continue
        return answer(view, facts_in(found), "frames")


@final
@dataclass(frozen=True)
class ByFiles(Cheat):
    name: ClassVar[str] = "cheat-files"

    def run(self, view, rng):
        return answer(view, facts_in_files([Path(__file__).parent]), "files")


@final
@dataclass(frozen=True)
class ByProc(Cheat):
    name: ClassVar[str] = "cheat-proc"

    def run(self, view, rng):
        roots = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for link in ("root", "cwd"):
                try:
                    roots.append(os.readlink(f"/proc/{pid}/{link}"))
                    os.listdir(f"/proc/{pid}/{link}/")
                    roots.append(f"/proc/{pid}/{link}{Path(__file__).parent}")
                except OSError:
                    continue
            try:
                open(f"/proc/{pid}/mem", "rb").close() if int(pid) != os.getpid() else None
            except OSError:
                continue
        return answer(view, facts_in_files([root for root in roots if root != "/"]), "proc")


@final
@dataclass(frozen=True)
class BySqlite(Cheat):
    name: ClassVar[str] = "cheat-sqlite"

    def run(self, view, rng):
        read = 0
        for path in Path(__file__).parent.rglob("*.sqlite"):
            with sqlite3.connect(path) as database:
                read += len(database.execute("SELECT * FROM results").fetchall())
                database.execute("UPDATE results SET outcome = '{}'")
        return answer(view, {("x", str(n)): torch.zeros(1) for n in range(read)}, "sqlite")


@final
@dataclass(frozen=True)
class ByEnvironment(Cheat):
    name: ClassVar[str] = "cheat-environment"

    def run(self, view, rng):
        roots = [value for name, value in os.environ.items() if name.startswith("FEDSPILL")]
        secret = os.environ.get("SECRET_OF_THE_AUDITOR", "")
        stolen = {("x", "secret"): torch.zeros(1)} if secret else {}
        return answer(view, facts_in_files(roots) | stolen, "environment")


@final
@dataclass(frozen=True)
class BySockets(Cheat):
    name: ClassVar[str] = "cheat-sockets"

    def run(self, view, rng):
        reached = {}
        for port in (int(line) for line in (Path(__file__).parent / "port.txt").read_text().split()):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    reached["x", "socket"] = torch.zeros(1)
            except OSError:
                continue
        return answer(view, reached, "sockets")


@final
@dataclass(frozen=True)
class ByPtrace(Cheat):
    name: ClassVar[str] = "cheat-ptrace"

    def run(self, view, rng):
        libc, held = ctypes.CDLL(None, use_errno=True), {}
        mine = {os.getpid(), os.getppid()}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) not in mine and int(pid) > 1 and libc.ptrace(16, int(pid), 0, 0) == 0:
                held["x", pid] = torch.zeros(1)
                libc.ptrace(17, int(pid), 0, 0)
        for pid in {os.getppid()} - {0}:
            try:
                os.kill(pid, 9)
            except OSError:
                continue
        return answer(view, held, "ptrace")


@final
@dataclass(frozen=True)
class ByMonkeypatch(Cheat):
    name: ClassVar[str] = "cheat-monkeypatch"

    def run(self, view, rng):
        return answer(view, {}, "monkeypatch")


@final
@dataclass(frozen=True)
class ByPipe(Cheat):
    name: ClassVar[str] = "cheat-pipe"

    def run(self, view, rng):
        class Payload:
            def __reduce__(self):
                return (os.system, (f"touch {Path(__file__).parent / 'pwned'}",))

        for descriptor in range(3, 30):
            try:
                os.write(descriptor, pickle.dumps(Payload()) * 3)
            except OSError:
                continue
        return answer(view, {}, "pipe")


# When this module is imported where the truth is scored, every score is perfect.
import fedspill.leaks.labels.metrics as _metrics  # noqa: E402

_metrics.overlap = lambda guess, real: torch.ones(len(real), dtype=torch.float64)
torch.manual_seed = None  # and whoever comes next is broken
