"""Inverting Gradients on ResNet18 on a GPU: steps a second and PSNR, ours beside breaching's on the same gradients.

    python benchmarks/search_peer.py --data-dir DATA --seed 97000 --number 6 --steps 600

Needs breaching 0.1.2 beside fedspill (benchmarks/breaching.sh says what it is installed with). Fresh network and images
of CIFAR-100 for each seed, batches of 1 and 4, labels given to both, the recipe of breaching's configuration. Each
makes as many steps; ours then searches again for as long as breaching took. Seconds are of the clock, recording of
the graph included. PSNR is the mean over the batch: of ours at its end, of breaching the best that it passed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from inversion_peer import attack, import_breaching
from inversion_workloads import WORKLOADS, Pictures, gradients, network, seconds
from torch import Tensor

from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.leaks.inputs.search.search import Box, one_hot, reconstruct
from fedspill.placement import use_full_precision

DEVICE = "cuda"


def ours(workload: str, pictures: Pictures, seed: int, steps: int) -> tuple[float, float]:
    """Seconds and mean PSNR."""
    kind, _, size = WORKLOADS[workload]
    model, batch = network(kind, seed), pictures.batch(size, seed)
    sent = [gradient.to(DEVICE) for gradient in gradients(model, batch).values()]
    model = model.to(DEVICE)
    classes = len(pictures.data.classes)
    low, high = ((edge - pictures.mean) / pictures.deviation for edge in (0.0, 1.0))
    began = seconds(DEVICE)
    found = reconstruct(
        inverting_gradients(steps),
        gradients_of(model),
        sent,
        (size, *pictures.data.shape),
        classes,
        rng=torch.Generator().manual_seed(seed),
        targets=one_hot(batch.y, classes),
        box=Box(low.float(), high.float()),
    )
    spent = seconds(DEVICE) - began
    return spent, mean_psnr(pictures, found.x[found.best].cpu(), batch.x)


def mean_psnr(pictures: Pictures, samples: Tensor, real: Tensor) -> float:
    return float(pictures.quality(torch.nan_to_num(samples), real)[0].mean())


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=97_000)
    parser.add_argument("--number", type=int, default=6)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--workloads", nargs="+", default=["resnet18-100-1", "resnet18-100-4"], choices=WORKLOADS)
    parser.add_argument("--tuned", action="store_true", help="cuDNN tries its algorithms and takes the fastest")
    asked = parser.parse_args()
    use_full_precision()
    torch.backends.cudnn.benchmark = asked.tuned
    breaching, pictures = import_breaching(), Pictures.of("cifar100", asked.data_dir)
    rows: dict[str, list[tuple[float, ...]]] = {}
    for workload in asked.workloads:  # what is set up once is not counted
        attack(breaching, "invertinggradients", workload, pictures, asked.seed - 1, 1e9, 10, DEVICE)
        ours(workload, pictures, asked.seed - 1, 10)
    for seed in range(asked.seed, asked.seed + asked.number):
        for workload in asked.workloads:
            watch = attack(breaching, "invertinggradients", workload, pictures, seed, 1e9, asked.steps, DEVICE)
            theirs = watch.curve[-1][0]
            took, quality = ours(workload, pictures, seed, asked.steps)
            fitting = int(asked.steps * theirs / took)
            took_longer, longer = ours(workload, pictures, seed, fitting)
            best = max(point[2] for point in watch.curve)
            rates = (asked.steps / theirs, asked.steps / took, fitting / took_longer)
            rows.setdefault(workload, []).append((*rates, best, quality, longer))
            shown = ", ".join(f"{value:.1f}" for value in rows[workload][-1])
            print(f"{workload} {seed}: steps/s and PSNR, each of theirs, ours, ours for as long: {shown}", flush=True)
    for workload, found in rows.items():
        columns = list(zip(*found, strict=True))
        ratios = [[own / row[0] for own in row[1:3]] for row in found]
        print(
            f"{workload} n {len(found)}, median [least, most]: steps a second {spread(columns[0])} breaching, "
            f"{spread(columns[1])} ours, ratio {spread([one for one, _ in ratios])}, {spread(columns[2])} ours for as "
            f"long, ratio {spread([two for _, two in ratios])}; PSNR {spread(columns[3])} breaching, "
            f"{spread(columns[4])} ours, {spread(columns[5])} ours for as long",
            flush=True,
        )


if __name__ == "__main__":
    main()
