"""The published attacks on one common task: a small CNN with batch norm, four samples of CIFAR-10 at 16 x 16 pixels.

    python benchmarks/inversion_published.py --data-dir DATA --batches 10 --out ROWS [--device cuda]
    python benchmarks/inversion_published.py --summary ROWS

Every batch meets a network of its own, trained for a moment so that its running statistics mean something, and used in
evaluation mode. All make the same number of steps, GradInversion with a group of three. Labels are given but to DLG,
which seeks them. Prints PSNR with its 95 % interval over batches, and the orders that the papers claim, as paired
differences. Held out: seeds from 80,000; the weights of priors were chosen on others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from inversion_workloads import Pictures
from torch import Tensor, nn

from fedspill.attacks.inversion.gradients import gradients_of
from fedspill.attacks.inversion.recipes import dlg, grad_inversion, inverting_gradients, sapag
from fedspill.attacks.inversion.search import Box, Recipe, one_hot, reconstruct
from fedspill.data.base import Examples
from fedspill.metrics.base import mean_interval
from fedspill.metrics.similarity import matched, psnr
from fedspill.seeds import seed_of

SAMPLES, CLASSES, GROUP = 4, 10, 3

# Better, worse, who says so.
ORDERS = (
    ("idlg", "dlg", "iDLG, 2020: known labels help"),
    (
        "inverting-gradients",
        "idlg",
        "Inverting Gradients, 2020: cosine and variation beat squared distance on ReLU nets",
    ),
    ("sapag", "dlg", "SAPAG, 2020"),
    ("inverting-gradients", "sapag, sum of squares", "CAFE, 2021, Table 1"),
    ("grad-inversion", "inverting-gradients", "GradInversion, 2021"),
    ("grad-inversion", "grad-inversion, no BN", "GradInversion, 2021: statistics help"),
    ("grad-inversion", "grad-inversion, no GC", "GradInversion, 2021: the group helps"),
)


def halved(batch: Examples) -> Examples:
    return Examples(nn.functional.avg_pool2d(batch.x, 2), batch.y)


def quality(pictures: Pictures, x: Tensor, real: Tensor) -> float:
    """Mean PSNR in pixels, matched one to one."""
    guessed, true = ((y * pictures.deviation + pictures.mean).clamp(0, 1) for y in (x, real))
    return float(psnr(guessed[matched(guessed, true)], true).mean())


def trained(pictures: Pictures, seed: int, steps: int = 60) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "network"))
        layers: list[nn.Module] = []
        for channels, out, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 2)):
            layers += [nn.Conv2d(channels, out, 3, stride, 1), nn.BatchNorm2d(out), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, CLASSES))
        optimizer, data = torch.optim.SGD(model.parameters(), 0.02, 0.9), pictures.data.train
        for _ in range(steps):
            batch = halved(data.take(torch.randint(len(data), (64,))))
            loss = nn.functional.cross_entropy(model(batch.x), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def recipes(model: nn.Module, steps: int) -> dict[str, tuple[Recipe, bool]]:
    """By name: a recipe, and whether labels are given."""
    weights = {"variation": 0.1, "statistics": 0.01}
    return {
        "dlg": (dlg(steps), False),
        "idlg": (dlg(steps), True),
        "sapag": (sapag(steps, per_entry=True, lr=0.03), True),
        "sapag, sum of squares": (sapag(steps), True),
        "inverting-gradients": (inverting_gradients(steps, 0.1), True),
        "grad-inversion": (grad_inversion(model, steps, group=GROUP, **weights), True),
        "grad-inversion, no BN": (grad_inversion(model, steps, group=GROUP, batch_norm=False, **weights), True),
        "grad-inversion, no GC": (grad_inversion(model, steps, group=1, **weights), True),
    }


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    pictures = Pictures.of("cifar10", asked.data_dir)
    box = Box(*((edge - pictures.mean) / pictures.deviation for edge in (0, 1)))
    for seed in range(asked.first_seed, asked.first_seed + asked.batches):
        model, batch = trained(pictures, seed).to(asked.device), halved(pictures.batch(SAMPLES, seed))
        targets = one_hot(batch.y, CLASSES).float().to(asked.device)
        match = gradients_of(model)
        sent = [g[0].detach() for g in match(batch.x[None].to(asked.device), targets[None])]
        grey = (0.5 - pictures.mean) / pictures.deviation + 0 * batch.x
        yield {"seed": seed, "method": "grey image", "psnr": quality(pictures, grey, batch.x)}
        for name, (recipe, labelled) in recipes(model, asked.steps).items():
            rng, told = torch.Generator().manual_seed(seed), targets if labelled else None
            shape = tuple(batch.x.shape)
            found = reconstruct(recipe, match, sent, shape, CLASSES, rng=rng, targets=told, box=box)
            x = torch.nan_to_num(found.x[found.best].detach().cpu())
            yield {"seed": seed, "method": name, "psnr": quality(pictures, x, batch.x)}


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    scores: dict[str, dict[int, float]] = {}
    for row in rows:
        scores.setdefault(row["method"], {})[row["seed"]] = row["psnr"]
    for name, values in scores.items():
        found = torch.tensor(list(values.values()))
        low, high = mean_interval(found)
        print(f"{name:<24} {float(found.mean()):.1f} [{low:.1f}, {high:.1f}] dB, n = {len(found)}")
    for better, worse, who in ORDERS:
        seeds = sorted(set(scores.get(better, {})) & set(scores.get(worse, {})))
        if seeds:
            apart = torch.tensor([scores[better][seed] - scores[worse][seed] for seed in seeds])
            low, high = mean_interval(apart)
            held = "holds" if low > 0 else "open" if high > 0 else "does not hold"
            print(f"{better} over {worse}: {float(apart.mean()):+.1f} [{low:+.1f}, {high:+.1f}] dB, {held} ({who})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--first-seed", type=int, default=80_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--summary", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.summary is None:
        with asked.out.open("a", encoding="utf-8") as out:
            for row in measure(asked):
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(row, flush=True)
    kept = (asked.summary or asked.out).read_text(encoding="utf-8").splitlines()
    summarise([json.loads(line) for line in kept])


if __name__ == "__main__":
    main()
