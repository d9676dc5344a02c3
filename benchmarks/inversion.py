"""Reconstruction against the `breaching` package: CPU seconds to the same PSNR, and PSNR at the same CPU.

    benchmarks/breaching.sh
    PYTHONPATH=src benchmarks/.venv-breaching/bin/python benchmarks/inversion_peer.py t10-4 lenet-1 --out RUNS ...
    python benchmarks/inversion.py t10-4 lenet-1 --data-dir DATA --out RUNS
    python benchmarks/inversion.py --compare RUNS

Same networks, images and gradients by seed. Ours is what the attack `inputs` would do: exact recovery where it applies,
else signed Adam on the cosine distance with labels and variation as breaching's Inverting Gradients has them. Its best
attack is, image by image, the one that comes further. With --device cuda gradients are matched on a GPU, exact recovery
stays on one CPU thread, and seconds are those of the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from inversion_exact import case_of
from inversion_workloads import WORKLOADS, Pictures, gradients, network, seconds

from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.leaks.inputs.search.search import Box, SearchResult, SearchState, one_hot, reconstruct

LOOKS = 24  # at the candidate, spread over the search; their time is not counted
MOST_STEPS = 24_000
VARIATION = 0.2
MADE_OUT = 20.0  # dB: below it nobody recognises a picture, and grey is at 12 to 14
Curve = list[tuple[float, int, float, float]]  # seconds, steps, mean and least PSNR


def ours(workload: str, pictures: Pictures, seed: int, limit: float, device: str) -> Curve:
    kind, _, size = WORKLOADS[workload]
    model, batch = network(kind, seed), pictures.batch(size, seed)
    sent = gradients(model, batch)
    rng = torch.Generator().manual_seed(seed)
    began = seconds(device)
    answer = recover_exactly(
        case_of(model, sent, size, size, None), pictures.data.shape, len(pictures.data.classes), RootSearchEffort(), rng
    )
    spent = seconds(device) - began
    if len(answer.samples) and bool(answer.certified.all()):
        values, _ = pictures.quality(answer.samples, batch.x)
        return [(spent, 1, float(values.mean()), float(values.min()))]
    model, observed = model.to(device), [tensor.to(device) for tensor in sent.values()]
    match = gradients_of(model)
    targets = one_hot(batch.y, len(pictures.data.classes)).to(device)
    box = Box(*((edge - pictures.mean) / pictures.deviation for edge in (0, 1)))
    shape, classes = (size, *pictures.data.shape), len(pictures.data.classes)

    def search(steps: int, whole: int, state: SearchState | None) -> SearchResult:
        recipe = replace(inverting_gradients(whole, VARIATION), steps=steps)
        return reconstruct(recipe, match, observed, shape, classes, rng=rng, targets=targets, box=box, state=state)

    search(2, 1_000, None)
    start = seconds(device)
    search(5, 1_000, None)
    # As many steps as fit, and with them the schedule.
    steps = max(LOOKS, min(MOST_STEPS, int(limit / (seconds(device) - start) * 5)))
    state, curve = None, []
    for look in range(1, LOOKS + 1):
        start = seconds(device)
        found = search(look * steps // LOOKS, steps, state)
        state = found.state
        spent += seconds(device) - start
        values, _ = pictures.quality(found.x[found.best].detach().cpu(), batch.x)
        curve.append((spent, state.steps, float(values.mean()), float(values.min())))
    return curve


def reached(curve: Curve, level: float) -> float | None:
    return next((point[0] for point in curve if point[2] >= level), None)


def compare(runs: Sequence[dict[str, Any]]) -> None:
    """For each workload and rival: the ratio of times to the PSNR that both reach, and ours at the rival's time."""
    for workload in dict.fromkeys(run["workload"] for run in runs):
        curves: dict[str, dict[int, Curve]] = {}
        for run in runs:
            if run["workload"] == workload and run["curve"]:
                curves.setdefault(run["by"], {})[run["seed"]] = run["curve"]
        mine = curves.pop("fedspill", {})
        best = [max(point[2] for point in curve) for curve in mine.values()]
        last = [curve[-1][0] for curve in mine.values()]
        print(f"{workload:<12} {'fedspill':<30} best PSNR {_spread(best)}, seconds {_spread(last)}")
        seeds = sorted(set(mine).intersection(*curves.values())) if curves else []
        if len(curves) > 1 and seeds:
            curves["its best attack"] = {
                seed: max(
                    (of[seed] for of in list(curves.values())), key=lambda curve: max(point[2] for point in curve)
                )
                for seed in seeds
            }
        for by, theirs in curves.items():
            _line(f"{workload:<12} {by:<30}", [(mine[seed], theirs[seed]) for seed in theirs if seed in mine])


def _line(label: str, pairs: Sequence[tuple[Curve, Curve]]) -> None:
    """Ratios of times to the PSNR that both reach, for all and for those that the rival makes out (20 dB); and to ours.

    Where the rival never gets as far as ours, the time it was given is a bound.
    """
    ratios, made_out, bounds, best = [], [], [], []
    for own, rival in pairs:
        furthest = [max(point[2] for point in curve) for curve in (own, rival)]
        slow, fast = reached(rival, min(furthest)), reached(own, min(furthest))
        assert slow is not None
        assert fast is not None
        ratios.append(slow / fast)
        best.append(furthest[1])
        if furthest[1] >= MADE_OUT:
            made_out.append(slow / fast)
        if furthest[1] < furthest[0]:
            bounds.append(rival[-1][0] / own[-1][0])
    spent = [rival[-1][0] for _, rival in pairs]
    print(f"{label} best PSNR {_spread(best)}, seconds {_spread(spent)}, ratio {_spread(ratios)}")
    far = f"never as far as ours, ratio above {_spread(bounds)}"
    print(f"{'':<43} where it is above {MADE_OUT:g} dB {_spread(made_out)}; {far}")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
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
            ours(workload, pictures, asked.first_seed - 1, 1.0, asked.device)  # what is set up once is not counted
            for seed in range(asked.first_seed, asked.first_seed + asked.number):
                curve = ours(workload, pictures, seed, asked.seconds, asked.device)
                run = {"workload": workload, "seed": seed, "by": "fedspill", "curve": curve}
                out.write(json.dumps(run) + "\n")
                out.flush()
                print(workload, seed, "last", curve[-1], flush=True)


if __name__ == "__main__":
    main()
