"""Measures everything that the tables of paper 004 need, as lines of JSON, one per measurement.

    PYTHONPATH=src python papers/004/run_full.py --data-dir DATA --device cuda --out OUT --processes 16
    PYTHONPATH=src python papers/004/run_full.py --data-dir DATA --device cpu --out OUT --scale 0.05
    PYTHONPATH=src python papers/004/run_full.py --data-dir DATA --out OUT --parts detect=60:64 benign=60:71

Most runs on the device; every fourth process begins with what a processor does as fast.
`summary.py` turns the lines into the figures of README.md.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from measure.adaptive import adapt, slow
from measure.benign import benign
from measure.experiment import PUBLISHED, Recipes
from measure.readings import read, recovery, rolled_back, several
from measure.settings import ATTRIBUTES, DATA, Case
from measure.watching import detect

from fedspill.planting.trained_neurons import AMI, AaiRecipe, AmiRecipe

ROUNDS = 31  # of a benign federation: 30 models with one before them
EVENTS = ("learning rate drops", "new cohort", "server restarts")
AFTER = (2, 5)  # benign rounds, an attack
ELU = ("closed", "kept columns", "sign code", "frozen row")
RELU = ("closed", "kept columns")
# The published constants first, and what else was tried on development seeds with the same care as for the closed form.
TUNED: dict[str, Recipes] = {
    "published": PUBLISHED,
    "faster": Recipes(AaiRecipe(lr=0.03), AmiRecipe(lr=5e-3), replace(AMI, epochs=4000, lr=5e-3)),
    "slower": Recipes(AaiRecipe(lr=0.003), AmiRecipe(lr=2e-3), replace(AMI, epochs=4000, lr=2e-3)),
    "longer": Recipes(
        AaiRecipe(epochs=4000), AmiRecipe(epochs=4000, lr=2e-3), replace(AMI, epochs=10_000, lr=5e-4, until_right=False)
    ),
    "other weights": Recipes(
        AaiRecipe(small=-0.001, weight=1000),
        AmiRecipe(lr=5e-3, shadow_weight=1.0),
        replace(AMI, epochs=4000, lr=5e-3, shadow_weight=1.0),
    ),
}


@dataclass(frozen=True)
class Job:
    """One measurement, a function of where data lie; what it is called in its line, and when its turn is."""

    when: float
    what: str
    measure: Callable[..., dict[str, Any]]
    case: Case
    options: dict[str, Any]
    on_processor: bool = False

    def run(self, folder: Path, device: str) -> dict[str, Any]:
        case = self.case if self.on_processor else replace(self.case, device=device)
        return self.measure(case, folder, **self.options)


def reading(numbers: Sequence[int]) -> Iterator[Job]:
    """The attributes of Adult; trained attacks on the first of them, and on all in the first eight repetitions."""
    for place, number in enumerate(numbers):
        for attribute in ATTRIBUTES["adult"]:
            for elu in (True, False):
                main, early = attribute == ATTRIBUTES["adult"][0], number < 8
                kinds = ["closed"]
                if main or early:
                    kinds.append("aai" if elu else "mia2aia")
                if main and not elu:
                    kinds += ["membership"] + ["ami"] * early
                yield Job(place, "read", read, Case("adult", elu, number, attribute), {"kinds": kinds})


def reading_others(numbers: Sequence[int]) -> Iterator[Job]:
    """The attributes of the other data; trained attacks on the first of them."""
    for place, number in enumerate(numbers):
        for data in ("cop-mode stand-in", "celeba", "adult, every column"):
            for attribute in ATTRIBUTES[data]:
                for elu in (True, False):
                    main = attribute == ATTRIBUTES[data][0] and data != "adult, every column"
                    kinds = ["closed"] + ["aai" if elu else "mia2aia"] * main
                    yield Job(4 * place + 10, "read", read, Case(data, elu, number, attribute), {"kinds": kinds})


def detecting(numbers: Sequence[int]) -> Iterator[Job]:
    """What is written down, all kinds of it at once."""
    for place, number in enumerate(numbers):
        for data in DATA:
            for elu in (True, False):
                options = {"kinds": ELU if elu else RELU, "rounds": AFTER}
                yield Job(4 * place + 0.5, "detect", detect, Case(data, elu, number), options)


def detecting_trained(numbers: Sequence[int]) -> Iterator[Job]:
    """What is trained, one by one, the longest first."""
    for place, number in enumerate(numbers):
        for kind in ("ami", "mia2aia", "aai"):
            for data in reversed(DATA):
                for after in AFTER:
                    options = {"kinds": [kind], "rounds": (after,)}
                    yield Job(4 * place + 0.4, "detect", detect, Case(data, kind == "aai", number), options)


def benign_federations(numbers: Sequence[int]) -> Iterator[Job]:
    """All clients in every round; some of them, in one federation of five; and with an event, in one of ten."""
    for place, number in enumerate(numbers):
        for data in DATA:
            for elu in (True, False):
                kinds: list[dict[str, Any]] = [{"share": 1.0}]
                if number % 5 == 1:
                    kinds.append({"share": 0.5 if data == "celeba" else 0.3})
                if number % 10 == 0:
                    kinds += [{"share": 1.0, "event": event} for event in EVENTS]
                for kind in kinds:
                    options = {"rounds": ROUNDS, **kind}
                    yield Job(place + 0.7, "benign", benign, Case(data, elu, number), options, data == "adult")


def rolling_back(numbers: Sequence[int]) -> Iterator[Job]:
    for place, number in enumerate(numbers):
        for data in DATA:
            for elu in (True, False):
                yield Job(place + 0.8, "rolled back", rolled_back, Case(data, elu, number), {}, data == "adult")


def adapting(numbers: Sequence[int]) -> Iterator[Job]:
    for place, number in enumerate(numbers):
        for elu in (True, False):
            for what, measure in (("adapt", adapt), ("slow", slow)):
                yield Job(4 * place + 1, what, measure, Case("adult", elu, number), {})


def several_targets(numbers: Sequence[int]) -> Iterator[Job]:
    for place, number in enumerate(numbers):
        for elu in (True, False):
            kinds = ("closed", "aai" if elu else "mia2aia")
            yield Job(4 * place + 1, "several", several, Case("adult", elu, number), {"kinds": kinds})


def recovering(numbers: Sequence[int]) -> Iterator[Job]:
    for place, number in enumerate(numbers):
        for kind in ("closed", "aai"):
            yield Job(4 * place + 3, "recovery", recovery, Case("adult", True, number), {"kind": kind})


def tuning(kind: str, numbers: Sequence[int]) -> Iterator[Job]:
    """Negative numbers are development."""
    for number in [-1, -2, -3, *numbers]:
        for name, recipes in TUNED.items():
            options = {"kinds": [kind], "recipes": recipes, "rounds": ("sgd",)}
            yield Job(2 * abs(number) + 5, f"tune {name}", read, Case("adult", kind == "aai", number), options)


# With the repetitions of the full scale.
PARTS: dict[str, tuple[Callable[[Sequence[int]], Iterator[Job]], int]] = {
    "read": (reading, 32),
    "others": (reading_others, 6),
    "detect": (detecting, 7),
    "detect-trained": (detecting_trained, 7),
    "benign": (benign_federations, 17),
    "rolled-back": (rolling_back, 16),
    "adapt": (adapting, 8),
    "several": (several_targets, 8),
    "recovery": (recovering, 8),
    "tune-aai": (partial(tuning, "aai"), 4),
    "tune-mia2aia": (partial(tuning, "mia2aia"), 4),
    "tune-ami": (partial(tuning, "ami"), 4),
}


def jobs(
    parts: Sequence[str], data: Sequence[str], scale: float, published: bool = True, per_cell: int = 8
) -> tuple[list[Job], list[Job]]:
    """What runs on the device and on a processor, the most important first. A part may name its repetitions."""
    found: list[Job] = []
    for part in parts:
        name, _, numbers = part.partition("=")
        make, many = PARTS[name]
        first, last = (int(end) for end in (numbers or f"0:{max(1, round(many * scale))}").split(":"))
        made = [replace(job, case=replace(job.case, per_cell=per_cell)) for job in make(range(first, last))]
        found += [job for job in made if job.case.data in data]
    if not published:
        found = [
            replace(job, options={**job.options, "published": False}) if job.what in ("detect", "benign") else job
            for job in found
        ]
    found.sort(key=lambda job: job.when)
    return [job for job in found if not job.on_processor], [job for job in found if job.on_processor]


def work(asked: argparse.Namespace, begun: Sequence[Any], rank: int, lock: Any) -> None:
    """Takes measurements of its own list, then of the other, until there are none or no time is left."""
    torch.set_num_threads(1)
    lists = jobs(asked.parts, asked.data, asked.scale, not asked.ours_only, asked.per_cell)
    for which in (0, 1) if rank % 4 else (1, 0):
        while time.time() < asked.until:
            with begun[which].get_lock():
                place = begun[which].value
                begun[which].value += 1
            if place >= len(lists[which]):
                break
            job = lists[which][place]
            try:
                line = json.dumps({"what": job.what, **job.run(asked.data_dir, asked.device)})
            except Exception:  # one measurement must not end all others
                line = json.dumps({"what": "failed", "job": job.what, "why": traceback.format_exc()[-600:]})
            with lock, (asked.out / "lines.jsonl").open("a") as out:
                out.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-004"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), metavar="PART[=FIRST:LAST]", help=", ".join(PARTS))
    parser.add_argument("--data", nargs="+", default=list(ATTRIBUTES), choices=list(ATTRIBUTES))
    parser.add_argument("--ours-only", action="store_true", help="leave the published guards out, which takes longest")
    parser.add_argument("--per-cell", type=int, default=8, help="targets for each of member or not, attribute or not")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the repetitions")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no measurement after this long")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.until = time.time() + asked.seconds
    context = multiprocessing.get_context("spawn")
    begun, lock = [context.Value("i", 0), context.Value("i", 0)], context.Lock()
    running = [context.Process(target=work, args=(asked, begun, rank, lock)) for rank in range(asked.processes)]
    for process in running:
        process.start()
    for process in running:
        process.join()


if __name__ == "__main__":
    main()
