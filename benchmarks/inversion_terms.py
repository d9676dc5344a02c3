"""What a gradient and its batch's statistics tell of contrast, and the terms of a loss along the walks of attacks.

    python benchmarks/inversion_terms.py --data-dir DATA --networks NETWORKS [--walks] [--evaluation] [--slopes]

NETWORKS are those of development batches, written by inversion_published.py --prepare. Medians over batches of how
large the candidate's gradient is beside the true one, where it points, and the priors at weight 1. With --evaluation
clients normalise by running statistics, as they do not when they train. With --slopes instead: the slope of a distance
between gradients by torch's batch norm under vmap, and written out, against differences.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from inversion_methods import CHOSEN, METHODS, ONE, recipe_of
from inversion_stacked import ForEach, Networks, StatisticsOfEach
from inversion_task import CLASSES, Task
from inversion_twins import by_batch, in_training
from inversion_workloads import Pictures
from torch import Tensor

from fedspill.leaks.inputs.search.objectives import SquaredDistance, TensorNorms
from fedspill.leaks.inputs.search.priors import TotalVariation
from fedspill.leaks.inputs.search.search import SearchState, reconstruct


def line(task: Task, name: str, x: Tensor) -> None:
    """One line on candidates x (S, B, *shape)."""
    sent, ones = task.sent(), torch.ones(len(task.seeds), device=task.device)
    variation, statistic = ForEach(TotalVariation(1.0), ones), StatisticsOfEach(task.told(own=True), ones)
    found = task.networks().gradients(1)(x, task.targets.to(task.device))
    inner, own, theirs = (
        torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(first, second, strict=True)]).sum(0)
        for first, second in ((found, sent), (found, found), (sent, sent))
    )
    values = ((own / theirs).sqrt(), inner / (own * theirs).sqrt(), variation(x), statistic(x))
    size, cosine, smooth, features = (float(value.median()) for value in values)
    print(f"  {name}: size {size:.3g}, cosine {cosine:.3f}, variation {smooth:.2f}, statistics {features:.1f}")


def walk(task: Task, name: str, steps: int) -> None:
    """Along the search of one attack."""
    print(name, CHOSEN[name])

    def watch(state: SearchState) -> None:
        if state.steps in (1, steps // 20, steps // 4, steps // 2, steps):
            line(task, f"step {state.steps}", state.optimizer.points.reshape(task.x.shape))

    recipe = replace(recipe_of(METHODS[name], CHOSEN[name], task, steps), restarts=len(task.seeds), enough=-1.0)
    how = (recipe, task.networks().gradients(1), task.sent(), task.x.shape[1:], CLASSES)
    rng, given, start = torch.Generator(), task.targets.to(task.device), task.starts(1).flatten(0, 1)
    reconstruct(*how, rng=rng, targets=given, box=task.box, start=start, watch=watch)


def slopes(task: Task) -> None:
    """In float64, along one direction, for the first batch."""
    rng = torch.Generator().manual_seed(0)
    x, targets, step = task.x[:1].double(), task.targets[:1].double(), 1e-6
    away, along = (torch.randn(x.shape, generator=rng, dtype=torch.float64) for _ in range(2))
    for name, model in (("torch's", in_training(task.models[0])), ("written out", by_batch(task.models[0]))):
        match = Networks.of([model.double()], "cpu").gradients(1)
        sent = [g.detach()[0] for g in match(x, targets)]
        at = (x + away).requires_grad_()
        for distance in (TensorNorms(), SquaredDistance(relative=True)):
            here, more, less = (distance(match(at + d * along, targets), sent) for d in (0, step, -step))
            (slope,) = torch.autograd.grad(here.sum(), [at])
            differences = float((more - less).detach()) / (2 * step)
            found = float((slope * along).sum())
            print(f"  {name}, {type(distance).__name__}: slope {found:.5f}, by differences {differences:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--first-seed", type=int, default=70_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--evaluation", action="store_true")
    parser.add_argument("--walks", action="store_true")
    parser.add_argument("--slopes", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first_seed, asked.first_seed + asked.batches)
    states = torch.load(asked.networks, weights_only=True)
    pictures = Pictures.of("cifar10", asked.data_dir)
    task = Task.of(pictures, seeds, states, asked.device, evaluation=asked.evaluation)
    if asked.slopes:
        slopes(task)
        return
    truth = task.x.to(task.device)
    for name, x in (("truth", truth), ("half its contrast", truth / 2), ("noise", torch.randn_like(truth))):
        line(task, name, x)
    if asked.walks:
        for name in ("inverting-gradients", ONE, f"{ONE}, cosine"):
            walk(task, name, asked.steps)


if __name__ == "__main__":
    main()
