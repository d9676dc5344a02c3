"""The audit's malicious server: a neuron that only the target reaches, written down in closed form (after 004)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.attributes.leak import ATTRIBUTES
from fedspill.messages import Message
from fedspill.planting.closed_form import NeuronDesign, TakenColumns, ValueCode, plant_neurons
from fedspill.planting.closed_form_fit import ACTIVE_NEEDS, fitted_to_width, reach_for
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.imputation import impute
from fedspill.planting.read_behind_noise import matched_signals, reads_through_noise, with_dead_zone
from fedspill.planting.read_sums import contrast, into_unit_interval, origins, read_neurons
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
    columns: TakenColumns = "zeroed"
    code: ValueCode = "pair"

    def rounds(self, view: View) -> range:
        return targets_of(view).rounds(self.at_once)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        dense, targets, shadow = read_dense_network(view.knows("architecture")()), targets_of(view), shadow_of(view)
        targets.secret_column()
        chosen = targets.group(model.round, self.at_once).tolist()
        design = fitted_to_width(self._design(view), dense, dict(model.tensors), len(chosen), secret=True)
        planted = plant_neurons(dense, dict(model.tensors), targets, chosen, shadow, design, rng)
        if reads_through_noise(view, dense):
            planted = with_dead_zone(dense, planted, design.neurons_per_target(dense, secret=True), len(chosen), shadow)
        return replace(model, tensors=planted)

    def run(self, view: View, rng: torch.Generator) -> Attributes:
        dense, targets, shadow = read_dense_network(view.knows("architecture")()), targets_of(view), shadow_of(view)
        column = targets.secret_column()
        rows = 2 if dense.hidden == 1 else self._design(view).neurons_per_target(dense, secret=True)
        indices, signal = read_neurons(view, dense, targets, rows, self.at_once)
        if rows == 2 and reads_through_noise(view, dense):
            either = [targets.completed(value, shadow) for value in (0, 1)]
            signal = matched_signals(view, dense, targets, either, indices, self.at_once)
            score = into_unit_interval(
                signal[:, 1] - signal[:, 0]
            )  # a quotient of two noises says less than their difference
        elif rows == 2:
            score = contrast(signal)
        else:
            score = into_unit_interval(signal[:, 0] * (1 if float(shadow[:, column].mean()) >= 0.5 else -1))
        prior = impute(targets, shadow)[indices]
        return Attributes(origins(targets, indices, self.at_once), score, prior, torch.tensor(indices) % self.at_once)

    def _design(self, view: View) -> NeuronDesign:
        reach = self.reach or reach_for(view)
        return NeuronDesign(
            self.directions, reach, self.level, output=self.output, columns=self.columns, code=self.code
        )
