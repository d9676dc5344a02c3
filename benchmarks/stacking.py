"""Where stacking the clients of a round pays, and whether the rule that chooses (`is_stackable`) chooses well.

    python benchmarks/stacking.py [--quick] [--device cuda] [--json FILE]

One round of five local steps per case (clients x batch), loop and stacked in turns; the figure is loop / stacked in CPU
time. On a GPU the loop is the replayed one, and the clock is on the wall. The rule looks at model and device only, so
that results do not depend on who took part; the last column is what its choice loses at worst, against the faster
engine, over the cases with at least ten clients.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from timing import interleaved
from torch import nn

from fedspill.dataset import Examples
from fedspill.federation.stacked import MOST_PARAMETERS, is_stackable
from fedspill.federation.trainers import Engine, InProcess
from fedspill.placement import use_full_precision
from fedspill.training import LocalTraining

STEPS = 5


def mlp(inputs: int, *widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((inputs, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((inputs, *widths)[-1], 10))


def small_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(200, 10),
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        *mlp(256, 120, 84),
    )


def wide_convolutions() -> nn.Module:
    """Few parameters, much arithmetic."""
    layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(22), *mlp(16))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "64-64-10": (lambda: mlp(64, 64), (64,)),
    "784-10": (lambda: mlp(784), (784,)),
    "784-32-10": (lambda: mlp(784, 32), (784,)),
    "784-64-10": (lambda: mlp(784, 64), (784,)),
    "784-128-10": (lambda: mlp(784, 128), (784,)),
    "64-256-256-256-10": (lambda: mlp(64, 256, 256, 256), (64,)),
    "784-200-10": (lambda: mlp(784, 200), (784,)),
    "3072-64-10": (lambda: mlp(3072, 64), (3072,)),
    "784-256-256-10": (lambda: mlp(784, 256, 256), (784,)),
    "784-512-10": (lambda: mlp(784, 512), (784,)),
    "small convolutions": (small_convolutions, (1, 28, 28)),
    "LeNet": (lenet, (1, 28, 28)),
    "wide convolutions": (wide_convolutions, (1, 28, 28)),
}


def speed_up(model: nn.Module, shape: tuple[int, ...], clients: int, batch: int, repeats: int, device: str) -> float:
    """Loop / stacked, median of times."""
    rng = torch.Generator().manual_seed(0)
    data = [
        Examples(
            torch.rand((STEPS * batch, *shape), generator=rng), torch.randint(0, 10, (STEPS * batch,), generator=rng)
        ).to(device)
        for _ in range(clients)
    ]
    training = LocalTraining(lr=0.05, batch_size=batch)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def round_of(engine: Engine) -> Callable[[], object]:
        trainer = InProcess(model, data, training, 0, engine)
        return lambda: dict(trainer.train(start, 0, range(clients)))

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    many = max(1, 25 // clients)
    rounds = {"loop": round_of("loop" if device == "cpu" else "replayed"), "stacked": round_of("stacked")}
    if device != "cpu":
        for _ in range(3):  # graphs are recorded in the first rounds
            rounds["loop"]()
    times = interleaved(
        rounds, repeats, {"loop": many, "stacked": many}, time.process_time if device == "cpu" else clock
    )
    return float(np.median(times["loop"]) / np.median(times["stacked"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, 50 clients and batches of 10 only")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(50, 10)] if options.quick else [*product((50, 10, 2), (10, 50)), (50, 1)]
    use_full_precision()
    print(
        f"loop / stacked on {options.device}; the rule stacks up to {MOST_PARAMETERS} parameters and no convolutions\n"
    )
    heads = " ".join(f"{f'{clients} x {batch}':>8}" for clients, batch in cases)
    print(f"{'model':18} {'parameters':>10} {'rule':>8} {heads}   loses")
    rows = []
    for name, (build, shape) in MODELS.items():
        torch.manual_seed(0)
        model = build().to(options.device)
        size = sum(p.numel() for p in model.parameters())
        probe = Examples(torch.rand((1, *shape)), torch.zeros(1, dtype=torch.int64)).to(options.device)
        stacks = is_stackable(model, probe, LocalTraining())
        repeats = 3 if options.quick else 9
        found = {case: speed_up(model, shape, *case, repeats, options.device) for case in cases}
        loses = max(1 / figure if stacks else figure for (clients, _), figure in found.items() if clients >= 10)
        rule, figures = "stacked" if stacks else "loop", " ".join(f"{figure:8.2f}" for figure in found.values())
        print(f"{name:18} {size:10} {rule:>8} {figures}   {max(loses, 1):.2f}", flush=True)
        by_case = {f"{clients} clients, batch {batch}": figure for (clients, batch), figure in found.items()}
        rows.append({"model": name, "parameters": size, "rule": rule, "loses": loses, "loop / stacked": by_case})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
