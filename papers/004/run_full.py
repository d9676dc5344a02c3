"""Measures everything that the tables of paper 004 need, as lines of JSON, one per measurement.

    PYTHONPATH=src python papers/004/run_full.py --data-dir DATA --device cuda --out OUT --processes 16
    PYTHONPATH=src python papers/004/run_full.py --data-dir DATA --device cpu --out OUT --scale 0.05

Most runs on the device; every fourth process begins with what a processor does as fast.
`summary.py` turns the lines into the figures of README.md.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from measure.adaptive import adapt
from measure.benign import benign
from measure.readings import read, recovery, rolled_back, several
from measure.settings import ATTRIBUTES, Case
from measure.watching import detect

from fedspill.attacks.active.experiment import PUBLISHED, Recipes
from fedspill.attacks.active.trained import AaiRecipe, AmiRecipe

ROUNDS = 31  # of a benign federation: 30 models with one before them
BENIGN = 17  # such federations of each data set and activation
EVENTS = ("learning rate drops", "new cohort", "server restarts")
ELU = ("closed", "kept columns", "sign code", "frozen row", "aai")
RELU = ("closed", "kept columns", "mia2aia", "ami")
# The published constants first, and what else was tried on development seeds with the same care as for the closed form.
TUNED: dict[str, Recipes] = {
    "published": PUBLISHED,
    "faster": replace(PUBLISHED, aai=AaiRecipe(lr=0.03), mia2aia=AmiRecipe(lr=5e-3)),
    "slower": replace(PUBLISHED, aai=AaiRecipe(lr=0.003), mia2aia=AmiRecipe(lr=2e-3)),
    "longer": replace(PUBLISHED, aai=AaiRecipe(epochs=4000), mia2aia=AmiRecipe(epochs=4000, lr=2e-3)),
    "other weights": replace(
        PUBLISHED, aai=AaiRecipe(small=-0.001, weight=1000), mia2aia=AmiRecipe(lr=5e-3, shadow_weight=1.0)
    ),
}


@dataclass(frozen=True)
class Job:
    """One measurement: a function of where data lie, and what it is called in the line."""

    what: str
    measure: Callable[[Path], dict[str, Any]]


def on_device(scale: float, device: str) -> list[Job]:
    """What attacks read and what guards say of them, the most important first."""
    jobs: list[tuple[float, Job]] = []  # with the order that they are begun in

    def add(when: float, what: str, function: Callable[..., dict[str, Any]], case: Case, **options: Any) -> None:
        jobs.append((when, Job(what, partial(_measured, function, replace(case, device=device), options))))

    many = max(1, round(32 * scale))
    for number in range(many):
        for attribute in ATTRIBUTES["adult"]:
            for elu in (True, False):
                kinds = ["closed"]
                if attribute == ATTRIBUTES["adult"][0] or number < many / 4:
                    kinds.append("aai" if elu else "mia2aia")
                if attribute == ATTRIBUTES["adult"][0] and not elu:
                    kinds += ["membership"] + ["ami"] * (number < many / 4)
                add(number, "read", read, Case("adult", elu, number, attribute), kinds=kinds)
    for number in range(max(1, round(7 * scale))):
        for data in ("adult", "cop-mode stand-in", "celeba"):
            for elu in (True, False):
                rounds = (2, 5) if number < max(1, round(3 * scale)) else (5,)
                case = Case(data, elu, number)
                add(4 * number + 0.5, "detect", detect, case, kinds=ELU if elu else RELU, rounds=rounds)
    for number in range(max(1, round(BENIGN * scale))):
        for elu in (True, False):
            for data in ("celeba", "cop-mode stand-in"):
                _add_benign(partial(add, number + 0.7), Case(data, elu, number), scale)
    for number in range(max(1, round(8 * scale))):
        add(4 * number + 1, "adapt", adapt, Case("adult", True, number))
        add(4 * number + 1, "several", several, Case("adult", True, number), kinds=("closed", "aai"))
        add(4 * number + 1, "several", several, Case("adult", False, number), kinds=("closed", "mia2aia"))
        for data in ("cop-mode stand-in", "celeba", "adult, every column"):
            for attribute in ATTRIBUTES[data]:
                for elu in (True, False) if number < max(1, round(6 * scale)) else ():
                    kinds = ["closed", "aai" if elu else "mia2aia"] if data != "adult, every column" else ["closed"]
                    add(4 * number + 2, "read", read, Case(data, elu, number, attribute), kinds=kinds)
        for kind in ("closed", "aai"):
            add(4 * number + 3, "recovery", recovery, Case("adult", True, number), kind=kind)
    for number in [-1, -2, -3, *range(max(1, round(4 * scale)))]:  # negative: development
        for name, recipes in TUNED.items():
            for elu in (True, False):
                kinds = ["aai" if elu else "mia2aia"]
                options = {"kinds": kinds, "recipes": recipes, "rounds": ("sgd",)}
                add(abs(number) * 2 + 5, f"tune {name}", read, Case("adult", elu, number), **options)
    return [job for _, job in sorted(jobs, key=lambda pair: pair[0])]


def on_processor(scale: float) -> list[Job]:
    """Benign federations on Adult, and what is left to an attack after a roll-back."""
    jobs: list[Job] = []

    def add(what: str, function: Callable[..., dict[str, Any]], case: Case, **options: Any) -> None:
        jobs.append(Job(what, partial(_measured, function, case, options)))

    for number in range(max(1, round(BENIGN * scale))):
        for elu in (True, False):
            _add_benign(add, Case("adult", elu, number), scale)
            add("rolled back", rolled_back, Case("adult", elu, number))
            if number % 2 == 0:
                add("rolled back", rolled_back, Case("celeba", elu, number))
    return jobs


def _add_benign(add: Callable[..., None], case: Case, scale: float) -> None:
    """All clients in every round; some of them, in one federation of five; and with an event, in one of ten."""
    add("benign", benign, case, rounds=ROUNDS, share=1.0)
    if case.number % 5 == 1 or scale < 0.2:
        add("benign", benign, case, rounds=ROUNDS, share=0.5 if case.data == "celeba" else 0.3)
    if case.number % 10 == 0:
        for event in EVENTS:
            add("benign", benign, case, rounds=ROUNDS, share=1.0, event=event)


def _measured(function: Callable[..., dict[str, Any]], case: Case, options: dict[str, Any], folder: Path) -> Any:
    return function(case, folder, **options)


def work(asked: argparse.Namespace, begun: Sequence[Any], rank: int, lock: Any) -> None:
    """Takes measurements of its own list, then of the other, until there are none or no time is left."""
    torch.set_num_threads(1)
    lists = [on_device(asked.scale, asked.device), on_processor(asked.scale)]
    for which in (0, 1) if rank % 4 else (1, 0):
        while time.time() < asked.until:
            with begun[which].get_lock():
                place = begun[which].value
                begun[which].value += 1
            if place >= len(lists[which]):
                break
            job = lists[which][place]
            try:
                line = json.dumps({"what": job.what, **job.measure(asked.data_dir)})
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
