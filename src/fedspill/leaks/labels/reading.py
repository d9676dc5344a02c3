"""What a label attack reads: how many samples of each class, of all clients together and of each."""

from __future__ import annotations

from collections.abc import Sequence

from fedspill.leaks.labels.guess import LabelCounts
from fedspill.messages import AGGREGATOR
from fedspill.reading import ENOUGH, ROWS, Entry, Reading, ReadingTable, by_sender, messages_of, percent, told


def read_counts(guess: LabelCounts, private: bool) -> Reading:
    """Counts over all messages; per client shares, where enough samples stand behind them."""
    senders = by_sender(guess)
    summed = set(senders) <= {AGGREGATOR}
    of = messages_of(len(guess.of), "sum" if summed else "update")
    whose = "" if summed else f" by {len(senders)} {'client' if len(senders) == 1 else 'clients'}"
    expects = None if guess.confidence is None else float(guess.confidence.double().mean())
    tables, withheld = [], ""
    if private or int(guess.counts.sum()) >= ENOUGH:
        tables.append(_together(guess, private))
    if not summed:
        shown = {who: rows for who, rows in senders.items() if private or int(guess.counts[rows].sum()) >= ENOUGH}
        withheld = _withheld(len(senders) - len(shown))
        if shown:
            tables.append(_each(guess, shown, private))
    return Reading(
        summary=f"the labels of {of}{whose}", expects=expects, messages=len(guess.of), tables=tables, withheld=withheld
    )


def _together(guess: LabelCounts, private: bool) -> ReadingTable:
    counts = guess.counts.sum(0)
    rows: list[list[Entry]] = []
    for label, count in enumerate(counts.tolist()):
        row: list[Entry] = [str(label), count if private else told(count)]
        if guess.low is not None and guess.high is not None:
            ends = int(guess.low[:, label].sum()), int(guess.high[:, label].sum())
            row += ends if private else map(told, ends)
        rows.append(row)
    bounds = ["at least", "at most"] if guess.low is not None and guess.high is not None else []
    return ReadingTable(title="Samples of each class, all messages", columns=["class", "samples", *bounds], rows=rows)


def _each(guess: LabelCounts, senders: dict[str, list[int]], private: bool) -> ReadingTable:
    """One row a client: messages, samples, what the attack expects to have right, and the share of each class."""
    rows: list[list[Entry]] = []
    for who, places in list(senders.items())[:ROWS]:
        counts = guess.counts[places].sum(0).double()
        shares = (counts / counts.sum().clamp_min(1)).tolist()
        sure = None if guess.confidence is None else round(100 * float(guess.confidence[places].double().mean()))
        rows.append([who, len(places), int(counts.sum()), sure, *_told(shares, private)])
    classes = [f"class {label} %" for label in range(guess.counts.shape[1])]
    columns = ["client", "messages", "samples", "expected right %", *classes]
    return ReadingTable(title="Shares of the classes, by client", columns=columns, rows=rows)


def _told(shares: Sequence[float], private: bool) -> list[Entry]:
    return [round(100 * share) if private else percent(share) for share in shares]


def _withheld(clients: int) -> str:
    if not clients:
        return ""
    whose = "1 client that" if clients == 1 else f"{clients} clients that each"
    return f"the shares of {whose} trained on fewer than {ENOUGH} samples"
