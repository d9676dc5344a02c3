"""Figures of paper 004 (Gomes, Mendes, Vilela: Active Attribute Inference) as tables of figures measured here.

The paper prints bars, hardly a number, so most rows have no printed figure. Adult with users of COP-MODE's sizes, the
generated COP-MODE stand-in and 1,800 embedded CelebA faces stand for the paper's data. Every repetition has its own
shares, model and targets; intervals are the paper's, mean +- 1.645 standard errors over repetitions.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from fedspill.data.base import data_folder
from fedspill.errors import DataMissing
from fedspill.metrics.attributes import restricted_area
from fedspill.reproduce import By, Row, Run, Table, not_runnable

AREA = "restricted ROC area, percent"
NINETY = 1.645
QUICK = 2  # repetitions
BY: Mapping[str, By] = {"aai": "paper", "mia2aia": "paper", "ami": "paper"}


def measuring() -> ModuleType:
    """run_full.py beside this file, which does the measuring."""
    name = "fedspill_papers_004_run_full"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("run_full.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def lines(run: Run, data: str, elu: bool, **options: Any) -> list[dict[str, Any]]:
    """The repetitions of one setting; at quick scale few, with short training of the trained attacks."""
    full = measuring()
    job = full.Job(data, full.ATTRIBUTES[data][0], elu, 0, **options)
    if run.scale == "quick":
        job = replace(job, epochs=min(job.epochs, 100), shadow=500, adam=False)
        job = replace(job, per_cell=8 if "per_cell" in options else 4, extras=min(job.extras, 1))
    many = 32 if run.scale == "full" else QUICK
    folder = data_folder(run.data_dir)
    return [full.measure(replace(job, number=number), folder, run.device) for number in range(many)]


def row(cell: Mapping[str, Any], by: By, metric: str, values: Sequence[float], chance: float, note: str = "") -> Row:
    """The mean over repetitions; there is no printed figure to hold it against."""
    mean = statistics.fmean(values)
    half = NINETY * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    verdict = "not runnable"
    return Row(cell, by, metric, None, mean, mean - half, mean + half, len(values), chance, verdict, note)


def area(line: Mapping[str, Any], scores: Sequence[float], members: bool) -> float:
    """Percent, over the members or the others of one repetition."""
    inside = torch.tensor(line["members"]) == members
    given = torch.tensor(scores)
    chosen = given if len(given) == int(inside.sum()) else given[inside]
    return 100 * restricted_area(torch.tensor(line["values"])[inside] > 0, chosen)


class Measured(Table, ABC):
    """A table of one data set after the other; without its data a row says so."""

    data: ClassVar[tuple[str, ...]] = ("adult", "cop-mode stand-in", "celeba")
    options: ClassVar[Mapping[str, Any]] = {}

    def rows(self, run: Run) -> Iterator[Row]:
        for data in self.data:
            for elu in (True, False):
                cell = {"data": data, "activation": "elu" if elu else "relu"}
                try:
                    found = lines(run, data, elu, **self.options)
                except DataMissing as error:
                    yield not_runnable(cell, "fedspill", AREA, None, str(error))
                    continue
                for kind in found[0]["attacks"]:
                    yield from self.of(found, kind, cell)

    @abstractmethod
    def of(self, found: Sequence[Mapping[str, Any]], kind: str, cell: Mapping[str, Any]) -> Iterator[Row]:
        """The rows of one attack on one data set."""


@dataclass(frozen=True)
class Theory(Measured):
    """Figures 2 and 3: how surely the neuron fires for its target, and for how many others."""

    name: ClassVar[str] = "004/2"
    title: ClassVar[str] = "Activation of malicious neurons: TPR, FPR, n times FPR"
    paper: ClassVar[str] = "004"
    options: ClassVar[Mapping[str, Any]] = {"rounds": False}

    def of(self, found: Sequence[Mapping[str, Any]], kind: str, cell: Mapping[str, Any]) -> Iterator[Row]:
        for key, metric in (
            ("tpr", "TPR, percent"),
            ("tpr_imputed", "TPR with imputation, percent"),
            ("fpr", "FPR, percent"),
        ):
            values = [100 * statistics.fmean(line["attacks"][kind]["theory"][key]) for line in found]
            yield row(
                {**cell, "attack": kind, "what": key},
                BY.get(kind, "fedspill"),
                metric,
                values,
                50 if key.startswith("tpr") else 0,
            )
        counts = [statistics.fmean(line["attacks"][kind]["theory"]["false_positives"]) for line in found]
        yield row({**cell, "attack": kind, "what": "n*FPR"}, BY.get(kind, "fedspill"), "others that matter", counts, 0)


@dataclass(frozen=True)
class Practice(Measured):
    """Figures 4 and 5: the attribute from a pooled gradient and through real rounds, members and others, imputation."""

    name: ClassVar[str] = "004/4"
    title: ClassVar[str] = "Attribute inference, pooled and through FedAvg rounds"
    paper: ClassVar[str] = "004"

    def of(self, found: Sequence[Mapping[str, Any]], kind: str, cell: Mapping[str, Any]) -> Iterator[Row]:
        for setting in ("pooled", "sgd", "adam"):
            if setting not in found[0]["attacks"][kind]:
                continue
            for members in (True, False):
                scores = [line["attacks"][kind][setting] for line in found]
                if not members and len(scores[0]) < len(found[0]["members"]):
                    continue
                values = [area(line, of, members) for line, of in zip(found, scores, strict=True)]
                who = "members" if members else "others"
                yield row(
                    {**cell, "attack": kind, "setting": setting, "who": who}, BY.get(kind, "fedspill"), AREA, values, 50
                )
        if kind == "closed":
            for how in ("logistic", "boosting"):
                values = [area(line, line["imputation"][how], True) for line in found]
                yield row({**cell, "attack": f"imputation, {how}"}, "baseline", AREA, values, 50)


@dataclass(frozen=True)
class Detection(Measured):
    """Figures 8, 9 and 11: share of attacks that the guards on weights detect, ours and WADM in both units."""

    name: ClassVar[str] = "004/8"
    title: ClassVar[str] = "Detection of attacks by the guard and by WADM"
    paper: ClassVar[str] = "004"
    options: ClassVar[Mapping[str, Any]] = {"rich": True, "rounds": False, "readings": False, "extras": 0}

    def of(self, found: Sequence[Mapping[str, Any]], kind: str, cell: Mapping[str, Any]) -> Iterator[Row]:
        for guard in ("guard", "wadm", "wadm_corrected"):
            marks = [line["attacks"][kind]["guards"][guard] for line in found]
            values = [
                100 * statistics.fmean(mark if guard == "guard" else mark >= 0.1556 for mark in of) for of in marks
            ]
            by: By = "fedspill" if guard == "guard" else "paper"
            yield row({**cell, "attack": kind, "guard": guard}, by, "detected, percent", values, 0)
        if kind == "closed":
            alarms = [100 * statistics.fmean(line["benign"]["alarms"][1:]) for line in found]
            yield row(
                {**cell, "attack": "none", "guard": "guard"}, "fedspill", "false alarms, percent of rounds", alarms, 0
            )


@dataclass(frozen=True)
class Recovery(Measured):
    """Figures 6, 18 and 19: the model's ROC area ten rounds after an attack, with and without mitigation."""

    name: ClassVar[str] = "004/6"
    title: ClassVar[str] = "Recovery of the model after an attack"
    paper: ClassVar[str] = "004"
    data: ClassVar[tuple[str, ...]] = ("adult",)
    options: ClassVar[Mapping[str, Any]] = {"rich": True, "rounds": False, "readings": False}

    def of(self, found: Sequence[Mapping[str, Any]], kind: str, cell: Mapping[str, Any]) -> Iterator[Row]:
        known = [line["recovery"][kind] for line in found if kind in line.get("recovery", {})]
        for label in known[0] if known else ():
            for after in (0, 1, 3, 10):
                values = [100 * one[label][after] for one in known]
                yield row(
                    {**cell, "attack": kind, "guard": label, "rounds": after},
                    BY.get(kind, "fedspill"),
                    "ROC area",
                    values,
                    50,
                )


@dataclass(frozen=True)
class Several(Measured):
    """Figures 15 and 16: one to sixteen targets at once."""

    name: ClassVar[str] = "004/15"
    title: ClassVar[str] = "Several targets at once: TPR and FPR"
    paper: ClassVar[str] = "004"
    data: ClassVar[tuple[str, ...]] = ("adult",)
    options: ClassVar[Mapping[str, Any]] = {"rich": True, "rounds": False, "readings": False, "per_cell": 8}

    def of(self, found: Sequence[Mapping[str, Any]], kind: str, cell: Mapping[str, Any]) -> Iterator[Row]:
        known = [line["several"][kind] for line in found if kind in line.get("several", {})]
        for many in known[0] if known else ():
            for key in ("tpr", "fpr"):
                values = [100 * statistics.fmean(one[many][key]) for one in known]
                yield row(
                    {**cell, "attack": kind, "targets": many},
                    BY.get(kind, "fedspill"),
                    f"{key.upper()}, percent",
                    values,
                    50,
                )
