"""Runs parts of paper 001 at full scale, each in a process of its own, e.g. on a borrowed GPU.

    PYTHONPATH=src python papers/001/run_full.py --data-dir DATA --device cuda --out OUT timing
    PYTHONPATH=src python papers/001/run_full.py --data-dir DATA --device cuda --out OUT 3@cifar10 7@mnist:sgd,0.01 8

A part is the number of a table, or "timing" (Steps I to III, alone on the device); "@" restricts it to a data set, ":"
to the cells that have all these values. Each row is printed and added to OUT/001.jsonl as soon as it is known. Many
small processes share a GPU better under CUDA's multi-process service.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedspill.registry import paper_tables
from fedspill.reproduce import Row, Run


def timing(module: types.ModuleType, asked: argparse.Namespace, run: Run) -> Iterator[dict[str, Any]]:
    """Steps I to III at N = 800 and, with wider batches, N = 8,000; the first run of each size is the warm-up."""
    import torch

    from fedspill.leaks.inputs.cafe import first_layers, labels_and_images
    from fedspill.leaks.inputs.vertical.first_layer import first_layer
    from fedspill.leaks.inputs.vertical.invert_features import InversionEffort
    from fedspill.leaks.inputs.vertical.predicted_gradients import replace_doubtful_gradients
    from fedspill.seeds import generator

    def clock() -> float:
        if asked.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    dataset, _ = module.federation.load("mnist", run)
    sizes = {800: (40, 60, 4), 8000: (100, 240, 2)} if asked.scale == "full" else {80: (10, 24, 2)}
    for samples, (batch, rounds, attempts) in sizes.items():
        setup = module.federation.Setup("mnist", samples=samples, batch=batch, rounds=rounds)
        seen, examples = module.federation.observed(dataset, setup, run)
        for attempt in range(attempts):
            rng, net = generator(run.seed, "attack"), seen.nets(0)
            began = clock()
            layers, notes = first_layers(seen, rng, first_layer)
            layers = replace_doubtful_gradients(seen, net, layers)
            between = clock()
            found = labels_and_images(seen, net, layers, notes, InversionEffort(), rng)
            ended = clock()
            result = module.outcome.outcome(found, examples, setup, ended - began)
            yield {"samples": samples, "batch": batch, "rounds": rounds, "attempt": attempt,
                   "seconds": ended - began, "steps one and two": between - began, "step three": ended - between,
                   "evaluations": found.evaluations, "psnr": result.score().value, "note": result.note()}  # fmt: skip


def rows_of(part: str, module: types.ModuleType, run: Run) -> Iterator[Row]:
    """The rows of the cells that a part such as 7@mnist:sgd,0.01 names."""
    what, _, values = part.partition(":")
    number, _, data = what.partition("@")
    kinds = {
        kind.name.partition("/")[2]: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, module.CellTable) and kind is not module.CellTable
    }
    wanted = set(values.split(",")) if values else set()
    cells = [
        cell
        for cell in kinds[number]().cells()
        if data in ("", cell.data) and wanted <= {str(value).replace(",", "") for value in cell.cell.values()}
    ]
    if not cells:
        sys.exit(f"{part}: no cell of table {number} has these values.")
    yield from module.cells.results(cells, run)


def one(asked: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # victims and attacker compute alike, in full float32
    module = paper_tables("001")
    part = asked.parts[0]
    run = Run(asked.scale, asked.data_dir, asked.device, asked.seed)
    began = time.time()
    found = timing(module, asked, run) if part == "timing" else (row.as_json() for row in rows_of(part, module, run))
    for row in found:
        line = {"part": part, "scale": asked.scale, "seed": asked.seed, "after": time.time() - began, **row}
        with (asked.out / "001.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if part == "timing":
            print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        else:
            cell, measured = " ".join(str(value) for value in row["cell"].values()), row["measured"]
            ours = "-" if measured is None else f"{measured:.2f}"
            print(f"[{line['after']:5.0f} s] {part} {cell:<40} printed {row['published']} ours {ours} n={row['n']}; "
                  f"{row['note']}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", help="e.g. timing descents 3@cifar10 6 gc@mnist")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-001"))
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--scale", default="full", choices=("full", "quick"))
    parser.add_argument("--seconds", type=float, default=1e9, help="stop whatever still runs after that long")
    parser.add_argument("--at-once", type=int, default=8, help="processes side by side")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if len(asked.parts) == 1:
        one(asked)
        return
    shared = ["--data-dir", str(asked.data_dir), "--device", asked.device, "--out", str(asked.out)]
    shared += ["--seed", str(asked.seed), "--scale", asked.scale]
    end = time.monotonic() + asked.seconds
    waiting, running = list(asked.parts), dict[str, subprocess.Popen[bytes]]()
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < asked.at_once:
            part = waiting.pop(0)
            running[part] = subprocess.Popen([sys.executable, __file__, part, *shared])  # noqa: S603 - our own script
        time.sleep(0.2)
        running = {part: process for part, process in running.items() if process.poll() is None}
    for part, process in running.items():
        process.kill()
        print(f"{part}: stopped, its time is up", flush=True)
    for part in waiting:
        print(f"{part}: not begun", flush=True)


if __name__ == "__main__":
    main()
