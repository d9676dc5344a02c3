"""A recorded trace to damage, and the means to forge one: whoever writes a trace can compute its checks too."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spine import federation, network, protocol_of, ragged_clients

from fedspill.federation.horizontal import Settings
from fedspill.trace_folder import FolderRecorder
from fedspill.training import LocalTraining

Lines = list[dict[str, Any]]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "pristine"
    settings = Settings(rounds=3, training=LocalTraining(batch_size=4))
    recorder = FolderRecorder(folder, protocol_of(network(), settings, 4))
    federation(ragged_clients(), recorder=recorder, rounds=3).run()
    return folder


@pytest.fixture
def trace(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the trace, to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "trace"))


@pytest.fixture
def forge(trace: Path) -> Callable[[Callable[[Lines], object]], Path]:
    """Edits the lines of the index and computes all checks anew, as a forger would."""

    def forge(edit: Callable[[Lines], object]) -> Path:
        lines = [json.loads(line) for line in (trace / "index.jsonl").read_bytes().splitlines()]
        edit(lines)
        check, out = "", b""
        for line in lines:
            line.pop("check", None)
            check = hashlib.sha256(check.encode() + canonical(line)).hexdigest()[:32]
            out += canonical({**line, "check": check}) + b"\n"
        (trace / "index.jsonl").write_bytes(out)
        return trace

    return forge


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
