"""The published attacks, each with parts taken away or exchanged, and the orders that their papers claim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final

import torch
from inversion_stacked import EachItsOwn, ForEach, StatisticsOfEach
from inversion_task import Task
from torch import Tensor

from fedspill.leaks.inputs.search.objectives import CosineDistance, GaussianKernel, GradientDistance, SquaredDistance
from fedspill.leaks.inputs.search.optimizers import Adam, Lbfgs, SearchOptimizer
from fedspill.leaks.inputs.search.priors import GroupConsistency, Prior, SquaredNorm, TotalVariation
from fedspill.leaks.inputs.search.recipes import dlg, grad_inversion, inverting_gradients, sapag
from fedspill.leaks.inputs.search.search import Recipe

Published: TypeAlias = Literal["dlg", "sapag", "inverting-gradients", "grad-inversion"]


@final
@dataclass(frozen=True)
class Settings:
    """What is chosen on development batches; a tensor (S,) where batches differ in it."""

    lr: Any = 0.1
    width: Any = 1.0  # of SAPAG's kernel, in variances
    variation: Any = 0.0
    statistics: Any = 0.0
    group: Any = 0.0


@final
@dataclass(frozen=True)
class Method:
    """A published attack, where its sweeps begin, what is swept in which order, and which of its parts are others."""

    published: Published
    begin: Settings
    swept: tuple[str, ...] = ("lr",)
    after: str = ""  # its sweeps begin from what was chosen for this one
    labels: bool = True  # told, else sought
    optimizer: Literal["own", "adam", "lbfgs"] = "own"
    distance: Literal["own", "cosine", "squares", "whole"] = "own"  # others than published: see METHODS
    told: Literal["nothing", "own", "running"] = "nothing"  # statistics: the batch's own, as sent, or the network's
    members: int = 1
    agree: bool = False  # members pull at each other


SMOOTH, TOLD = ("lr", "variation"), ("lr", "variation", "statistics")
SQUARES = Settings(lr=1.0, variation=0.03, statistics=1e-4, group=1e-3)  # and cosine
NORMS = Settings(lr=0.3, variation=0.1, statistics=1e-4)
# GradInversion by one search, and by three that do not pull at each other. The distance of its text, a sum of norms
# over layers, is read as one of squares (so does `breaching`), the better reading on development batches, or as it
# stands ("norms"). SAPAG's kernel is as wide as the variance of each tensor, on means of squares, or as that of the
# "whole" gradient, on sums: ports of it have both.
ONE, APART = "grad-inversion, one", "grad-inversion, three apart"
METHODS = {
    "dlg": Method("dlg", Settings(lr=1.0), labels=False),
    "idlg": Method("dlg", Settings(lr=1.0)),
    "idlg, Adam": Method("dlg", Settings(), optimizer="adam"),
    "sapag": Method("sapag", Settings(), ("lr", "width")),
    "sapag, L-BFGS": Method("sapag", Settings(lr=1.0), ("lr", "width"), optimizer="lbfgs"),
    "sapag, whole": Method("sapag", Settings(width=1e5), ("lr", "width"), distance="whole"),
    "inverting-gradients": Method("inverting-gradients", SQUARES, SMOOTH),
    ONE: Method("grad-inversion", SQUARES, TOLD, told="own", distance="squares"),
    "grad-inversion": Method(
        "grad-inversion", Settings(), ("group",), ONE, told="own", distance="squares", members=3, agree=True
    ),
    APART: Method("grad-inversion", Settings(), (), ONE, told="own", distance="squares", members=3),
    f"{ONE}, running statistics": Method("grad-inversion", Settings(), (), ONE, told="running", distance="squares"),
    f"{ONE}, no statistics": Method("grad-inversion", SQUARES, SMOOTH, distance="squares"),
    f"{ONE}, norms": Method("grad-inversion", NORMS, TOLD, told="own"),
    f"{ONE}, norms, no statistics": Method("grad-inversion", NORMS, SMOOTH),
    f"{ONE}, cosine": Method("grad-inversion", SQUARES, TOLD, told="own", distance="cosine"),
    f"{ONE}, cosine, no statistics": Method("grad-inversion", SQUARES, SMOOTH, distance="cosine"),
}

# What the sweeps chose; variants without sweeps have what they vary.
_ONE = Settings(lr=1.0, variation=0.1, statistics=1e-3, group=1e-3)
CHOSEN = {
    "dlg": Settings(lr=1.0),
    "idlg": Settings(lr=1.0),
    "idlg, Adam": Settings(lr=0.03),
    "sapag": Settings(lr=0.03, width=10.0),
    "sapag, L-BFGS": Settings(lr=1.0, width=1.0),
    "sapag, whole": Settings(lr=0.03, width=1e6),
    "inverting-gradients": Settings(lr=1.0, variation=0.01),
    "grad-inversion": replace(_ONE, group=3e-4),
    APART: _ONE,
    ONE: _ONE,
    f"{ONE}, running statistics": _ONE,
    f"{ONE}, no statistics": Settings(lr=3.0, variation=0.03),
    f"{ONE}, norms": Settings(lr=1.0, variation=0.1, statistics=3e-4),
    f"{ONE}, norms, no statistics": Settings(lr=3.0, variation=0.1),
    f"{ONE}, cosine": Settings(lr=0.3, variation=0.01, statistics=1e-3),
    f"{ONE}, cosine, no statistics": Settings(lr=1.0, variation=0.01),
}

# Better, worse, who says so.
ORDERS = (
    ("idlg", "dlg", "iDLG, 2020: known labels help"),
    ("idlg, LeNet", "dlg, LeNet", "iDLG, 2020, in its own setting"),
    ("inverting-gradients", "idlg", "Inverting Gradients, 2020: cosine and variation on trained rectifier networks"),
    ("inverting-gradients", "sapag", "CAFE, 2021, Table 2"),
    ("sapag", "dlg", "SAPAG, 2020: on residual networks and past the start"),
    ("dlg", "sapag", "CAFE, 2021, Table 2"),
    ("sapag, whole", "dlg", "SAPAG, 2020, in its other reading"),
    ("grad-inversion", "inverting-gradients", "GradInversion, 2021"),
    (ONE, f"{ONE}, no statistics", "GradInversion, 2021: statistics help"),
    ("grad-inversion", ONE, "GradInversion, 2021: the group helps"),
)
# Means over the distances, batch by batch.
POOLED = {
    f"{ONE}, any distance": (ONE, f"{ONE}, norms", f"{ONE}, cosine"),
    f"{ONE}, any distance, no statistics": tuple(f"{ONE}{d}, no statistics" for d in ("", ", norms", ", cosine")),
}
# The same, to find the cause.
CAUSES = (
    ("sapag", "idlg", "both told the labels"),
    ("sapag, L-BFGS", "idlg", "kernel against squares by L-BFGS"),
    ("sapag", "idlg, Adam", "kernel against squares by Adam"),
    ("sapag, whole", "idlg, Adam", "the other reading against squares by Adam"),
    ("sapag, L-BFGS", "sapag", "L-BFGS against Adam on the kernel"),
    ("idlg", "idlg, Adam", "L-BFGS against Adam on squares"),
    ("grad-inversion", APART, "agreement, at the same number of searches"),
    (APART, ONE, "the best of three against one"),
    (APART, "inverting-gradients", "the best of three against one"),
    (ONE, "inverting-gradients", "one search each"),
    (f"{ONE}, no statistics", "inverting-gradients", "one search each, without statistics"),
    (f"{ONE}, running statistics", f"{ONE}, no statistics", "the network's statistics over none"),
    (ONE, f"{ONE}, running statistics", "the batch's own statistics over the network's"),
    (f"{ONE}, any distance", f"{ONE}, any distance, no statistics", "statistics help, mean over three distances"),
    (ONE, f"{ONE}, norms", "squares over norms"),
    (f"{ONE}, norms", "inverting-gradients", "one search each, norms"),
    (f"{ONE}, norms", f"{ONE}, norms, no statistics", "statistics help, norms"),
    (f"{ONE}, cosine", "inverting-gradients", "one search each, on the other's distance"),
    (f"{ONE}, cosine", f"{ONE}, cosine, no statistics", "statistics help, on the other's distance"),
    (f"{ONE}, cosine, no statistics", "inverting-gradients", "the moves alone: noise, schedule, no signs"),
)


def recipe_of(method: Method, settings: Settings, task: Task, steps: int) -> Recipe:
    """The published recipe with the settings and the other parts, made ready for a stack."""
    count = len(task.seeds)

    def each(value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float32).expand(count).to(task.device)

    recipe = _published(method, task, steps)
    rate: Any = each(settings.lr).repeat_interleave(method.members)[:, None]
    moves: SearchOptimizer = {"own": recipe.optimizer, "adam": Adam(steps=steps), "lbfgs": Lbfgs()}[method.optimizer]
    assert isinstance(moves, Adam | Lbfgs)
    objective: GradientDistance = {
        "own": recipe.objective,
        "cosine": CosineDistance(),
        "squares": SquaredDistance(relative=True),
        "whole": GaussianKernel(whole=True),
    }[method.distance]
    width = each(settings.width) if method.published == "sapag" else None
    priors: list[Prior] = []
    if method.published in ("inverting-gradients", "grad-inversion"):
        priors.append(ForEach(TotalVariation(0.0), each(settings.variation)))
    if method.published == "grad-inversion":
        priors.append(ForEach(SquaredNorm(0.0), each(1e-6)))
    if method.told != "nothing":
        priors.append(StatisticsOfEach(task.told(own=method.told == "own"), each(settings.statistics)))
    if method.agree:
        priors.append(ForEach(GroupConsistency(0.0), each(settings.group)))
    return replace(
        recipe,
        objective=EachItsOwn(objective, width),
        optimizer=replace(moves, lr=rate),
        priors=tuple(priors),
    )


def _published(method: Method, task: Task, steps: int) -> Recipe:
    if method.published == "dlg":
        return dlg(steps)
    if method.published == "sapag":
        return sapag(steps, per_entry=True)
    if method.published == "inverting-gradients":
        return inverting_gradients(steps)
    return grad_inversion(task.models[0], steps, group=method.members)
