"""How near our composition comes to the limit: a reader with far more data and rehearsals than any adversary has.

    python papers/000/limit.py --data-dir DIR [--dataset mnist] [--device cuda] [--seed 2043] [--federations 2]

The federations of Tables III and IV at full scale. Ours has 100 labelled samples of each class, as the paper's; the
limit has 250 of the clients' own distribution, and four times as many rehearsals, whatever they cost. What it still
gets wrong is what the updates do not say to anyone who reads them so and does not hold the clients' own samples. Mean
L1 over clients in percent.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
from tables import SETTINGS, Recording, load_images, record

from fedspill.dataset import Examples
from fedspill.leaks.composition.metrics import by_client, distance, true_shares
from fedspill.observe import rehearsal_plan
from fedspill.observe.rehearsed_shares import RehearsalSizes
from fedspill.reproduce import Run

OURS, LIMIT = 100, 250  # auxiliary samples of each class
MANY: dict[str, Any] = {
    "RehearsalSizes": partial(RehearsalSizes, broad=192, near=256, layers=3, telling=4),
    "ENOUGH_FLOPS": 1e30,
}


def error(recording: Recording, seed: int, auxiliary: Examples, **options: str) -> float:
    """The mean over clients, in percent."""
    guess = recording.guess(seed, {"aux_data": auxiliary}, **options)
    off = distance(guess.shares, true_shares(guess, recording.trace.truth()), 1)
    return 100 * float(by_client(off, [origin.sender for origin in guess.of]).mean())


def some(examples: Examples, each: int) -> Examples:
    """The first of each class."""
    rows = [torch.nonzero(examples.y == label).flatten()[:each] for label in examples.y.unique()]
    return examples.take(torch.cat(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion-mnist"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=2043)
    parser.add_argument("--federations", type=int, default=2)
    parser.add_argument("--scale", default="full", choices=["full", "quick"])
    parser.add_argument("--settings", nargs="*", default=[name for name in SETTINGS if "full-batch" not in name])
    arguments = parser.parse_args()
    run = Run(seed=arguments.seed, scale=arguments.scale, data_dir=arguments.data_dir, device=arguments.device)
    dataset, why_not = load_images(arguments.dataset, run)
    if dataset is None:
        raise SystemExit(why_not)
    for setting in arguments.settings:
        found: dict[str, list[float]] = {"as written": [], "ours": [], "limit": []}
        for repeat in range(arguments.federations):
            recording = record(dataset, SETTINGS[setting], run, repeat, auxiliary=LIMIT)
            every = recording.known["aux_data"]
            few = some(every, OURS)
            found["ours"].append(error(recording, run.seed, few))
            print(setting, repeat, "ours", round(found["ours"][-1], 1), flush=True)  # the limit takes far longer
            with mock.patch.multiple(rehearsal_plan, **MANY):
                found["limit"].append(error(recording, run.seed, every))
            found["as written"].append(error(recording, run.seed, few, solver="paper", rounds="single"))
            print(setting, repeat, {name: round(values[-1], 1) for name, values in found.items()}, flush=True)
        words = []
        for name, values in found.items():
            spread = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else float("nan")
            words.append(f"{name} {mean(values):.1f} +- {spread:.1f}")
        print(f"{arguments.dataset} {setting}: {', '.join(words)} (federations {arguments.federations})", flush=True)


if __name__ == "__main__":
    main()
