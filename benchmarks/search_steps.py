"""Steps a second of gradient matching on a GPU: launched kernel by kernel, and replayed as one CUDA graph.

    python benchmarks/search_steps.py [--batches 1 4] [--steps 400]

ResNet18 on images of 32 x 32 with 10 classes, Inverting Gradients' recipe, one restart. Kernels busy is the time that
kernels ran, of the time that the clock shows. Both searches start alike; how far apart they end is the last column.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from fedspill.leaks.inputs.search import search
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.models.resnet import ResNet18
from fedspill.placement import use_full_precision

Measure = Callable[[Tensor], tuple[Tensor, ...]]


def sent(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return [g.detach() for g in torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))]


def searched(model: nn.Module, observed: list[Tensor], batch: int, steps: int) -> tuple[float, float, Tensor]:
    """Seconds, share of them in kernels, and where it ended."""
    targets = search.one_hot(torch.arange(batch) % 10, 10)
    options = {"rng": torch.Generator().manual_seed(1), "targets": targets}
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = search.reconstruct(
        inverting_gradients(steps), gradients_of(model), observed, (batch, 3, 32, 32), 10, **options
    )
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    few = {"rng": torch.Generator().manual_seed(1), "targets": targets}
    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        search.reconstruct(inverting_gradients(20), gradients_of(model), observed, (batch, 3, 32, 32), 10, **few)
        torch.cuda.synchronize()
    busy = sum(event.self_device_time_total for event in seen.key_averages()) / 1e6
    return seconds, busy / (20 * seconds / steps), found.x


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    options.add_argument("--steps", type=int, default=150)
    asked = options.parse_args()
    use_full_precision()
    graphs = search.replayed

    def launched(measure: Measure, like: Tensor) -> Measure:
        return measure

    print("| batch | launched, steps a second | busy | replayed, steps a second | busy | ratio | apart |")
    print("|---|---|---|---|---|---|---|")
    for batch in asked.batches:
        torch.manual_seed(0)
        model = ResNet18().build((3, 32, 32), 10, seed=1).cuda().eval()
        x, y = torch.rand(batch, 3, 32, 32, device="cuda"), torch.arange(batch, device="cuda") % 10
        observed = sent(model, x, y)
        results = []
        for way in (launched, graphs):
            search.replayed = way
            searched(model, observed, batch, 20)  # warm
            results.append(searched(model, observed, batch, asked.steps))
        (slow, slow_busy, one), (fast, fast_busy, other) = results
        apart = float((one - other).abs().max())
        rates = f"{asked.steps / slow:.0f} | {slow_busy:.0%} | {asked.steps / fast:.0f} | {fast_busy:.0%}"
        print(f"| {batch} | {rates} | {slow / fast:.1f} | {apart:.2g} |", flush=True)


if __name__ == "__main__":
    main()
