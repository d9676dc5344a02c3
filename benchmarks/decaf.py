"""Decaf: 1000 epochs of descent against the closed form, and how the cost grows with classes and clients.

Prints ratios; absolute times are this machine's. Run: python benchmarks/decaf.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedspill.leaks.composition.shares.published_steps import descent
from fedspill.observe.simplex import simplex_fits

FEATURES, REPEATS, GROUP = 128, 5, 50


def problem(classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Bases (classes, d) as correlated as real ones, true shares (classes,), and a noisy target (d,)."""
    rng = torch.Generator().manual_seed(seed)
    common = torch.rand(1, FEATURES * classes, generator=rng, dtype=torch.float64)
    bases = common + torch.randn(classes, FEATURES * classes, generator=rng, dtype=torch.float64)
    shares = torch.empty(classes, dtype=torch.float64).exponential_(generator=rng)
    shares = shares / shares.sum()
    return bases, shares, shares @ bases + 0.02 * torch.randn(bases.shape[1], generator=rng, dtype=torch.float64)


def seconds(work: Callable[[], object]) -> float:
    """The fastest of a few runs: what is left when nobody else uses the machine."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def closed(bases: Tensor, targets: Tensor) -> Tensor:
    """(n, classes) of n clients; bases (n, classes, d), targets (n, d), in groups that fit into the cache."""
    found = []
    for part, target in zip(bases.split(GROUP), targets.split(GROUP), strict=True):
        inner = (part @ target[:, :, None]).mT
        square = (target**2).sum(1)[:, None, None]
        products = torch.cat([torch.cat([part @ part.mT, inner], 1), torch.cat([inner.mT, square], 1)], 2)
        found.append(simplex_fits(products, torch.ones(part.shape[:2], dtype=torch.bool))[0])
    return torch.cat(found)


def main() -> None:
    torch.set_num_threads(1)
    print("classes   descent ms   closed ms   ratio   L1 descent   L1 closed")
    for classes in (10, 20, 50, 100):
        bases, shares, target = problem(classes)
        clients = 4000 // classes
        many = bases.expand(clients, -1, -1).contiguous(), target.expand(clients, -1).contiguous()
        slow = seconds(lambda b=bases, t=target: descent(b, t, 1000, 1.0))
        fast = seconds(lambda m=many: closed(*m)) / clients
        by_descent = descent(bases, target, 1000, 1.0)
        errors = [float((found / found.sum() - shares).abs().sum()) for found in (by_descent, closed(*many)[0])]
        print(
            f"{classes:7d} {1e3 * slow:12.1f} {1e3 * fast:11.3f} {slow / fast:7.0f}   "
            f"{errors[0]:.4f}       {errors[1]:.4f}"
        )
    bases, _, target = problem(10)
    print("clients   ms per client (linear: the same in every row)")
    for clients in (10, 100, 1000):
        many = bases.expand(clients, -1, -1).contiguous(), target.expand(clients, -1).contiguous()
        print(f"{clients:7d} {1e3 * seconds(lambda m=many: closed(*m)) / clients:10.3f}")


if __name__ == "__main__":
    main()
