"""A client mod that writes down, on the client's own disk, what labels it trained on: the truth for `--truth`."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsInt

from flwr.app import Context, MessageType
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedspill.flower.guard_memory import GuardMemory
from fedspill.flower.mods import round_number
from fedspill.truth_table import COLUMNS


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
            number = round_number(msg, GuardMemory(context, "truth", None))
            self._write(context.node_id, number, Counter(int(label) for label in self.labels(context)))
        return reply

    def _write(self, node: int, number: int, counts: Counter[int]) -> None:
        self.to.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.to / f"{node}.csv"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", newline="") as file:
            table = csv.writer(file)
            if not path.stat().st_size:
                table.writerow(COLUMNS)
            table.writerows([f"client:{node}", number, label, counts[label]] for label in sorted(counts))
