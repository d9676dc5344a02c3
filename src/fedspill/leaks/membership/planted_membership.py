"""The audit's malicious server asks whether a record is there: a neuron in closed form (after AMI and paper 004)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP
from fedspill.messages import Message
from fedspill.planting.closed_form import NeuronDesign, plant_neurons
from fedspill.planting.closed_form_fit import ACTIVE_NEEDS, fitted_to_width, reach_for
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.read_behind_noise import matched_signals, reads_through_noise, with_dead_zone
from fedspill.planting.read_sums import into_unit_interval, origins, read_likeness, read_neurons
from fedspill.planting.targets import shadow_of, targets_of
from fedspill.trace import View


@final
@dataclass(frozen=True)
class PlantedMembership(ActiveAttack):
    """Tells whether a client trained on given records, from the sum of one round each, behind secure aggregation.

    For dense networks with ReLU or ELU. With one hidden layer the neuron cuts a half-space, which a record in the
    middle of the others does not leave to itself.
    """

    name: ClassVar[str] = "planted-membership"
    title: ClassVar[str] = "Membership read from a planted neuron"
    paper: ClassVar[str] = "fedspill, after Nguyen et al. 2023 and 004"
    needs = ACTIVE_NEEDS
    leak = MEMBERSHIP

    at_once: int = 1  # targets per round
    directions: int = 8
    output: float = 1.0

    def rounds(self, view: View) -> range:
        return targets_of(view).rounds(self.at_once)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        dense, shadow = read_dense_network(view.knows("architecture")()), shadow_of(view)
        targets = replace(targets_of(view), column=None)
        chosen = targets.group(model.round, self.at_once).tolist()
        design = NeuronDesign(self.directions, reach_for(view), output=self.output)
        design = fitted_to_width(design, dense, dict(model.tensors), len(chosen), secret=False)
        planted = plant_neurons(dense, dict(model.tensors), targets, chosen, shadow, design, rng)
        if reads_through_noise(view, dense):
            planted = with_dead_zone(dense, planted, 1, len(chosen), shadow)
        return replace(model, tensors=planted)

    def run(self, view: View, rng: torch.Generator) -> Membership:
        dense, targets = read_dense_network(view.knows("architecture")()), targets_of(view)
        indices, signal = read_neurons(view, dense, targets, 1, self.at_once)
        if dense.hidden == 1:  # the neuron reads the inputs: what moved it can be compared with the record itself
            likeness = read_likeness(view, dense, targets, indices, self.at_once)
            return Membership(origins(targets, indices, self.at_once), likeness, torch.tensor(indices) % self.at_once)
        if reads_through_noise(view, dense):
            signal = matched_signals(view, dense, targets, [targets.x.flatten(1)], indices, self.at_once)
        return Membership(
            origins(targets, indices, self.at_once),
            into_unit_interval(signal[:, 0]),
            torch.tensor(indices) % self.at_once,
        )
