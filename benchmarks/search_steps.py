"""Steps a second of gradient matching on a GPU: launched kernel by kernel, and replayed as one CUDA graph.

    python benchmarks/search_steps.py [--batches 1 4] [--steps 400] [--restarts 1] [--side 32] [--kernels 40]

ResNet18 on images of 32 x 32 with 10 classes, Inverting Gradients' recipe; a step moves all restarts. Replayed are
convolutions as such, as matrix products, and whichever was measured to be faster, which is what a search does. Kernels
busy is the time that kernels ran, of the time that the clock shows, recording included. All searches start alike; how
far from the first one they end is the last column.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from fedspill.cuda_graphs import Measure, replayed
from fedspill.leaks.inputs.search import search
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.objectives import CosineDistance
from fedspill.leaks.inputs.search.product_convolutions import by_products
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.models.resnet import ResNet18
from fedspill.placement import use_full_precision


def launched(ways: Sequence[Measure], like: Tensor) -> Measure:
    return ways[0]


def convolved(ways: Sequence[Measure], like: Tensor) -> Measure:
    return replayed(ways[:1], like)


def multiplied(ways: Sequence[Measure], like: Tensor) -> Measure:
    return replayed(ways[1:], like)


CONTENDERS = {"launched": launched, "convolutions": convolved, "products": multiplied, "the faster": replayed}


def sent(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return [g.detach() for g in torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))]


@dataclass(frozen=True, eq=False)
class Problem:
    model: nn.Module
    observed: list[Tensor]
    shape: tuple[int, ...]  # (B, channels, height, width)
    restarts: int

    @staticmethod
    def of(batch: int, side: int, restarts: int) -> Problem:
        torch.manual_seed(0)
        shape = (batch, 3, side, side)
        model = ResNet18().build(shape[1:], 10, seed=1).cuda().eval()
        x, y = torch.rand(shape, device="cuda"), torch.arange(batch, device="cuda") % 10
        return Problem(model, sent(model, x, y), shape, restarts)


def searched(problem: Problem, steps: int) -> tuple[float, Tensor]:
    """Seconds, and where it ended."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = search.reconstruct(
        inverting_gradients(steps, restarts=problem.restarts),
        gradients_of(problem.model),
        problem.observed,
        problem.shape,
        10,
        rng=torch.Generator().manual_seed(1),
        targets=search.one_hot(torch.arange(problem.shape[0]) % 10, 10),
    )
    torch.cuda.synchronize()
    return time.perf_counter() - began, found.x


def kernels(problem: Problem, named: int) -> tuple[float, float]:
    """Seconds in kernels, and their number, of one step; those that take longest are printed."""
    seen = []
    for steps in (5, 25):
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            searched(problem, steps)
        ran = [event for event in trace.key_averages() if event.self_device_time_total]
        seen.append({event.key: (event.self_device_time_total, event.count) for event in ran})
    few, many = seen
    each = {name: [(a - b) / 20 for a, b in zip(many[name], few.get(name, (0, 0)), strict=True)] for name in many}
    for name, (took, count) in sorted(each.items(), key=lambda one: -one[1][0])[:named]:
        print(f"    {took:8.1f} us, {count:6.1f} x  {name[:120]}")
    return sum(took for took, _ in each.values()) / 1e6, sum(count for _, count in each.values())


def slope(model: nn.Module, observed: list[Tensor], x: Tensor, targets: Tensor) -> Tensor:
    """What the first step follows."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(CosineDistance().against(observed)(gradients_of(model)(x, targets)).sum(), x)[0]


def rounding(problem: Problem) -> tuple[float, float]:
    """How far slopes by convolutions and by products are from those in double precision on the CPU, relative."""
    x, targets = torch.rand(1, *problem.shape), torch.eye(10)[None, torch.arange(problem.shape[0]) % 10]
    model, observed = problem.model, problem.observed
    exact = slope(
        copy.deepcopy(model).double().cpu(), [one.double().cpu() for one in observed], x.double(), targets.double()
    )
    there = x.cuda(), targets.cuda()
    found = [work(model, observed, *there).double().cpu() for work in (slope, by_products(slope))]
    first, second = (float((one - exact).norm() / exact.norm()) for one in found)
    return first, second


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--restarts", type=int, default=1)
    options.add_argument("--side", type=int, default=32)
    options.add_argument("--kernels", type=int, default=0, help="how many kernels are named, by the time they take")
    asked = options.parse_args()
    use_full_precision()
    print("| batch | way | steps a second | the last half | kernels a step | busy | apart |")
    print("|---|---|---|---|---|---|---|")
    for batch in asked.batches:
        problem = Problem.of(batch, asked.side, asked.restarts)
        first = None
        for name, way in CONTENDERS.items():
            search.replayed = way
            searched(problem, 20)  # warm
            half, _ = searched(problem, asked.steps // 2)
            seconds, x = searched(problem, asked.steps)
            busy, count = kernels(problem, asked.kernels)
            first = x if first is None else first
            later = asked.steps / 2 / (seconds - half)  # recording falls out
            apart = float((x - first).abs().max())
            rates = f"{asked.steps / seconds:.0f} | {later:.0f} | {count:.0f} | {busy * asked.steps / seconds:.0%}"
            print(f"| {batch} | {name} | {rates} | {apart:.2g} |", flush=True)
        by_convolutions, by_matrices = rounding(problem)
        print(f"slopes off by {by_convolutions:.1g} by convolutions, {by_matrices:.1g} by products", flush=True)


if __name__ == "__main__":
    main()
