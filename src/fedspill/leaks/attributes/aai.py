"""AAI, active attribute inference as published (004): one trained neuron whose gradient's sign is the attribute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.errors import NotApplicable
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.attributes.leak import ATTRIBUTES
from fedspill.messages import Message
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.imputation import impute
from fedspill.planting.read_sums import into_unit_interval, origins, read_neurons
from fedspill.planting.targets import targets_of
from fedspill.planting.trained_neurons import AaiRecipe, align, train_aai
from fedspill.planting.trained_neurons_control import TRAINED_CONTROL, TRAINED_NEEDS
from fedspill.trace import View


@final
@dataclass(frozen=True)
class AAI(ActiveAttack):
    """Trains the first layer and one neuron of the second so that the attribute decides the sign of its gradient.

    Needs a network with two hidden layers of ELU with a negative alpha, and the targets' labels. Does not hold where
    the neuron fires for other records too, which on tables it does (papers/004).
    """

    name: ClassVar[str] = "aai"
    title: ClassVar[str] = "AAI: attribute by the sign of a trained neuron"
    paper: ClassVar[str] = "004"
    needs = TRAINED_NEEDS
    leak = ATTRIBUTES
    control = TRAINED_CONTROL

    at_once: int = 1
    epochs: int = 1000
    lr: float = 0.01
    scale: float = 400.0

    def rounds(self, view: View) -> range:
        return targets_of(view).rounds(self.at_once)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        dense, targets, shadow = (
            read_dense_network(view.knows("architecture")()),
            targets_of(view),
            view.knows("shadow_data"),
        )
        if not dense.activation.rises_both_ways:
            raise NotApplicable("AAI needs ELU with a negative alpha: other activations have no gradient of two signs.")
        chosen = targets.group(model.round, self.at_once)
        values = [targets.completed(value, shadow.x)[chosen][None] for value in (0, 1)]
        frequent = int(shadow.x.flatten(1)[:, targets.secret_column()].mean() >= 0.5)
        recipe = AaiRecipe(self.epochs, self.lr, self.scale)
        made = train_aai(
            dense, dict(model.tensors), values[frequent], values[1 - frequent], shadow.x.flatten(1), recipe
        )
        planted = made.install(dense, dict(model.tensors), 0)
        for place, index in enumerate(chosen.tolist()):
            align(dense, planted, place - len(chosen), int(targets.y[index]))
        return replace(model, tensors=planted)

    def run(self, view: View, rng: torch.Generator) -> Attributes:
        dense, targets, shadow = (
            read_dense_network(view.knows("architecture")()),
            targets_of(view),
            view.knows("shadow_data"),
        )
        frequent = float(shadow.x.flatten(1)[:, targets.secret_column()].mean()) >= 0.5
        indices, signal = read_neurons(view, dense, targets, 1, self.at_once)
        score = signal[:, 0] * (1 if frequent else -1)
        prior = impute(targets, shadow.x.flatten(1))[indices]
        return Attributes(
            origins(targets, indices, self.at_once),
            into_unit_interval(score),
            prior,
            torch.tensor(indices) % self.at_once,
        )
