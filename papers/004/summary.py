"""Prints the figures of README.md from the lines that run_full.py wrote.

PYTHONPATH=src python papers/004/summary.py OUT/lines.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from measure import figures


def main() -> None:
    lines = [json.loads(text) for path in sys.argv[1:] for text in Path(path).read_text().splitlines()]
    by_what = figures.grouped(lines, "what")
    for (what,), some in by_what.items():
        print(f"## {what}: {len(some)} lines")
    for line in by_what.get(("failed",), []):
        print(line["job"], line["why"])
    show("Activation", figures.activation(by_what.get(("read",), [])))
    show("Inference", figures.inference(by_what.get(("read",), [])))
    for (what,), some in by_what.items():
        if what.startswith("tune"):
            for held_out in (False, True):
                chosen = [line for line in some if (line["rep"] >= 0) == held_out]
                show(f"{what}, {'held out' if held_out else 'development'}", figures.inference(chosen))
    show("Detection", figures.detection(by_what.get(("detect",), [])))
    show("False alarms", figures.false_alarms(by_what.get(("benign",), [])))
    show("After a roll-back", figures.after_roll_back(by_what.get(("rolled back",), [])))
    show("Recovery", figures.recovered(by_what.get(("recovery",), [])))
    show("Several targets", figures.at_once(by_what.get(("several",), [])))
    show("Adaptive attackers", figures.hidden(by_what.get(("adapt",), [])))


def show(title: str, found: Iterable[figures.Figure]) -> None:
    print(f"\n# {title}")
    for one in found:
        cell = ", ".join(str(value) for value in one.cell.values())
        print(f"{cell:<70} {one.metric:<36} {one.value:8.2f} [{one.low:7.2f}, {one.high:7.2f}] n={one.n}")


if __name__ == "__main__":
    main()
