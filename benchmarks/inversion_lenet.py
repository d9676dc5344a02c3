"""iDLG against DLG in iDLG's own setting: one sample of CIFAR-10, DLG's network with sigmoids at its start.

    python benchmarks/inversion_lenet.py --data-dir DATA --out ROWS
    python benchmarks/inversion_published.py --summary ROWS

300 moves of L-BFGS. Held-out seeds from 84,000.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from inversion_task import CLASSES, quality
from inversion_workloads import Pictures, gradients, network

from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import dlg
from fedspill.leaks.inputs.search.search import one_hot, reconstruct


def measure(pictures: Pictures, seeds: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    for seed in seeds:
        model, batch = network("lenet", seed), pictures.batch(1, seed)
        sent, targets = list(gradients(model, batch).values()), one_hot(batch.y, CLASSES).float()
        for method, told in (("dlg, LeNet", None), ("idlg, LeNet", targets)):
            rng = torch.Generator().manual_seed(seed)
            how = (dlg(steps), gradients_of(model), sent, tuple(batch.x.shape), CLASSES)
            found = reconstruct(*how, rng=rng, targets=told)
            right = bool(torch.equal(found.targets[found.best].argmax(1), batch.y))
            guess = torch.nan_to_num(found.x[found.best].detach())
            yield {"seed": seed, "method": method, "label": right, **quality(pictures, guess, batch.x)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=84_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first_seed, asked.first_seed + asked.batches)
    with asked.out.open("a", encoding="utf-8") as out:
        for row in measure(Pictures.of("cifar10", asked.data_dir), seeds, asked.steps):
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(row, flush=True)


if __name__ == "__main__":
    main()
