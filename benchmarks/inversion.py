"""Reconstruction against the `breaching` package: CPU seconds to the same PSNR, and PSNR at the same CPU.

    benchmarks/breaching.sh
    PYTHONPATH=src benchmarks/.venv-breaching/bin/python benchmarks/inversion_peer.py t10-4 lenet-1 --out RUNS ...
    python benchmarks/inversion.py t10-4 lenet-1 --data-dir DATA --out RUNS
    python benchmarks/inversion.py --compare RUNS

Same networks, images and gradients by seed. Ours is what the attack `inputs` would do: exact recovery where it applies,
else signed Adam on the cosine distance with labels given, as breaching's Inverting Gradients has them. On a GPU:
--device cuda.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from inversion_exact import case_of
from inversion_workloads import Pictures, gradients, network

from fedspill.attacks.inversion.exact import exact_answer
from fedspill.attacks.inversion.gradients import gradients_of
from fedspill.attacks.inversion.recipes import inverting_gradients
from fedspill.attacks.inversion.recover import Effort
from fedspill.attacks.inversion.search import Box, one_hot, reconstruct

# Workload: network, data set, batch size; as in inversion_peer.py.
WORKLOADS: dict[str, tuple[str, str, int]] = {
    "t10-4": ("t10", "cifar100", 4),
    "lenet-1": ("lenet", "cifar10", 1),
    "lenet-8": ("lenet", "cifar10", 8),
    "small-cnn-1": ("small-cnn", "cifar10", 1),
    "resnet18-1": ("resnet18", "cifar10", 1),
}
LOOKS = 24  # at the candidate, spread over the search; their time is not counted
Curve = list[tuple[float, int, float, float]]  # CPU seconds, steps, mean and least PSNR


def ours(workload: str, pictures: Pictures, seed: int, limit: float, device: str) -> Curve:
    kind, _, size = WORKLOADS[workload]
    model, batch = network(kind, seed), pictures.batch(size, seed)
    sent = gradients(model, batch)
    rng = torch.Generator().manual_seed(seed)
    began = time.process_time()
    if kind != "resnet18":  # what is no chain of modules has no exact route
        case = case_of(model, sent, size, size, None)
        answer = exact_answer(case, pictures.data.shape, len(pictures.data.classes), Effort(), rng)
        if len(answer.samples):
            spent = time.process_time() - began
            values, _ = pictures.quality(answer.samples, batch.x)
            return [(spent, 1, float(values.mean()), float(values.min()))]
    model, observed = model.to(device), [tensor.to(device) for tensor in sent.values()]
    match = gradients_of(model)
    targets = one_hot(batch.y, len(pictures.data.classes)).to(device)
    box = Box(*((edge - pictures.mean) / pictures.deviation for edge in (0, 1)))
    shape, classes = (size, *pictures.data.shape), len(pictures.data.classes)

    def search(steps: int, whole: int, memory: Any) -> Any:
        recipe = replace(inverting_gradients(whole, 1e-3), steps=steps)
        return reconstruct(recipe, match, observed, shape, classes, rng=rng, targets=targets, box=box, memory=memory)

    start = time.process_time()
    search(5, 1_000, None)
    steps = max(
        LOOKS, min(2_400, int(limit / (time.process_time() - start) * 5))
    )  # what fits, and with it the schedule
    spent, memory, curve = 0.0, None, []
    for look in range(LOOKS):
        start = time.process_time()
        found = search(steps // LOOKS, steps, memory)
        memory = found.memory
        spent += time.process_time() - start
        values, _ = pictures.quality(found.x[found.best].detach().cpu(), batch.x)
        curve.append((spent, (look + 1) * (steps // LOOKS), float(values.mean()), float(values.min())))
    return curve


def reached(curve: Curve, level: float) -> float | None:
    return next((point[0] for point in curve if point[2] >= level), None)


def compare(runs: Sequence[dict[str, Any]]) -> None:
    """For each workload and rival: the ratio of CPU times to the PSNR that both reach, and PSNR at the rival's CPU."""
    for workload in dict.fromkeys(run["workload"] for run in runs):
        mine = {run["seed"]: run["curve"] for run in runs if run["workload"] == workload and run["by"] == "fedspill"}
        for by in dict.fromkeys(run["by"] for run in runs if run["workload"] == workload):
            theirs = {run["seed"]: run["curve"] for run in runs if run["workload"] == workload and run["by"] == by}
            seeds = [seed for seed in theirs if seed in mine and theirs[seed]]
            if by == "fedspill" or not seeds:
                best = [max(point[2] for point in curve) for curve in mine.values()]
                last = [curve[-1][0] for curve in mine.values()]
                print(f"{workload:<12} {'fedspill':<30} best PSNR {_spread(best)}, CPU s {_spread(last)}")
                continue
            ratios, best = [], []
            for seed in seeds:
                level = min(max(point[2] for point in curve) for curve in (mine[seed], theirs[seed]))
                slow, fast = reached(theirs[seed], level), reached(mine[seed], level)
                assert slow is not None
                assert fast is not None
                ratios.append(slow / fast)
                best.append(max(point[2] for point in theirs[seed]))
            spent = [theirs[seed][-1][0] for seed in seeds]
            print(f"{workload:<12} {by:<30} best PSNR {_spread(best)}, CPU s {_spread(spent)}, ratio {_spread(ratios)}")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}] (n={len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--number", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--first-seed", type=int, default=60_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compare", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.compare:
        compare([json.loads(line) for line in asked.compare.read_text(encoding="utf-8").splitlines()])
        return
    with asked.out.open("a", encoding="utf-8") as out:
        for workload in asked.workloads:
            pictures = Pictures.of(WORKLOADS[workload][1], asked.data_dir)
            for seed in range(asked.first_seed, asked.first_seed + asked.number):
                curve = ours(workload, pictures, seed, asked.seconds, asked.device)
                run = {"workload": workload, "seed": seed, "by": "fedspill", "curve": curve}
                out.write(json.dumps(run) + "\n")
                out.flush()
                print(workload, seed, "last", curve[-1], flush=True)


if __name__ == "__main__":
    main()
