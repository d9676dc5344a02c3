"""A client mod that writes down, on the client's own disk, what labels it trained on: the truth for `--truth`."""

from __future__ import annotations

import csv
import io
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsInt

from flwr.app import Context, MessageType
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedspill.failing_line import failed_with
from fedspill.files import write_bytes
from fedspill.flower.guard_memory import GuardMemory
from fedspill.flower.mods import round_number
from fedspill.truth_table import COLUMNS

LOG = logging.getLogger("flwr.fedspill")


def truth_mod(labels: Callable[[Context], Iterable[SupportsInt]], to: Path | str) -> Mod:
    """`ClientApp(mods=[truth_mod(labels_of, "truth")])`: one file a node, `truth/<node>.csv`, a row a round and label.

    labels  the labels that this client trains on; called once a round, after training
    to      a folder of this client. Nothing of it is sent; whoever audits collects the files.
    """
    return TruthMod(labels, Path(to))


@dataclass(frozen=True)
class TruthMod:
    """Trains as without it, then writes."""

    labels: Callable[[Context], Iterable[SupportsInt]]
    to: Path

    def __call__(self, msg: FlowerMessage, context: Context, call_next: ClientAppCallable) -> FlowerMessage:
        reply = call_next(msg, context)
        if msg.metadata.message_type.partition(".")[0] == MessageType.TRAIN and not reply.has_error():
            try:
                memory = GuardMemory(context, "truth", None)
                number = round_number(msg, memory)
                memory.remember(number + 1, None)
                self._write(context.node_id, number, Counter(int(label) for label in self.labels(context)))
            except Exception as error:  # a client without truth is better than one that does not train
                LOG.error("fedspill: the labels of this round were not written: %s", failed_with(error))
        return reply

    def _write(self, node: int, number: int, counts: Counter[int]) -> None:
        """Puts the round's rows into the file; those of an earlier run of the same round give way."""
        self.to.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, written = self.to / f"{node}.csv", io.StringIO()
        table = csv.writer(written)
        table.writerow(COLUMNS)
        table.writerows(row for row in _rows(path) if row[1] != str(number))
        table.writerows([f"client:{node}", number, label, counts[label]] for label in sorted(counts))
        write_bytes(path, written.getvalue().encode())


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]
