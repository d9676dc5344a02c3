"""The recorder's memory does not grow with the rounds."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from flwr.app import Message
from little import Little, all_nodes

from fedspill.flower import record
from fedspill.trace_folder import FolderTrace


def test_what_the_recorder_holds_does_not_grow_with_rounds(tmp_path: Path) -> None:
    held: dict[int, int] = {}

    def look(number: int, index: int, reply: Message) -> Message:
        if number in (10, 60) and index == 0:
            ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/fedspill/*")])
            held[number] = sum(statistic.size for statistic in ours.statistics("filename"))
        return reply

    little = Little(clients=2, rounds=62, misbehave=look)
    tracemalloc.start()
    try:
        little.run(record(all_nodes(), tmp_path / "trace"))
    finally:
        tracemalloc.stop()
    assert sum(1 for _ in FolderTrace(tmp_path / "trace").messages("update")) == 124
    round_bytes = 4 * sum(parameter.numel() * 4 for parameter in little.model().parameters())
    assert held[60] - held[10] < 35 * round_bytes  # of 50 rounds; on a busy machine some are still on their way
