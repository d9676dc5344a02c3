"""Decaf: 1000 epochs of descent against the closed form, and how the cost grows with classes, clients and models.

Prints ratios; absolute times are this machine's. Run: python benchmarks/decaf.py [descent] [growth]

`growth` times all that the path takes of an update, from the client's model to its shares, beside the same with bases
that are formed, as large as the last layer each, at five points, and whitened anew for each of three fits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.leaks.composition.shares.path_shares import RIDGE, path_shares
from fedspill.leaks.composition.shares.published_steps import descent
from fedspill.observe.path_bases import last_layer_matrix, path_bases
from fedspill.observe.path_products import whitened_products
from fedspill.observe.simplex import simplex_fit, simplex_fits
from fedspill.training import Tensors

FEATURES, REPEATS, GROUP = 128, 5, 50
GROWTH = {  # classes, auxiliary samples of each, width of the last layer's inputs, clients of a round
    "10 classes": (10, 10, 128, 8),
    "100 classes": (100, 10, 128, 8),
    "1,000 classes": (1000, 2, 128, 2),
    "10 classes, 1 client": (10, 10, 128, 1),
    "10 classes, 64 clients": (10, 10, 128, 64),
    "10 classes, 1,024 inputs": (10, 10, 1024, 8),
    "10 classes, 8,192 inputs": (10, 10, 8192, 8),
}


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


def federation(
    classes: int, each: int, width: int, clients: int
) -> tuple[nn.Module, Examples, Tensors, list[tuple[Tensors, Tensor]]]:
    """A model of two layers, auxiliary samples, its state, and changes with a mean gradient each."""
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))
    state = {n: torch.randn(t.shape, generator=rng) / t.shape[-1] ** 0.5 for n, t in model.state_dict().items()}
    labels = torch.arange(classes).repeat(each)
    x = torch.randn(classes, 64, generator=rng)[labels] + 0.7 * torch.randn(len(labels), 64, generator=rng)
    sent = []
    for _ in range(clients):
        change = {n: 0.02 * torch.randn(t.shape, generator=rng) for n, t in state.items()}
        sent.append((change, -last_layer_matrix(change, "2.weight", "2.bias")))
    return model, Examples(x, labels), state, sent


def by_samples(model: nn.Module, own: Examples, state: Tensors, change: Tensors, mean: Tensor, classes: int) -> Tensor:
    bases = path_bases(model, state, change, "2.weight", own, classes)
    return path_shares(bases, mean, torch.ones(classes, dtype=torch.bool))[0]


def formed(model: nn.Module, own: Examples, state: Tensors, change: Tensors, mean: Tensor, classes: int) -> Tensor:
    bases = path_bases(model, state, change, "2.weight", own, classes, points=5)
    columns = torch.cat([bases.gradients, mean[None]])
    shares = even = torch.full((classes,), 1 / classes, dtype=torch.float64)
    for found in (0.0, 0.0, 0.9):  # weight of what the fit before found, in the mixture whose noise is reckoned with
        products = whitened_products(columns, bases.middle, found * shares + (1 - found) * even, RIDGE)
        shares = simplex_fit(products, torch.ones(classes, dtype=torch.bool))[0]
    return shares


def growth() -> None:
    print("| | bases formed, CPU s an update | now | ratio | L1 between the two |\n|---|---|---|---|---|")
    for name, (classes, each, width, clients) in GROWTH.items():
        model, own, state, sent = federation(classes, each, width, clients)
        told, took = [], []
        for way, most in ((formed, min(clients, 2)), (by_samples, clients)):
            work = partial(way, model, own, state, classes=classes)
            began = time.process_time()
            told.append([work(change=change, mean=mean) for change, mean in sent[:most]])
            took.append((time.process_time() - began) / most)
        apart = max(float((a - b).abs().sum()) for a, b in zip(*told, strict=False))
        print(f"| {name} | {took[0]:.4f} | {took[1]:.4f} | {took[0] / took[1]:.1f} | {apart:.1e} |", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    for part in sys.argv[1:] or ["descent", "growth"]:
        {"descent": against_descent, "growth": growth}[part]()


def against_descent() -> None:
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
