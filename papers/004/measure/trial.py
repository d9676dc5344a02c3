"""The published guards at every client of a federation: BADAcc, BADAUC and WADM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from fedspill.dataset import Examples
from fedspill.defenses.badacc import rose
from fedspill.defenses.model_checks.own_data_trial import errors_of, roc_area
from fedspill.defenses.wadm import divergences
from fedspill.planting.dense_network import DenseNetwork
from fedspill.training import Tensors

from .settings import on_cpu

WADM = 0.1556  # the authors' threshold
BADAUC = 0.02


def wadm_says(dense: DenseNetwork, before: Tensors, state: Tensors) -> tuple[bool, bool]:
    """Whether any neuron of the second layer passes the threshold, in the authors' units and in corrected ones."""
    old, new = before[dense.weight(1)].cpu(), state[dense.weight(1)].cpu()
    moved = (old != new).any(1)
    if not bool(moved.any()):
        return False, False
    distance = float(divergences(old[moved], new[moved], 5, "corrected").max())
    return distance * old.shape[1] / old.shape[0] >= WADM, distance >= WADM


@final
class Trial:
    """BADAcc and BADAUC at every client, from one look at all records."""

    def __init__(self, dense: DenseNetwork, clients: Sequence[Examples], elu: bool) -> None:
        self.dense, self.threshold = dense, 0.2 if elu else 0.5  # of probabilities, the authors'
        self.pool = Examples.join([Examples(own.x, own.y) for own in clients])
        self.sizes = [len(own) for own in clients]
        self.least: list[tuple[float, float] | None] = [None] * len(self.sizes)
        self.areas: list[float | None] = [None] * len(self.sizes)
        self.left: tuple[set[int], set[int]] = (set(), set())  # clients gone after an alarm of BADAcc, of BADAUC
        self.asked = [0, 0]  # benign rounds times clients that were still there

    def _look(self, state: Tensors) -> list[tuple[float, float | None]]:
        """Error and ROC area at every client."""
        logits = self.dense.pre_activations(on_cpu(state), self.pool.x, self.dense.hidden)
        parts = zip(torch.split(logits, self.sizes), torch.split(self.pool.y, self.sizes), strict=True)
        return [(errors_of(part, y, self.threshold) / len(y), roc_area(part, y)) for part, y in parts]

    def _alarms(self, found: Sequence[tuple[float, float | None]]) -> tuple[set[int], set[int]]:
        worse = {
            i for i, (p, _) in enumerate(found) if i not in self.left[0] and rose(p, self.sizes[i], self.least[i])[0]
        }
        drops = {
            i
            for i, ((_, area), before) in enumerate(zip(found, self.areas, strict=True))
            if i not in self.left[1] and area is not None and before is not None and before - area >= BADAUC
        }
        return worse, drops

    def meet(self, state: Tensors) -> None:
        """A benign model: who raises an alarm leaves, the others remember it."""
        found = self._look(state)
        if self.least[0] is not None:
            for place in (0, 1):
                self.asked[place] += len(self.sizes) - len(self.left[place])
        for place, who in enumerate(self._alarms(found)):
            self.left[place].update(who)
        for i, (p, area) in enumerate(found):
            self.least[i] = rose(p, self.sizes[i], self.least[i])[1]
            self.areas[i] = area if area is not None else self.areas[i]

    def share(self, state: Tensors) -> tuple[float, float]:
        """Of the clients still there, how many raise an alarm at this model: BADAcc, BADAUC."""
        there = [max(len(self.sizes) - len(gone), 1) for gone in self.left]
        worse, drops = self._alarms(self._look(state))
        return len(worse) / there[0], len(drops) / there[1]
