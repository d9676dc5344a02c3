"""Inverting Gradients on ResNet18 on a GPU: steps a second and PSNR, ours beside breaching's on the same gradients.

    python benchmarks/search_peer.py --data-dir DATA --seed 97000 --number 6 --steps 600

Needs breaching 0.1.2 beside fedspill (benchmarks/breaching.sh says what it is installed with). Fresh network and images
of CIFAR-100 for each seed, batches of 1 and 4, labels given to both, the recipe of breaching's configuration. Each
makes as many steps; ours then searches again for as long as breaching took. Seconds are of the clock, recording of
the graph included. PSNR is the mean over the batch: the best that either passed, looked at every tenth step (of ours in
a run of its own, which is not timed), and ours at its end, which is its answer.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from inversion_peer import attack, import_breaching
from inversion_workloads import WORKLOADS, Pictures, gradients, network, seconds
from torch import Tensor

from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.leaks.inputs.search.search import Box, SearchState, one_hot, reconstruct
from fedspill.placement import use_full_precision

DEVICE = "cuda"


def ours(
    workload: str, pictures: Pictures, seed: int, steps: int, watch: Callable[[Tensor], None] | None = None
) -> tuple[float, float]:
    """Seconds and mean PSNR; `watch` is shown where the search stands, every tenth step."""
    kind, _, size = WORKLOADS[workload]
    model, batch = network(kind, seed), pictures.batch(size, seed)
    sent = [gradient.to(DEVICE) for gradient in gradients(model, batch).values()]
    model = model.to(DEVICE)
    classes, shape = len(pictures.data.classes), (size, *pictures.data.shape)
    low, high = ((edge - pictures.mean) / pictures.deviation for edge in (0.0, 1.0))

    def look(state: SearchState) -> None:
        if watch is not None and state.steps % 10 == 0:
            watch(state.optimizer.points[0].view(shape).cpu())

    began = seconds(DEVICE)
    found = reconstruct(
        inverting_gradients(steps),
        gradients_of(model),
        sent,
        shape,
        classes,
        rng=torch.Generator().manual_seed(seed),
        targets=one_hot(batch.y, classes),
        box=Box(low.float(), high.float()),
        watch=None if watch is None else look,
    )
    spent = seconds(DEVICE) - began
    return spent, mean_psnr(pictures, found.x[found.best].cpu(), batch.x)


def best_passed(workload: str, pictures: Pictures, seed: int, steps: int) -> float:
    real, passed = pictures.batch(WORKLOADS[workload][2], seed).x, list[float]()
    ours(workload, pictures, seed, steps, lambda at: passed.append(mean_psnr(pictures, at, real)))
    return max(passed)


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
            passed = best_passed(workload, pictures, seed, asked.steps)
            rates = (asked.steps / theirs, asked.steps / took, fitting / took_longer)
            rows.setdefault(workload, []).append((*rates, best, passed, quality, longer))
            shown = ", ".join(f"{value:.1f}" for value in rows[workload][-1])
            order = (
                "steps/s of theirs, ours, ours for as long; PSNR of theirs, ours at best, at its end, ours for as long"
            )
            print(f"{workload} {seed}: {order}: {shown}", flush=True)
    for workload, found in rows.items():
        columns = list(zip(*found, strict=True))
        ratios = [[own / row[0] for own in row[1:3]] for row in found]
        print(
            f"{workload} n {len(found)}, median [least, most]: steps a second {spread(columns[0])} breaching, "
            f"{spread(columns[1])} ours, ratio {spread([one for one, _ in ratios])}, {spread(columns[2])} ours for as "
            f"long, ratio {spread([two for _, two in ratios])}; PSNR {spread(columns[3])} breaching, "
            f"{spread(columns[4])} ours at best, {spread(columns[5])} at its end, "
            f"{spread(columns[6])} ours for as long",
            flush=True,
        )


if __name__ == "__main__":
    main()
