"""The published attacks on one common task: a trained ResNet with batch norm, eight samples of CIFAR-10.

    python benchmarks/inversion_published.py --data-dir DATA --prepare NETWORKS --first-seed 70000 --batches 8
    python benchmarks/inversion_published.py --data-dir DATA --networks NETWORKS --first-seed 70000 --batches 8 \\
        --choose --out ROWS [--methods idlg dlg] [--device cuda]
    python benchmarks/inversion_published.py --data-dir DATA --prepare NETWORKS
    python benchmarks/inversion_published.py --data-dir DATA --networks NETWORKS --out ROWS [--methods idlg dlg]
    python benchmarks/inversion_published.py --summary ROWS

The task. Where the papers make their claims: rectifiers, batch norm, a global average before the last layer, weights
past their start, and as GradInversion asks no label twice in a batch. Eight layers, 16 x 16 pixels, a network of its
own for every batch. The client makes one step in training mode, as clients do, so that its batch norms normalise by the
batch's own statistics; these come along, since buffers are part of what it sends, and GradInversion is told them (Huang
et al. 2021 read its paper so). All attacks make 2,000 steps from the same normal noise and match gradients in training
mode; labels are given but to DLG, which seeks them.

What no paper fixes for such a network is chosen on development batches (seeds below 80,000, the first 2,000 test
images; held-out batches come from the others), by one rule for every attack and for every attack with a part taken
away: one setting after the other, the rate first, five values at half a decade around where it stands, two more beyond
an end as long as the best lies there, and the best mean SSIM stays; a first pass over all settings with half of the
steps, a second with all. (By PSNR an attack that fails would be told not to move.) A group keeps what was chosen for
one search, and its own weight is swept, with half of the steps.

Decision: held-out seeds from 84,000, 24 batches for every attack, mean paired difference and its 95 % interval over
batches. An order holds if the interval lies above 0, is reversed if it lies below, and is open otherwise. SSIM decides:
the gradient of a training step is blind to the contrast of its batch (inversion_terms.py), on which PSNR rests. PSNR
and its verdict stand beside.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from inversion_methods import CAUSES, CHOSEN, METHODS, ORDERS, POOLED, Settings, recipe_of
from inversion_stacked import search
from inversion_task import CLASSES, Task, quality, trained
from inversion_workloads import Pictures

from fedspill.intervals import mean_interval

STEPS, TRAINING = 2_000, 200  # of an attack, of training
VALUES, FURTHER, WIDEST = 5, 2, 11  # of a sweep: at first, beyond an end, and at most


def score(task: Task, name: str, settings: Settings, steps: int) -> list[dict[str, Any]]:
    """One search for all batches; a row for each."""
    began, method, rng = time.time(), METHODS[name], torch.Generator().manual_seed(task.seeds[0])
    given = task.targets.to(task.device) if method.labels else None
    recipe, shape = recipe_of(method, settings, task, steps), task.x.shape[1:]
    start = task.starts(method.members)
    x, loss = search(recipe, task.networks(), task.sent(), shape, given, task.box, CLASSES, rng, start)
    rows = []
    for index, seed in enumerate(task.seeds):
        scores = quality(task.pictures, torch.nan_to_num(x[index].cpu()), task.x[index])
        rows.append({"seed": seed, "method": name, "steps": steps, "loss": float(loss[index]), **scores})
    print(f"{name}: {len(rows)} batches, {steps} steps, {time.time() - began:.0f} s", flush=True)
    return rows


def half_decade(step: int) -> float:
    """1, 3, 10, 30 and so on."""
    return float(f"{10 ** (step / 2):.0e}")


def sweep(task: Task, name: str, settings: Settings, setting: str, steps: int) -> Iterator[dict[str, Any]]:
    """The means of every value tried of one setting, all at once."""
    middle = round(2 * math.log10(getattr(settings, setting)))
    fresh, found = [middle + offset - VALUES // 2 for offset in range(VALUES)], {}
    while fresh:
        tried = replace(settings, **{setting: torch.tensor([half_decade(s) for s in fresh]).repeat(len(task.seeds))})
        rows = score(task.repeated(len(fresh)), name, tried, steps)
        for index, place in enumerate(fresh):
            mine = rows[index :: len(fresh)]
            means = {key: sum(row[key] for row in mine) / len(mine) for key in ("psnr", "ssim", "loss")}
            found[place] = means["ssim"]
            yield {"sweep": name, "setting": setting, "value": half_decade(place), "steps": steps, **means}
        best, low, high = max(found, key=lambda place: found[place]), min(found), max(found)
        fresh = [low - 1 - k for k in range(FURTHER)] if best == low else []
        fresh = [high + 1 + k for k in range(FURTHER)] if best == high else fresh
        if len(found) >= WIDEST:
            break


def choose(task: Task, names: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    """The sweeps of these attacks, one after the other."""
    stand = dict(CHOSEN)
    for name in names:
        method = METHODS[name]
        settings = stand.get(method.after, method.begin)
        for length in (steps // 2,) if method.after else (steps // 2, steps):
            for setting in method.swept:
                tried = []
                for row in sweep(task, name, settings, setting, length):
                    tried.append(row)
                    yield row
                best = max(tried, key=lambda row: float(row["ssim"]))
                settings = replace(settings, **{setting: best["value"]})
                yield {"chosen": name, "settings": asdict(settings), "steps": length, "n": len(task.seeds)}
        stand[name] = settings


def measure(task: Task, names: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    level = (0.5 - task.pictures.mean) / task.pictures.deviation
    for name in names:
        yield from score(task, name, CHOSEN[name], steps)
    for seed, x in zip(task.seeds, task.x, strict=True):
        yield {"seed": seed, "method": "grey image", **quality(task.pictures, level + 0 * x, x)}


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    for metric, unit, digits in (("ssim", "", 3), ("psnr", " dB", 2)):
        scores: dict[str, dict[int, float]] = {}
        for row in rows:
            if "method" in row:
                scores.setdefault(row["method"], {})[row["seed"]] = row[metric]
        for name, parts in POOLED.items():
            each = [scores.get(part, {}) for part in parts]
            seeds = set.intersection(*(set(one) for one in each))
            scores |= {name: {seed: sum(one[seed] for one in each) / len(each) for seed in seeds}} if seeds else {}
        print(metric)
        for name, values in scores.items():
            found = torch.tensor(list(values.values()))
            low, high = mean_interval(found)
            size = f"{float(found.mean()):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
            print(f"  {name:<36} {size}, n = {len(found)}")
        for better, worse, who in (*ORDERS, *CAUSES):
            both = sorted(set(scores.get(better, {})) & set(scores.get(worse, {})))
            if len(both) > 1:
                apart = torch.tensor([scores[better][seed] - scores[worse][seed] for seed in both])
                low, high = mean_interval(apart)
                verdict = "holds" if low > 0 else "reversed" if high < 0 else "open"
                size = f"{float(apart.mean()):+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{unit}"
                print(f"  {better} over {worse}: {size}, n = {len(both)}, {verdict} ({who})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--first-seed", type=int, default=84_000)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", type=Path, help="written by --prepare")
    parser.add_argument("--prepare", type=Path, help="train the networks of these seeds, and write them here")
    parser.add_argument("--training", type=int, default=TRAINING, help="steps, with --prepare")
    parser.add_argument("--choose", action="store_true", help="the sweeps, on development batches")
    parser.add_argument("--summary", type=Path, nargs="+")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    if asked.summary:
        lines = [line for path in asked.summary for line in path.read_text(encoding="utf-8").splitlines()]
        summarise([json.loads(line) for line in lines])
        return
    seeds = range(asked.first_seed, asked.first_seed + asked.batches)
    pictures = Pictures.of("cifar10", asked.data_dir)
    if asked.prepare:
        models = trained(pictures, seeds, asked.training, asked.device)
        torch.save({str(seed): model.state_dict() for seed, model in zip(seeds, models, strict=True)}, asked.prepare)
        return
    task = Task.of(pictures, seeds, torch.load(asked.networks, weights_only=True), asked.device)
    how = choose if asked.choose else measure
    with asked.out.open("a", encoding="utf-8") as out:
        for row in how(task, asked.methods, asked.steps):
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(row, flush=True)


if __name__ == "__main__":
    main()
