"""Runs tables of paper 001 at full scale, each in a process of its own, e.g. on a borrowed GPU.

    PYTHONPATH=src python papers/001/run_full.py --data-dir DATA --device cuda --out OUT 2 3 6 timing

Each row is printed and written to OUT/001_N.json as soon as it is known. "timing" times Steps I to III.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from fedspill.registry import paper_tables


def timing(module: types.ModuleType, asked: argparse.Namespace) -> None:
    """Steps I to III at N = 800 and, with wider batches, N = 8,000; the first run of each size is the warm-up."""
    from fedspill.reproduce import Run

    run = Run("full", asked.data_dir, asked.device, asked.seed)
    dataset, _ = module.load("mnist", run)
    sizes = {800: (40, 60), 8000: (100, 240)} if asked.scale == "full" else {80: (10, 24)}
    rows = []
    for samples, (batch, rounds) in sizes.items():
        setup = module.Setup("mnist", samples=samples, batch=batch, rounds=rounds)
        for attempt in range(2):
            result = module.attacked(dataset, setup, run)
            rows.append({"samples": samples, "attempt": attempt, "seconds": result.seconds, "note": result.note(),
                         "psnr": result.score().value})  # fmt: skip
            print(f"timing N={samples}: {result.seconds:.2f} s, {rows[-1]['psnr']:.1f} dB; {result.note()}", flush=True)
            (asked.out / "001_timing.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def one(asked: argparse.Namespace) -> None:
    import torch

    from fedspill.reproduce import Run, Table

    torch.set_num_threads(2)
    torch.backends.cudnn.allow_tf32 = False  # victims and attacker compute alike, in full float32
    module = paper_tables("001")
    number = asked.tables[0]
    if number == "timing":
        timing(module, asked)
        return
    kinds = {
        kind.name.partition("/")[2]: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Table) and kind is not Table
    }
    rows: list[dict[str, Any]] = []
    began = time.time()
    for row in kinds[number]().rows(Run(asked.scale, asked.data_dir, asked.device, asked.seed)):
        rows.append(row.as_json())
        cell = " ".join(str(value) for value in row.cell.values())
        measured = "-" if row.measured is None else f"{row.measured:.2f}"
        print(
            f"[{time.time() - began:5.0f} s] 001/{number} {cell:<44} printed {row.published} ours {measured} n={row.n} "
            f"{row.verdict}; {row.note}",
            flush=True,
        )
        report = {"paper": "001", "table": number, "scale": asked.scale, "seed": asked.seed, "rows": rows}
        (asked.out / f"001_{number}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", help="table numbers, e.g. 2 3 6 timing")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-001"))
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--scale", default="full", choices=("full", "quick"))
    parser.add_argument("--seconds", type=float, default=1e9, help="stop whatever still runs after that long")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if len(asked.tables) == 1:
        one(asked)
        return
    shared = ["--data-dir", str(asked.data_dir), "--device", asked.device, "--out", str(asked.out)]
    shared += ["--seed", str(asked.seed), "--scale", asked.scale]
    running = {
        table: subprocess.Popen([sys.executable, __file__, table, *shared])  # noqa: S603 - our own script
        for table in asked.tables
    }
    end = time.monotonic() + asked.seconds
    for table, process in running.items():
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"001/{table}: stopped, its time is up", flush=True)


if __name__ == "__main__":
    main()
