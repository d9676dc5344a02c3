"""Figures of paper 004 (Gomes, Mendes, Vilela: Active Attribute Inference) as tables of figures measured here.

The paper prints bars, hardly a number, so most rows have no printed figure. Adult with users of COP-MODE's sizes, the
generated COP-MODE stand-in and 1,800 embedded CelebA faces stand for the paper's data. Every repetition has its own
shares, model and targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fedspill import reproduce
from fedspill.dataset import data_folder
from fedspill.errors import DataMissing
from fedspill.reproduce import Row, Run, Table, not_runnable

QUICK, FULL = 2, 32  # repetitions
SHORT = 20  # epochs of the trained attacks at quick scale
DATA = ("adult", "cop-mode stand-in", "celeba")


measuring = partial(reproduce.measuring, __file__)


class Measured(Table, ABC):
    """A table of one data set and activation after the other; without its data a row says so."""

    data: ClassVar[tuple[str, ...]] = DATA

    def rows(self, run: Run) -> Iterator[Row]:
        published = measuring("experiment").PUBLISHED
        recipes = published if run.scale == "full" else published.shorter(SHORT)
        cells = 8 if run.scale == "full" else 4
        case = measuring("settings").Case
        for data in self.data:
            for elu in (True, False):
                repetitions = range(FULL if run.scale == "full" else QUICK)
                cases = [case(data, elu, number, per_cell=cells, device=run.device) for number in repetitions]
                try:
                    lines = [self.measure(one, data_folder(run.data_dir), recipes, run) for one in cases]
                except DataMissing as error:
                    cell = {"data": data, "activation": "elu" if elu else "relu"}
                    yield not_runnable(cell, "fedspill", self.title, None, str(error))
                    continue
                for figure in self.figures(lines):
                    yield _row(figure)

    @abstractmethod
    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        """One repetition."""

    @abstractmethod
    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        """What the repetitions come to."""


def _row(figure: Any) -> Row:
    """There is no printed figure to hold it against."""
    return Row(
        figure.cell,
        figure.by,
        figure.metric,
        None,
        figure.value,
        figure.low,
        figure.high,
        figure.n,
        figure.chance,
        "not runnable",
        "the paper prints no figure",
    )


@dataclass(frozen=True)
class Theory(Measured):
    """Figures 2 and 3: how surely the neuron fires for its target, and for how many others."""

    name: ClassVar[str] = "004/2"
    title: ClassVar[str] = "Activation of malicious neurons: TPR, FPR, n times FPR"
    paper: ClassVar[str] = "004"

    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        kinds = ("closed", "aai") if case.elu else ("closed", "mia2aia")
        found: dict[str, Any] = measuring("readings").read(case, folder, kinds, recipes, rounds=())
        return found

    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        return measuring("figures").activation(lines)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Practice(Measured):
    """Figures 4 and 5: the attribute from a pooled gradient and through real rounds, members and others, imputation."""

    name: ClassVar[str] = "004/4"
    title: ClassVar[str] = "Attribute inference, pooled and through FedAvg rounds"
    paper: ClassVar[str] = "004"

    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        kinds = ("closed", "aai") if case.elu else ("closed", "mia2aia")
        rounds = ("sgd", "adam") if run.scale == "full" else ("sgd",)
        found: dict[str, Any] = measuring("readings").read(case, folder, kinds, recipes, rounds=rounds)
        return found

    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        return measuring("figures").inference(lines)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recovery(Measured):
    """Figures 6, 18 and 19: the model's ROC area up to ten rounds after an attack, with and without mitigation."""

    name: ClassVar[str] = "004/6"
    title: ClassVar[str] = "Recovery of the model after an attack"
    paper: ClassVar[str] = "004"
    data: ClassVar[tuple[str, ...]] = ("adult",)

    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        kind = "aai" if case.elu else "mia2aia"
        found: dict[str, Any] = measuring("readings").recovery(case, folder, kind, recipes)
        return found

    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        return measuring("figures").recovered(lines)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Detection(Measured):
    """Figures 8, 9 and 11: share of attacks that each guard detects, ours and the published ones.

    Without MIA2AIA and AMI at quick scale: their few epochs move no weight further than an honest round does, so that
    nothing is planted yet, to be read or to be seen.
    """

    name: ClassVar[str] = "004/8"
    title: ClassVar[str] = "Detection of attacks by the guards"
    paper: ClassVar[str] = "004"

    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        kinds: tuple[str, ...] = ("closed", "kept columns")
        if case.elu:
            kinds += ("sign code", "frozen row", "aai")
        elif run.scale == "full":
            kinds += ("mia2aia", "ami")
        found: dict[str, Any] = measuring("watching").detect(case, folder, kinds, (2, 5), recipes)
        return found

    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        return measuring("figures").detection(lines)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FalseAlarms(Measured):
    """Figure 10: alarms at models of benign federations."""

    name: ClassVar[str] = "004/10"
    title: ClassVar[str] = "False alarms of the guards"
    paper: ClassVar[str] = "004"

    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        rounds = 26 if run.scale == "full" else 8
        found: dict[str, Any] = measuring("benign").benign(case, folder, rounds, 1.0)
        return found

    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        return measuring("figures").false_alarms(lines)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Several(Measured):
    """Figures 15 and 16: one to sixteen targets at once."""

    name: ClassVar[str] = "004/15"
    title: ClassVar[str] = "Several targets at once: TPR and FPR"
    paper: ClassVar[str] = "004"
    data: ClassVar[tuple[str, ...]] = ("adult",)

    def measure(self, case: Any, folder: Path, recipes: Any, run: Run) -> dict[str, Any]:
        kinds = ("closed", "aai") if case.elu else ("closed", "mia2aia")
        whole = type(case)(case.data, case.elu, case.number, per_cell=8, device=case.device)
        found: dict[str, Any] = measuring("readings").several(whole, folder, kinds, recipes)
        return found

    def figures(self, lines: list[dict[str, Any]]) -> Iterable[Any]:
        return measuring("figures").at_once(lines)  # type: ignore[no-any-return]
