"""How near our composition comes to the limit: a reader with far more data than any adversary has.

    python papers/000/limit.py --out rows.jsonl [--dataset mnist] [--setting "sgd, one epoch"] [--device cuda]
        [--seed 2061] [--federation 0] [--readers written path ours limit] [--data-dir DIR] [--scale quick]

One federation of Tables III and IV, read by Decaf as written, by path bases, by ours and by the limit. Ours has 100
labelled samples of each class, as the paper's; the limit is ours with 2,000 of each class, drawn as the clients' are
and held by none of them, and with twice the make-believe clients. What it still gets wrong is what the updates do not
say to anyone who reads them so and does not hold the clients' own samples. Each row (L1 of each client in percent) is
written as it is found; what is in the file already is not read again.

    python papers/000/limit.py --summary rows.jsonl ...

prints the mean over federations with Student's interval, and ours over the limit on the federations that have both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from unittest import mock

import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
from tables import SETTINGS, Recording, load_images, record

from fedspill.dataset import Examples
from fedspill.leaks.composition import decaf
from fedspill.leaks.composition.metrics import by_client, distance, true_shares
from fedspill.observe import rehearsal_plan
from fedspill.observe.local_changes import KnownFederation, read_known_federation
from fedspill.observe.rehearsed_shares import RehearsalSizes
from fedspill.reproduce import Run
from fedspill.trace import View

OURS, LIMIT = 100, 2000  # auxiliary samples of each class
PATH = 250  # of each class, with which the limit's path is walked: it is solved among the samples
READERS: dict[str, dict[str, str]] = {
    "written": {"solver": "paper", "rounds": "single"},
    "path": {"solver": "path"},
    "ours": {},
    "limit": {},
}


@contextmanager
def generous(epochs: int) -> Iterator[None]:
    """The limit's rehearsals, whatever they cost: twice ours or more, as many as one GPU trains in minutes."""
    sizes = partial(RehearsalSizes, broad=96, near=128 if epochs == 1 else 64, known=(0, 1))
    plan = mock.patch.multiple(rehearsal_plan, RehearsalSizes=sizes, ENOUGH_FLOPS=1e30)
    with plan, mock.patch.object(decaf, "read_known_federation", known_with_fewer_samples):
        yield


def known_with_fewer_samples(view: View) -> KnownFederation:
    known = read_known_federation(view)
    return replace(known, auxiliary=some(known.auxiliary, PATH))


def errors_of(recording: Recording, seed: int, auxiliary: Examples, **options: str) -> tuple[list[float], list[str]]:
    """Of each client, in percent; and the notes of the reader."""
    guess = recording.guess(seed, {"aux_data": auxiliary}, **options)
    off = distance(guess.shares, true_shares(guess, recording.trace.truth()), 1)
    return (100 * by_client(off, [origin.sender for origin in guess.of])).tolist(), list(guess.notes)


def some(examples: Examples, each: int) -> Examples:
    """The first of each class."""
    rows = [torch.nonzero(examples.y == label).flatten()[:each] for label in examples.y.unique()]
    return examples.take(torch.cat(rows))


def read(arguments: argparse.Namespace) -> None:
    run = Run(seed=arguments.seed, scale=arguments.scale, data_dir=arguments.data_dir, device=arguments.device)
    dataset, why_not = load_images(arguments.dataset, run)
    if dataset is None:
        raise SystemExit(why_not)
    cell = {name: getattr(arguments, name) for name in ("dataset", "setting", "scale", "seed", "federation")}
    there = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = {row["reader"] for row in there if cell.items() <= row.items()}
    training = SETTINGS[arguments.setting]
    recording = record(dataset, training, run, arguments.federation, auxiliary=LIMIT)
    print(f"trained, accuracy before each round {recording.accuracies}", flush=True)
    torch.backends.cudnn.benchmark = True  # the same few shapes again and again
    every = recording.known["aux_data"]
    for reader in arguments.readers:
        if reader in done:
            continue
        began = time.perf_counter()
        samples = every if reader == "limit" else some(every, OURS)
        with generous(training.epochs) if reader == "limit" else nullcontext():
            errors, notes = errors_of(recording, run.seed, samples, **READERS[reader])
        row = {**cell, "reader": reader, "samples": len(samples), "l1": errors, "seconds": time.perf_counter() - began}
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(reader, round(mean(errors), 2), round(row["seconds"]), "s", notes, flush=True)


def summarise(files: list[Path]) -> None:
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    cells = sorted({(row["dataset"], row["setting"], row["scale"], row["seed"]) for row in rows})
    for cell in cells:
        own = [row for row in rows if (row["dataset"], row["setting"], row["scale"], row["seed"]) == cell]
        found = {
            reader: {row["federation"]: mean(row["l1"]) for row in own if row["reader"] == reader} for reader in READERS
        }
        words = []
        for reader, means in found.items():
            values = list(means.values())
            spread = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else float("nan")
            words.append(f"{reader} {mean(values):.1f} +- {spread:.1f} ({len(values)})" if values else f"{reader} none")
        both = sorted(found["ours"].keys() & found["limit"].keys())
        ours, limit = (mean(found[reader][k] for k in both) if both else float("nan") for reader in ("ours", "limit"))
        print(
            *cell, "|", ", ".join(words), f"| on {both}: ours {ours:.1f}, limit {limit:.1f}, ratio {ours / limit:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    data = os.environ.get("FEDSPILL_DATA")
    parser.add_argument("--data-dir", type=Path, default=Path(data) if data else None)
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion-mnist"])
    parser.add_argument("--setting", default="sgd, one epoch", choices=list(SETTINGS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=2061)
    parser.add_argument("--federation", type=int, default=0)
    parser.add_argument("--scale", default="full", choices=["full", "quick"])
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=list(READERS))
    arguments = parser.parse_args()
    if arguments.summary:
        summarise(arguments.summary)
    else:
        read(arguments)


if __name__ == "__main__":
    main()
