"""The mod that writes down on the client's disk what it trained on, alone and in the app of examples/own."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from inprocess import InProcess, run
from little import Little, all_nodes, node, same

from fedspill.attack_run import Outcome, run_attack
from fedspill.flower import record, truth_mod
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import Origin, Truth
from fedspill.trace_folder import FolderTrace
from fedspill.truth_table import brought_truth

APP = Path(__file__).parents[2] / "examples" / "own" / "flower_fedadam" / "app.py"


def labels_of(context: Context) -> torch.Tensor:
    return Little().data(int(context.node_config["partition-id"]))[1]


def test_each_client_writes_the_labels_of_each_round_for_itself_alone(tmp_path: Path) -> None:
    little = Little(mods=[truth_mod(labels_of, tmp_path / "truth")])
    little.run(record(all_nodes(), tmp_path / "trace", lr=0.1, batch_size=5))
    files = sorted((tmp_path / "truth").iterdir())
    assert [path.name for path in files] == [f"{node(index)}.csv" for index in range(4)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    truth = brought_truth(FolderTrace(tmp_path / "trace"), tmp_path / "truth")
    for index in range(4):
        expected = little.data(index)[1].bincount(minlength=3)
        for number in range(3):
            found = truth.facts[Origin(number, f"client:{node(index)}"), "label_counts"]
            assert torch.equal(found, expected)


def test_a_second_run_replaces_what_the_first_wrote(tmp_path: Path) -> None:
    little = Little(rounds=1, mods=[truth_mod(labels_of, tmp_path)])
    little.run(all_nodes())
    once = (tmp_path / f"{node(0)}.csv").read_text()
    little.run(all_nodes())
    assert (tmp_path / f"{node(0)}.csv").read_text() == once


def test_rounds_are_counted_where_the_server_does_not_number_them(tmp_path: Path) -> None:
    little = Little(clients=1, rounds=0, mods=[truth_mod(labels_of, tmp_path)])
    grid, app = InProcess(little.app(), 1), truth_mod(labels_of, tmp_path)
    context = grid.contexts[node(0)]
    for _ in range(2):
        message = Message(RecordDict({"arrays": ArrayRecord(little.model().state_dict())}), node(0), "train")
        app(message, context, lambda msg, context: Message(msg.content, reply_to=msg))
    assert {line.split(",")[1] for line in (tmp_path / f"{node(0)}.csv").read_text().split()[1:]} == {"0", "1"}


@pytest.mark.parametrize("broken", [lambda context: 1 / 0, lambda context: ["no number"]])
def test_training_goes_on_where_the_truth_cannot_be_written(broken: object, tmp_path: Path) -> None:
    spoiled = Little(rounds=1, mods=[truth_mod(broken, tmp_path / "truth")])  # type: ignore[arg-type]
    assert same(spoiled.run(all_nodes()), Little(rounds=1).run(all_nodes()))
    (tmp_path / "file").touch()
    no_folder = Little(rounds=1, mods=[truth_mod(labels_of, tmp_path / "file")])
    assert same(no_folder.run(all_nodes()), Little(rounds=1).run(all_nodes()))


def test_the_app_with_batch_norm_and_fedadam_is_read_without_truth_and_scored_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", str(tmp_path / "trace")])
    app = runpy.run_path(str(APP))
    run(app["server"], InProcess(app["client"], app["CLIENTS"]))
    trace = FolderTrace(tmp_path / "trace")
    assert len(list(trace.messages("update"))) == 18
    assert outcome(trace).status == "read"
    known = outcome(trace, brought_truth(trace, tmp_path / "truth"))
    assert (known.status, known.scores["label-asr"].n) == ("ok", 18)
    assert known.scores["label-asr"].value > known.scores["label-asr"].chance


def outcome(trace: FolderTrace, truth: Truth | None = None) -> Outcome:
    return run_attack(make("attacks", "llg"), trace, adversary("curious-server"), seed=1, truth=truth)
