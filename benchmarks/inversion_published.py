"""The published attacks on one common task: a small trained ResNet, eight samples of CIFAR-10 at 16 x 16 pixels.

    python benchmarks/inversion_published.py --data-dir DATA --batches 12 --out ROWS [--methods dlg idlg]
    python benchmarks/inversion_published.py --summary ROWS
    python benchmarks/inversion_published.py --data-dir DATA --statistics
    python benchmarks/inversion_published.py --data-dir DATA --lenet --batches 20 --steps 400 --out ROWS

Where the papers make their claims: batch norm, rectifiers, a global average before the last layer, weights past their
start, and as GradInversion asks no label twice in a batch. Every batch meets a network of its own, trained for 200
steps and used in evaluation mode. All attacks make the same number of steps, GradInversion with a group of three.
Labels are given but to DLG, which seeks them. Prints PSNR and SSIM with 95 % intervals over batches, and the orders
that the papers claim, as paired differences. "own BN" tells GradInversion the statistics of the very batch, which a
client that trains in training mode sends along with its buffers; "cosine" gives it Inverting Gradients' distance and no
statistics. --statistics prints what the batch-norm prior makes of true batches, --lenet takes iDLG's own setting. Held
out: seeds from 80,000; the weights of priors were chosen on others.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from inversion_workloads import Pictures, gradients, network
from torch import Tensor, nn
from torch.nn import functional

from fedspill.attacks.inversion.gradients import gradients_of
from fedspill.attacks.inversion.objectives import CosineDistance
from fedspill.attacks.inversion.priors import BatchNormStatistics
from fedspill.attacks.inversion.recipes import dlg, grad_inversion, inverting_gradients, sapag
from fedspill.attacks.inversion.search import Box, Recipe, one_hot, reconstruct
from fedspill.data.base import Examples
from fedspill.metrics.base import mean_interval
from fedspill.metrics.similarity import matched, psnr, ssim
from fedspill.models.resnet import BasicBlock, ResidualNetwork
from fedspill.seeds import generator, seed_of

SAMPLES, CLASSES, GROUP = 8, 10, 3
VARIATION, SMOOTH, STATISTICS = 0.1, 0.3, 1e-3  # of Inverting Gradients, and of GradInversion; chosen on other seeds
METHODS = (
    "dlg",
    "idlg",
    "sapag",
    "sapag, sum of squares",
    "inverting-gradients",
    "grad-inversion",
    "grad-inversion, no BN",
    "grad-inversion, no GC",
    "grad-inversion, own BN",
    "grad-inversion, cosine",
)
LENET = ("dlg, LeNet", "idlg, LeNet")

# Better, worse, who says so.
ORDERS = (
    ("idlg", "dlg", "iDLG, 2020: known labels help"),
    (
        "inverting-gradients",
        "idlg",
        "Inverting Gradients, 2020: cosine and variation beat squared distance on ReLU nets",
    ),
    ("idlg, LeNet", "dlg, LeNet", "the same in its own setting"),
    ("sapag", "dlg", "SAPAG, 2020: on residual networks and past the start"),
    ("inverting-gradients", "sapag, sum of squares", "CAFE, 2021, Table 1"),
    ("grad-inversion", "inverting-gradients", "GradInversion, 2021"),
    ("grad-inversion, cosine", "inverting-gradients", "its group and variation on the other's distance"),
    ("grad-inversion, cosine", "grad-inversion, no BN", "what the distance does"),
    ("grad-inversion", "grad-inversion, no BN", "GradInversion, 2021: statistics help"),
    ("grad-inversion, own BN", "grad-inversion, no BN", "the same, with the batch's own statistics"),
    ("grad-inversion", "grad-inversion, no GC", "GradInversion, 2021: the group helps"),
)


def halved(batch: Examples) -> Examples:
    return Examples(functional.avg_pool2d(batch.x, 2), batch.y)


def quality(pictures: Pictures, x: Tensor, real: Tensor) -> dict[str, float]:
    """Means in pixels, matched one to one."""
    guessed, true = ((y * pictures.deviation + pictures.mean).clamp(0, 1) for y in (x, real))
    guessed = guessed[matched(guessed, true)]
    return {"psnr": float(psnr(guessed, true).mean()), "ssim": float(ssim(guessed, true).mean())}


def distinct(pictures: Pictures, seed: int) -> Examples:
    """One test image of each of SAMPLES classes."""
    rng, test = generator(seed, "batch", SAMPLES), pictures.data.test
    order = torch.randperm(len(test), generator=rng)
    classes = torch.randperm(CLASSES, generator=rng)[:SAMPLES]
    return halved(test.take(torch.stack([order[(test.y[order] == label).nonzero()[0, 0]] for label in classes])))


def trained(pictures: Pictures, seed: int, steps: int = 200) -> nn.Module:
    """Three stages of one block, 16 to 64 channels, after some steps of SGD; about 42 % accurate."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "network"))
        model, data = (
            ResidualNetwork(BasicBlock, (1, 1, 1), 3, 16, CLASSES, stem="cifar", last_bias=True),
            pictures.data,
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
        for _ in range(steps):
            batch = halved(data.train.take(torch.randint(len(data.train), (64,))))
            loss = functional.cross_entropy(model(batch.x), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
    return model.eval()


def with_statistics_of(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy whose running statistics are those of a training step on x."""
    told = copy.deepcopy(model).train()
    for layer in told.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        told(x)
    return told.eval()


def recipe_of(method: str, model: nn.Module, x: Tensor, steps: int) -> Recipe:
    weights = {"variation": SMOOTH, "statistics": STATISTICS}
    if method in ("dlg", "idlg"):
        return dlg(steps)
    if method == "sapag":
        return sapag(steps, per_entry=True, lr=0.03)
    if method == "sapag, sum of squares":
        return sapag(steps)
    if method == "inverting-gradients":
        return inverting_gradients(steps, VARIATION)
    prior = with_statistics_of(model, x) if method.endswith("own BN") else model
    group, told = 1 if method.endswith("no GC") else GROUP, not method.endswith(("no BN", "cosine"))
    recipe = grad_inversion(prior, steps, group=group, batch_norm=told, **weights)
    return replace(recipe, objective=CosineDistance()) if method.endswith("cosine") else recipe


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    pictures = Pictures.of("cifar10", asked.data_dir)
    box = Box(*((edge - pictures.mean) / pictures.deviation for edge in (0, 1)))
    for seed in range(asked.first_seed, asked.first_seed + asked.batches):
        model, batch = trained(pictures, seed).to(asked.device), distinct(pictures, seed)
        x, targets = batch.x.to(asked.device), one_hot(batch.y, CLASSES).float().to(asked.device)
        match = gradients_of(model)
        sent = [g[0].detach() for g in match(x[None], targets[None])]
        if METHODS[0] in asked.methods:
            grey = (0.5 - pictures.mean) / pictures.deviation + 0 * batch.x
            yield {"seed": seed, "method": "grey image", **quality(pictures, grey, batch.x)}
        for method in asked.methods:
            recipe = recipe_of(method, model, x, asked.steps)
            rng, told = torch.Generator().manual_seed(seed), None if method == "dlg" else targets
            found = reconstruct(recipe, match, sent, tuple(x.shape), CLASSES, rng=rng, targets=told, box=box)
            guess = torch.nan_to_num(found.x[found.best].detach().cpu())
            loss = float(found.loss[found.best])
            yield {"seed": seed, "method": method, "loss": loss, **quality(pictures, guess, batch.x)}


def on_lenet(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """iDLG's own setting: one sample, DLG's network with sigmoids at its start."""
    pictures = Pictures.of("cifar10", asked.data_dir)
    for seed in range(asked.first_seed, asked.first_seed + asked.batches):
        model, batch = network("lenet", seed), pictures.batch(1, seed)
        sent, targets = list(gradients(model, batch).values()), one_hot(batch.y, CLASSES).float()
        for method, told in zip(LENET, (None, targets), strict=True):
            rng = torch.Generator().manual_seed(seed)
            how = (dlg(asked.steps), gradients_of(model), sent, tuple(batch.x.shape), CLASSES)
            found = reconstruct(*how, rng=rng, targets=told)
            right = bool(torch.equal(found.targets[found.best].argmax(1), batch.y))
            guess = torch.nan_to_num(found.x[found.best].detach())
            yield {"seed": seed, "method": method, "label": right, **quality(pictures, guess, batch.x)}


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    for score, unit in (("psnr", " dB"), ("ssim", "")):
        digits = 1 if unit else 3
        scores: dict[str, dict[int, float]] = {}
        for row in rows:
            scores.setdefault(row["method"], {})[row["seed"]] = row[score]
        print(score)
        for name, values in scores.items():
            found = torch.tensor(list(values.values()))
            low, high = mean_interval(found)
            print(
                f"  {name:<24} {float(found.mean()):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}], n = {len(found)}"
            )
        for better, worse, who in ORDERS:
            seeds = sorted(set(scores.get(better, {})) & set(scores.get(worse, {})))
            if len(seeds) > 1:
                apart = torch.tensor([scores[better][seed] - scores[worse][seed] for seed in seeds])
                low, high = mean_interval(apart)
                held = "holds" if low > 0 else "open" if high > 0 else "does not hold"
                size = f"{float(apart.mean()):+.{digits + 1}f} [{low:+.{digits + 1}f}, {high:+.{digits + 1}f}]{unit}"
                print(f"  {better} over {worse}: {size}, n = {len(seeds)}, {held} ({who})")


@torch.no_grad()
def statistics(pictures: Pictures, model: nn.Module, first_seed: int, draws: int = 20) -> None:
    """What the batch-norm prior (weight 1) makes of true batches, of the same blurred or with noise, and of noise."""
    prior, test = BatchNormStatistics(model, 1.0), pictures.data.test
    for size in (4, 8, 32, 256):
        values = []
        for draw in range(draws):
            rng = generator(first_seed + draw, "statistics", size)
            x = halved(test.take(torch.randperm(len(test), generator=rng)[:size])).x
            blurred = functional.interpolate(functional.avg_pool2d(x, 2), scale_factor=2, mode="bilinear")
            noise = torch.randn(x.shape, generator=rng)
            values.append(torch.tensor([float(prior(y[None])) for y in (x, blurred, x + 0.3 * noise, noise)]))
        means = torch.stack(values).mean(0).tolist()
        told = ", ".join(
            f"{n} {v:.0f}" for n, v in zip(("true", "blurred", "noise 0.3", "only noise"), means, strict=True)
        )
        print(f"batches of {size}: {told} (mean of {draws})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--first-seed", type=int, default=80_000)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--lenet", action="store_true", help="DLG and iDLG on one sample of DLG's network instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--statistics", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.statistics:
        pictures = Pictures.of("cifar10", asked.data_dir)
        statistics(pictures, trained(pictures, asked.first_seed), asked.first_seed)
        return
    if asked.summary is None:
        with asked.out.open("a", encoding="utf-8") as out:
            for row in on_lenet(asked) if asked.lenet else measure(asked):
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(row, flush=True)
    kept = (asked.summary or asked.out).read_text(encoding="utf-8").splitlines()
    summarise([json.loads(line) for line in kept])


if __name__ == "__main__":
    main()
