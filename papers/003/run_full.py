"""Runs tables of paper 003 at full scale, e.g. on a borrowed GPU.

    PYTHONPATH=src python papers/003/run_full.py --data-dir DATA --device cuda --out OUT 1 3 4 8

Each row is printed and written to OUT/003_N.json as soon as it is known.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from fedspill.registry import paper_tables
from fedspill.reproduce import Run, Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", help="table numbers, e.g. 1 3 4 8")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-003"))
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--batches", type=int, help="fewer than 100, to try")
    parser.add_argument("--models", nargs="+", help="of tables 1 and 4, some of the four only, e.g. resnet32")
    asked = parser.parse_args()
    torch.set_num_threads(min(4, int(os.environ.get("OMP_NUM_THREADS", "4"))))
    module = paper_tables("003")
    if asked.models:
        module.MODELS = {name: module.MODELS[name] for name in asked.models}
    if asked.batches:
        whole = module.attacked
        module.attacked = lambda setup, number, run, **more: whole(setup, min(number, asked.batches), run, **more)
    kinds = {
        kind.name.partition("/")[2]: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Table) and not inspect.isabstract(kind)
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for number in asked.tables:
        rows: list[dict[str, Any]] = []
        began = time.time()
        for row in kinds[number]().rows(Run("full", asked.data_dir, asked.device, asked.seed)):
            rows.append(row.as_json())
            cell = " ".join(str(value) for value in row.cell.values())
            measured = "-" if row.measured is None else f"{row.measured:.2f}"
            print(
                f"003/{number} {cell:<44} printed {row.published}  ours {measured}  n={row.n}  {row.verdict}",
                flush=True,
            )
            report = {"paper": "003", "table": number, "scale": "full", "seed": asked.seed, "rows": rows}
            (asked.out / f"003_{number}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"003/{number}: {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
