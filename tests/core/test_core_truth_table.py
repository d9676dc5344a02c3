"""Truth brought as a table: the same facts that a recording of our own holds, and one sentence for every mistake."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from audit_kit import record_without_truth, tiny

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.errors import FedspillError
from fedspill.messages import AGGREGATOR, SERVER
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace, Origin
from fedspill.trace_folder import FolderTrace
from fedspill.truth_table import FACTS, brought_truth


@pytest.fixture(scope="module")
def whole() -> MemoryTrace:
    """The federation with its truth."""
    deployment = Deployment.of(tiny())
    heard = MemoryTrace(deployment.protocol())
    deployment.federation(heard).run()
    return heard


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> FolderTrace:
    """The same without."""
    folder = tmp_path_factory.mktemp("bare") / "trace"
    record_without_truth(tiny(), folder)
    return FolderTrace(folder)


def write(path: Path, rows: list[list[object]], columns: str = "client,round,label,count") -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns.split(","))
        table.writerows(rows)
    return path


def rows_of(whole: MemoryTrace) -> list[list[object]]:
    return [
        [origin.sender, origin.round, label, count]
        for (origin, name), counts in whole.truth().facts.items()
        if name == "label_counts" and origin.sender != AGGREGATOR
        for label, count in enumerate(counts.tolist())
        if count
    ]


def test_a_table_brings_what_a_recording_with_truth_holds(
    whole: MemoryTrace, bare: FolderTrace, tmp_path: Path
) -> None:
    truth = brought_truth(bare, write(tmp_path / "labels.csv", rows_of(whole)))
    for name in ("label_counts", "label_counts_by_client", "clients"):
        told = {origin: fact for (origin, word), fact in whole.truth().facts.items() if word == name}
        assert told
        for origin, fact in told.items():
            assert torch.equal(truth.get(origin, name), fact), (origin, name)


def test_an_attack_scores_alike_with_the_table_and_with_the_truth(
    whole: MemoryTrace, bare: FolderTrace, tmp_path: Path
) -> None:
    table = write(tmp_path / "labels.csv", rows_of(whole))
    server = adversary("curious-server")
    own = run_attack(make("attacks", "ebi"), whole, server, seed=1)
    brought = run_attack(make("attacks", "ebi"), bare, server, seed=1, truth=brought_truth(bare, table))
    assert own.scores["label-asr"] == brought.scores["label-asr"]


def test_all_stands_for_every_round_and_nodes_map_names_to_addresses(bare: FolderTrace, tmp_path: Path) -> None:
    table = write(tmp_path / "labels.csv", [[f"site-{index}", "all", index % 10, 5] for index in range(12)])
    nodes = write(tmp_path / "nodes.csv", [[f"client:{index}", f"site-{index}"] for index in range(12)], "node,client")
    truth = brought_truth(bare, table, nodes)
    assert truth.get(Origin(1, "client:3"), "label_counts")[3] == 5
    assert int(truth.get(Origin(0, SERVER), "label_totals").sum()) == 60


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        ([["client:0", 0, 3, -1]], "client,round,label,count", "count is a whole number"),
        ([["client:0", 0, 10, 1]], "client,round,label,count", "label is a whole number from 0 to 9"),
        ([["client:0", "first", 1, 1]], "client,round,label,count", "round is a whole number"),
        ([["client:0", 0, 3]], "client,round,label", "no column count"),
        ([["client:99", "all", 3, 1]], "client,round,label,count", "no client of the recording"),
    ],
)
def test_a_mistake_in_the_table_is_named(
    rows: list[list[object]], columns: str, said: str, bare: FolderTrace, tmp_path: Path
) -> None:
    with pytest.raises(FedspillError, match=said):
        brought_truth(bare, write(tmp_path / "labels.csv", rows, columns))


def test_every_fact_that_a_recording_holds_has_its_words(whole: MemoryTrace) -> None:
    assert {name for _, name in whole.truth().facts} <= set(FACTS)
