"""The audit's malicious server: a neuron that only the target reaches, written down in closed form (after 004)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.attributes.leak import ATTRIBUTES
from fedspill.messages import Message
from fedspill.planting.closed_form import Code, Columns, Shape, plant_neurons
from fedspill.planting.closed_form_fit import ACTIVE_NEEDS, fitting, reach_for
from fedspill.planting.dense_network import read_dense
from fedspill.planting.imputation import impute
from fedspill.planting.read_behind_noise import matched_signals, reads_through_noise, with_dead_zone
from fedspill.planting.read_sums import contrast, origins, read_neurons, squashed
from fedspill.planting.targets import shadow_of, targets_of
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Planted(ActiveAttack):
    """Tells a yes-or-no attribute of given records from the sum of one round each, behind secure aggregation.

    For dense networks with ReLU or ELU. Records that others share in all known columns, with another value of the
    attribute, cannot be told apart from them.
    """

    name: ClassVar[str] = "planted"
    title: ClassVar[str] = "Attribute read from a planted neuron"
    paper: ClassVar[str] = "fedspill, after 004"
    needs = ACTIVE_NEEDS
    leak = ATTRIBUTES

    at_once: int = 1  # targets per round
    directions: int = 8
    reach: float | None = None  # None: by the clients' optimizer
    level: float = 15.0
    output: float = 1.0
    columns: Columns = "zeroed"
    code: Code = "pair"

    def rounds(self, view: View) -> range:
        return targets_of(view).rounds(self.at_once)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        dense, targets, shadow = read_dense(view.knows("architecture")()), targets_of(view), shadow_of(view)
        targets.secret_column()
        chosen = targets.group(model.round, self.at_once).tolist()
        shape = fitting(self._shape(view), dense, dict(model.tensors), len(chosen), secret=True)
        planted = plant_neurons(dense, dict(model.tensors), targets, chosen, shadow, shape, rng)
        if reads_through_noise(view, dense):
            planted = with_dead_zone(dense, planted, shape.rows(dense, secret=True), len(chosen), shadow)
        return replace(model, tensors=planted)

    def run(self, view: View, rng: torch.Generator) -> Attributes:
        dense, targets, shadow = read_dense(view.knows("architecture")()), targets_of(view), shadow_of(view)
        column = targets.secret_column()
        rows = 2 if dense.hidden == 1 else self._shape(view).rows(dense, secret=True)
        indices, signal = read_neurons(view, dense, targets, rows, self.at_once)
        if rows == 2 and reads_through_noise(view, dense):
            either = [targets.completed(value, shadow) for value in (0, 1)]
            signal = matched_signals(view, dense, targets, either, indices, self.at_once)
            score = squashed(signal[:, 1] - signal[:, 0])  # a quotient of two noises says less than their difference
        elif rows == 2:
            score = contrast(signal)
        else:
            score = squashed(signal[:, 0] * (1 if float(shadow[:, column].mean()) >= 0.5 else -1))
        prior = impute(targets, shadow)[indices]
        return Attributes(origins(targets, indices, self.at_once), score, prior, torch.tensor(indices) % self.at_once)

    def _shape(self, view: View) -> Shape:
        reach = self.reach or reach_for(view)
        return Shape(self.directions, reach, self.level, output=self.output, columns=self.columns, code=self.code)
