"""Prints the figures of README.md from the lines that run_full.py wrote, and writes the main ones down on request.

PYTHONPATH=src python papers/004/summary.py OUT/lines.jsonl [MORE/lines.jsonl] [--write papers/004/expected.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", type=Path)
    parser.add_argument("--write", type=Path, help="a file whose part `measured` is replaced")
    asked = parser.parse_args()
    lines = [json.loads(text) for path in asked.lines for text in path.read_text().splitlines()]
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
    show("Adaptive attackers", figures.hidden([*by_what.get(("adapt",), []), *by_what.get(("slow",), [])]))
    if asked.write:
        known = json.loads(asked.write.read_text())
        known["measured"] = {
            "unit": "percent; held-out repetitions from seed 2024 on, 90 % intervals",
            "4, adult": written(figures.inference([x for x in by_what.get(("read",), []) if x["data"] == "adult"])),
            "8": written(figures.detection(by_what.get(("detect",), []))),
            "10": written(figures.false_alarms([x for x in by_what.get(("benign",), []) if x["event"] == "none"])),
            "after a roll-back": written(figures.after_roll_back(by_what.get(("rolled back",), []))),
        }
        asked.write.write_text(laid_out(known) + "\n")


def written(found: Iterable[figures.Figure]) -> dict[str, dict[str, Any]]:
    """By cell."""
    return {
        ", ".join(str(value) for value in (*one.cell.values(), one.metric)): {
            "value": round(one.value, 2),
            "90 %": [round(one.low, 2), round(one.high, 2)],
            "n": one.n,
            "chance": round(one.chance, 1),
        }
        for one in found
    }


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON with one line for each innermost object."""
    if not isinstance(value, dict) or not any(isinstance(inner, dict) for inner in value.values()):
        return json.dumps(value)
    space = " " * (indent + 2)
    parts = [f"{space}{json.dumps(key)}: {laid_out(inner, indent + 2)}" for key, inner in value.items()]
    return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"


def show(title: str, found: Iterable[figures.Figure]) -> None:
    print(f"\n# {title}")
    for one in found:
        cell = ", ".join(str(value) for value in one.cell.values())
        print(f"{cell:<70} {one.metric:<36} {one.value:8.2f} [{one.low:7.2f}, {one.high:7.2f}] n={one.n}")


if __name__ == "__main__":
    main()
