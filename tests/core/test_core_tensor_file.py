"""Large messages lie in files: what is read is what was said, mapped and not copied, and no reader changes it."""

import json
import os
from pathlib import Path

import pytest
import torch
from spine import federation, network, protocol_of, ragged_clients, recorded

import fedspill.tensor_file as tensor_file
from fedspill.errors import InputRefused, TraceRefused, UsageError
from fedspill.federation.horizontal import Settings
from fedspill.files import write_tensors
from fedspill.messages import Message
from fedspill.tensor_file import TensorFile
from fedspill.trace import Keep, MemoryTrace
from fedspill.trace_folder import FolderRecorder, FolderTrace
from fedspill.training import LocalTraining

TENSORS = {
    "z.weight": torch.arange(12, dtype=torch.float32).view(3, 4),
    "a.counter": torch.tensor(7),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 5),
}


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message counts as large."""
    monkeypatch.setattr(tensor_file, "LARGE", 1)


def test_what_is_put_into_a_file_comes_back_in_its_order() -> None:
    held = TensorFile.holding(TENSORS)
    assert list(held) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert held[name].dtype == tensor.dtype
        assert torch.equal(held[name], tensor)
    assert held.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in TENSORS.values())


def test_a_reader_writes_into_a_copy_of_its_own() -> None:
    held = TensorFile.holding(TENSORS)
    mine = held["z.weight"]
    mine.fill_(-1)
    assert float(mine.sum()) == -12
    assert torch.equal(held["z.weight"], TENSORS["z.weight"])


def test_a_tensor_outlives_the_file_that_it_came_from() -> None:
    tensor = TensorFile.holding(TENSORS)["z.weight"]  # the file is closed by now
    assert torch.equal(tensor, TENSORS["z.weight"])


def test_files_are_closed_when_nobody_reads_them_any_more() -> None:
    TensorFile.holding(TENSORS)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        TensorFile.holding(TENSORS)["z.weight"].sum()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_copy_is_another_file_with_the_same_tensors() -> None:
    held = TensorFile.holding(TENSORS)
    copied = held.copied()
    assert os.fstat(copied.fileno()).st_ino != os.fstat(held.fileno()).st_ino
    assert all(torch.equal(copied[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
    ],
)
def test_a_file_whose_tensors_lie_elsewhere_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InputRefused, match="sound safetensors"):
        TensorFile.open(tmp_path / "f")


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InputRefused, match="sound safetensors"):
        TensorFile.open(tmp_path / "f")


def _record(folder: Path, keep: Keep | None = None) -> None:
    settings = Settings(rounds=2, training=LocalTraining(batch_size=4))
    recorder = FolderRecorder(folder, protocol_of(network(), settings, 4), keep or Keep())
    federation(ragged_clients(), recorder=recorder).run()


def _said(trace: MemoryTrace | FolderTrace) -> list[tuple[object, ...]]:
    return [
        (m.round, m.sender, m.kind, dict(m.info), [(name, tensor.tolist()) for name, tensor in m.tensors.items()])
        for m in trace.messages()
    ]


def test_a_federation_says_the_same_however_its_messages_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = _said(recorded()[0])
    monkeypatch.setattr(tensor_file, "LARGE", 1)
    memory, _ = recorded()
    _record(tmp_path / "t")
    folder = FolderTrace(tmp_path / "t")
    assert all(isinstance(m.tensors, TensorFile) for trace in (memory, folder) for m in trace.messages())
    assert _said(memory) == small
    assert _said(folder) == small
    assert len(list((tmp_path / "t" / "rounds" / "000000").iterdir())) == 6  # model, four updates, sum


def test_a_large_message_that_was_altered_is_refused(tmp_path: Path, all_large: None) -> None:
    _record(tmp_path / "t")
    file = tmp_path / "t" / "rounds" / "000001" / "000002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(TraceRefused, match="altered"):
        FolderTrace(tmp_path / "t")
    assert {m.round for m in FolderTrace(tmp_path / "t", partial=True).messages()} == {0}


def test_a_round_whose_large_message_cannot_be_written_is_dropped_whole(
    tmp_path: Path, all_large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FolderRecorder(tmp_path / "t", {})
    message = Message(0, "server", "all", "model", {"a": torch.ones(2)})
    recorder.say(message)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda folder: type("usage", (), {"free": 1}))
        recorder.say(message)
        with pytest.raises(UsageError, match="are free"):
            recorder.end_round(0)
    recorder.say(Message(1, "server", "all", "model", {"a": torch.ones(2)}))
    recorder.end_round(1)
    recorder.finish()
    assert [message.round for message in FolderTrace(tmp_path / "t").messages()] == [1]
    assert sorted(path.name for path in (tmp_path / "t" / "rounds").iterdir()) == ["000001", "000001.safetensors"]


def test_many_small_messages_are_written_in_packs_before_their_round_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedspill.trace_folder as trace_folder

    monkeypatch.setattr(trace_folder, "PACK_TENSORS", 8)  # two messages of this network
    _record(tmp_path / "t")
    assert _said(FolderTrace(tmp_path / "t")) == _said(recorded()[0])
    packs = sorted(path.name for path in (tmp_path / "t" / "rounds" / "000000").iterdir())
    assert packs == [f"pack-{place:06d}.safetensors" for place in (0, 2, 4)]
    file = tmp_path / "t" / "rounds" / "000001" / packs[1]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(TraceRefused, match="altered"):
        FolderTrace(tmp_path / "t")


def test_recordings_of_the_first_version_are_read(tmp_path: Path) -> None:
    """As the first release wrote them: all messages of a round in one file."""
    import fedspill.trace_folder as trace_folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_folder, "VERSION", 1)
        _record(tmp_path / "t")
    assert _said(FolderTrace(tmp_path / "t")) == _said(recorded()[0])


def test_the_last_layer_is_read_without_the_rest(tmp_path: Path) -> None:
    """Of 64 MB only the pages of the small tensor become part of the process."""
    write_tensors(tmp_path / "f", {"body": torch.zeros(16 << 20), "head": torch.ones(10)})
    file = TensorFile.open(tmp_path / "f")
    before = _resident()
    assert float(file["head"].sum()) == 10
    body = file["body"]
    assert _resident() - before < 4 << 20
    assert float(body[::1024].sum()) == 0
    assert _resident() - before > 32 << 20  # so that the measure is one


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
