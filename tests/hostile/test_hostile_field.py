"""Every line of the table of hostile trials of version 0.1 (research/field_tests.md) that was seen to break it.

Cheating plug-ins are in test_hostile_cheats.py, replies of Flower clients in tests/flower/test_record_failures.py.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedspill.audit.frames import LENGTHS, Frame, read_frame, unpack_guess
from fedspill.audit.process_tree import end_tree, memory_of, tree_of
from fedspill.audit.store import NAME, Store
from fedspill.deployment.plan import read_plan
from fedspill.deployment.recorded_plan import recorded_plan
from fedspill.errors import AttackFailed, ExitCode, FedspillError, InputRefused, TraceRefused, UsageError
from fedspill.files import read_tensors, sha256
from fedspill.intervals import RESOLUTION
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.metrics import LabelSuccess
from fedspill.plain_text import one_line
from fedspill.trace import Origin, Truth
from fedspill.trace_folder import FolderTrace


@pytest.fixture
def claiming(trace: Path, forge: Callable[[Callable[[list[dict[str, Any]]], object]], Path]) -> Callable[..., Path]:
    """The recording with other claims in its header, its chain made anew."""

    def claiming(**said: Any) -> Path:
        header = json.loads((trace / "trace.json").read_text())
        header["protocol"] |= said
        (trace / "trace.json").write_text(json.dumps(header))
        return forge(lambda lines: lines[0].update(trace=sha256(trace / "trace.json")))

    return claiming


@pytest.mark.parametrize(
    "said",
    [
        {"classes": 10**9},
        {"classes": -5},
        {"classes": 0},
        {"classes": 2.5e300},
        {"classes": "many"},
        {"local_lr": 0},
        {"local_lr": -1.0},
        {"batch_size": 0},
        {"batch_size": 10**18},
        {"local_epochs": 0},
    ],
)
def test_a_header_that_cannot_be_is_refused_by_name(claiming: Callable[..., Path], said: dict[str, Any]) -> None:
    (name,) = said
    with pytest.raises(TraceRefused, match=name) as refused:
        FolderTrace(claiming(**said))
    assert refused.value.exit_code == ExitCode.REFUSED


def test_more_classes_than_the_head_has_rows_are_refused(trace: Path, claiming: Callable[..., Path]) -> None:
    protocol = json.loads((trace / "trace.json").read_text())["protocol"]
    with pytest.raises(TraceRefused, match="rows"):
        FolderTrace(claiming(classes=int(protocol["classes"]) + 1))


def test_a_head_that_no_message_has_does_not_vouch_for_a_billion_classes(claiming: Callable[..., Path]) -> None:
    with pytest.raises(TraceRefused, match="head"):
        FolderTrace(claiming(classes=10**9, head_weight="nowhere.weight"))


@pytest.mark.parametrize(
    "data",
    [
        {"name": "image-folder", "path": "/"},
        {"name": "image-folder", "path": "data"},
        {"name": "digits", "where": "../../etc"},
        {"name": "custom", "factory": "os:system"},
    ],
)
def test_a_recording_names_no_path_and_no_code(data: dict[str, Any]) -> None:
    assert recorded_plan({"plan": {"data": data}}) is None


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"[table{n}]\nkey = 1" for n in range(2000)),
        ".".join(["a"] * 8000) + " = 1",
        "[" + ".".join(["a"] * 8000) + "]",
        "seed = " + "9" * 100_000,
        "seed = 1\n" + "# " + "x" * (2 << 20),
        "x = " + "[" * 5000,
    ],
    ids=["tables", "dotted key", "dotted table", "digits", "bytes", "depth"],
)
def test_a_plan_that_nobody_wrote_is_refused_before_it_costs_anything(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(UsageError):
        read_plan(path)
    assert time.process_time() - began < 5  # of the processor; it was minutes


def test_a_file_of_holes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hollow.safetensors"
    size = 4 << 30
    head = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + size)
    with pytest.raises(InputRefused, match=r"hollow|too large"):
        read_tensors(path)


def test_a_store_that_was_changed_is_refused_with_code_4_and_never_read_otherwise(tmp_path: Path) -> None:
    """60 bytes flipped, one at a time: either nothing of it is different, or it is refused."""
    (tmp_path / "whole").mkdir()
    store = Store(tmp_path / "whole", create=True)
    store.note({"about": {"description": "a federation"}, "target": "x" * 3000})
    sound, pristine = (tmp_path / "whole" / NAME).read_bytes(), store.facts()
    step = len(sound) // 60
    for place in range(0, step * 60, step):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / NAME).write_bytes(sound[:place] + bytes([sound[place] ^ 0x55]) + sound[place + 1 :])
        code = ExitCode.REFUSED
        try:
            damaged = Store(folder, create=False)
            assert (damaged.facts(), damaged.results()) == (pristine, {})
        except FedspillError as error:
            code = error.exit_code
        assert code is ExitCode.REFUSED


def test_a_result_that_was_edited_is_found_out(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    with sqlite3.connect(tmp_path / NAME) as database:
        database.execute("INSERT INTO results VALUES ('k', 'attack', '{}', '{\"status\": \"ok\"}', 1.0, 'forged')")
    with pytest.raises(InputRefused, match="damaged"):
        store.results()


@pytest.mark.parametrize("content", [b"", b"not a database at all", b"SQLite format 3\0" + bytes(100)])
def test_a_foreign_store_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(InputRefused, match=NAME):
        Store(tmp_path, create=False)


def test_a_store_of_version_0_1_is_refused_by_name(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / NAME) as database:
        database.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        database.execute("CREATE TABLE results (key TEXT PRIMARY KEY, kind, job, outcome, seconds) WITHOUT ROWID")
    with pytest.raises(InputRefused, match="another version"):
        Store(tmp_path, create=True)


FORK = """
import os, sys, time
held = []
if os.fork() == 0:
    os.setsid()              # leaves the process group
    if os.fork() == 0:       # and loses its parent
        held = bytearray(200 << 20)
        for place in range(0, len(held), 4096):
            held[place] = 1
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_of_children_counts_and_none_escapes() -> None:
    lines = [
        "import subprocess, sys",
        "from fedspill.audit.namespaces import become_subreaper",
        "become_subreaper()",
        f"subprocess.run([sys.executable, '-c', {FORK!r}])",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    escaped = int(process.stdout.readline())
    assert escaped in tree_of(process.pid)
    assert memory_of(process.pid) > 200 << 20
    end_tree(process.pid)
    process.wait()
    process.stdout.close()
    # Its parent is gone; whoever takes it in may take a moment to bury it.
    assert any(_is_gone(escaped) or time.sleep(0.01) for _ in range(500))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_garbage_in_the_pipe_is_a_malformed_answer(tmp_path: Path) -> None:
    for content in (
        LENGTHS.pack(1 << 60, 0),
        LENGTHS.pack(4, 0) + b"\x80\x04\x95.",
        LENGTHS.pack(2, 0) + b"[]",
        LENGTHS.pack(20_000, 0) + b"[" * 20_000,
    ):
        path = tmp_path / "pipe"
        path.write_bytes(content)
        with path.open("rb") as pipe, pytest.raises(AttackFailed, match="malformed"):
            read_frame(pipe)


@pytest.mark.parametrize(
    "guess",
    [
        {},
        {"of": {"origins": [[0, "client:0"]]}},
        {"of": {"origins": 5}, "counts": {"tensor": "0"}},
        {"of": {"origins": [["x", 1]]}, "counts": {"value": 1}},
        {"of": {"origins": [[0, "client:0"]]}, "counts": {"value": "text"}, "notes": {"texts": [5]}},
        {"of": {"code": "import os"}},
    ],
)
def test_a_guess_that_is_none_is_a_malformed_answer(guess: dict[str, Any]) -> None:
    with pytest.raises(AttackFailed):
        unpack_guess(LabelCounts, Frame({"guess": guess}))


def test_few_messages_do_not_hide_a_certain_leak() -> None:
    """Six batches of one label, all right: what guessing gets was .83 with hindsight."""
    labels = (0, 0, 0, 0, 0, 3)
    of = [Origin(0, f"client:{n}") for n in range(6)]
    counts = torch.eye(10, dtype=torch.int64)[list(labels)]
    facts = {(origin, "label_counts"): row for origin, row in zip(of, counts, strict=True)}
    distinct = torch.eye(10, dtype=torch.int64)[[0, 7, 3, 9, 1, 4]]
    several = {(origin, "label_counts"): row for origin, row in zip(of, distinct, strict=True)}
    skewed = LabelSuccess().score(LabelCounts(of, counts), Truth(facts))
    found = LabelSuccess().score(LabelCounts(of, distinct), Truth(several))
    assert found.value == skewed.value == 1
    assert found.chance < 0.2 < skewed.chance + RESOLUTION
    assert found.low > found.chance


def test_a_name_prints_no_line_of_its_own() -> None:
    assert one_line("client\nfedspill: all is well\x1b[2J\u2028x") == "client fedspill: all is well\ufffd[2J x"
