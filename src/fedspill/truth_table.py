"""Truth from a table: what labels clients trained on, as CSV, for a recording that holds none.

    client,round,label,count
    client:0,all,3,120
    client:0,all,7,40
    client:1,0,3,55

`client` is an address of the recording ("client:7", or just 7), or a name that a second table (node,client) maps a node
to. `round` is a round of the recording, from 0, or "all". Counts are what one pass of that round trained on.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedspill.errors import InputRefused, UsageError
from fedspill.messages import AGGREGATOR, SERVER
from fedspill.trace import Origin, Trace, Truth

COLUMNS = ("client", "round", "label", "count")
NODE_COLUMNS = ("node", "client")
ALL = "all"
MOST_BYTES = 64 << 20
MOST_COUNT = 1 << 40
MOST_LABEL = 1 << 20

# Everything that a metric may ask the truth for, and of whom. A recorder's `truth` can bring all of them; a table the
# first four, which follow from labels.
FACTS: Mapping[str, str] = {
    "label_counts": "of a client in a round, or of the round's sum: samples of each class, (classes,)",
    "label_counts_by_client": "of a round's sum: the same for each client in it, (clients, classes)",
    "clients": "of a round's sum: which clients are in it, (clients,), in the order of label_counts_by_client",
    "label_totals": "of the server in a round: samples of each class that all clients hold together, (classes,)",
    "used_samples": "of a client or a sum: which samples it trained on, (samples, 2) client and row",
    "inputs": "of a client: the samples themselves, (samples, ...); never written down, made from used_samples",
    "input_labels": "of a client: their labels, (samples,); made likewise",
    "asked_places": "of the server in the first round: where the records asked about are, (records, 2), or -1",
    "target_values": "of a sum: the hidden attribute of each target, (targets,)",
    "target_members": "of a sum: whether each target was trained on, (targets,)",
    "target_holders": "of a sum: the client that holds each target, or -1, (targets,)",
}


def brought_truth(trace: Trace, table: Path, nodes: Path | None = None) -> Truth:
    """The recording's own facts, and beside them those that follow from the table."""
    rows = list(_read(table, COLUMNS))
    addresses = _addresses(nodes)
    classes = _classes(trace, rows)
    counted: dict[tuple[str, str], Tensor] = {}
    for line, row in rows:
        who = addresses.get(row["client"], row["client"])
        who = who if ":" in who else f"client:{who}"
        number = row["round"] if row["round"] == ALL else str(_whole(row["round"], "round", line, MOST_COUNT))
        label = _whole(row["label"], "label", line, classes - 1)
        counts = counted.setdefault((who, number), torch.zeros(classes, dtype=torch.int64))
        counts[label] += _whole(row["count"], "count", line, MOST_COUNT)
    facts = _facts(trace, counted, classes)
    if not facts:
        senders = sorted({m.sender for m in trace.messages() if m.sender.startswith("client:")})
        raise UsageError(
            f"{table} speaks of no client of the recording; these are {', '.join(senders[:5]) or 'none'}, ...",
            remedy="Map them with --nodes: a table with the columns node,client.",
        )
    return Truth({**facts, **trace.truth().facts}, trace.truth().clients)


def _facts(trace: Trace, counted: Mapping[tuple[str, str], Tensor], classes: int) -> dict[tuple[Origin, str], Tensor]:
    """Label facts of every message that the table speaks of, of the sums that it covers whole, and of all clients."""
    facts: dict[tuple[Origin, str], Tensor] = {}
    held: dict[str, Tensor] = {}
    rounds: dict[int, list[str]] = {}
    for message in trace.messages():
        if message.kind in ("update", "gradient"):
            rounds.setdefault(message.round, []).append(message.sender)
        elif message.kind in ("model", "aggregate"):
            rounds.setdefault(message.round, [])
    whole = sorted({who for who, _ in counted})
    for number, senders in rounds.items():
        senders = senders or whole  # where single updates were not recorded, the sum is of all that the table names
        known = {who: found for who in senders if (found := _of(counted, who, number)) is not None}
        for who, counts in known.items():
            facts[Origin(number, who), "label_counts"] = counts
            held[who] = torch.maximum(held.get(who, torch.zeros_like(counts)), counts)
        if known and len(known) == len(senders):
            behind = torch.stack([known[who] for who in senders])
            summed = Origin(number, AGGREGATOR)
            facts[summed, "label_counts"] = behind.sum(0)
            facts[summed, "label_counts_by_client"] = behind
            facts[summed, "clients"] = torch.tensor([_number(who, place) for place, who in enumerate(senders)])
    if held:
        totals = torch.stack(list(held.values())).sum(0)
        facts |= {(Origin(number, SERVER), "label_totals"): totals for number in rounds}
    return facts


def _of(counted: Mapping[tuple[str, str], Tensor], who: str, number: int) -> Tensor | None:
    found = counted.get((who, str(number)))
    return counted.get((who, ALL)) if found is None else found


def _number(who: str, place: int) -> int:
    """A client's index, which the guess about sums names its own client by; else its place."""
    index = who.partition(":")[2]
    return int(index) if index.isdigit() and len(index) < 19 else place


def _classes(trace: Trace, rows: Sequence[tuple[int, Mapping[str, str]]]) -> int:
    said = trace.protocol.get("classes")
    if isinstance(said, int) and 0 < said <= MOST_LABEL:
        return said
    return 1 + max((_whole(row["label"], "label", line, MOST_LABEL) for line, row in rows), default=0)


def _addresses(nodes: Path | None) -> dict[str, str]:
    """From the name in the truth's table to the address in the recording."""
    if nodes is None:
        return {}
    return {row["client"]: row["node"] for _, row in _read(nodes, NODE_COLUMNS)}


def _read(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their lines; of a folder, those of all its tables."""
    if path.is_dir():
        for one in sorted(path.glob("*.csv")):
            yield from _read(one, columns)
        return
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputRefused(f"{path} has more than {MOST_BYTES:,} bytes.")
        with open(path, encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            missing = [name for name in columns if name not in (table.fieldnames or ())]
            if missing:
                raise InputRefused(f"{path} has no column {' or '.join(missing)}; expected {','.join(columns)}.")
            for row in table:
                yield table.line_num, {name: (row[name] or "").strip() for name in columns}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputRefused(f"{path} is no table of text.") from None


def _whole(text: str, what: str, line: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) > most:
        raise InputRefused(f"Line {line}: a {what} is a whole number from 0 to {most}, got {text[:20]!r}.")
    return int(text)
