"""MIA2AIA as published (paper 004): one trained membership neuron for each value that the attribute may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.attributes.leak import ATTRIBUTES
from fedspill.messages import Message
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.imputation import impute
from fedspill.planting.read_sums import into_unit_interval, origins, read_neurons
from fedspill.planting.targets import targets_of
from fedspill.planting.trained_neurons import AmiRecipe, train_ami
from fedspill.planting.trained_neurons_control import RELU_CONTROL, TRAINED_NEEDS
from fedspill.trace import View


@final
@dataclass(frozen=True)
class MIA2AIA(ActiveAttack):
    """The value whose neuron moved more. With `imputation`, neurons that are both still give the more frequent value.

    Needs a network with two hidden layers. Does not hold where the neurons fire for other records too.
    """

    name: ClassVar[str] = "mia2aia"
    title: ClassVar[str] = "MIA2AIA: attribute by membership of either record"
    paper: ClassVar[str] = "004"
    needs = TRAINED_NEEDS
    leak = ATTRIBUTES
    control: ClassVar[Mapping[str, Any] | None] = RELU_CONTROL

    at_once: int = 1
    epochs: int = 1000
    lr: float = 5e-4
    imputation: bool = True

    def rounds(self, view: View) -> range:
        return targets_of(view).rounds(self.at_once)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        dense, targets, shadow = (
            read_dense_network(view.knows("architecture")()),
            targets_of(view),
            view.knows("shadow_data"),
        )
        chosen = targets.group(model.round, self.at_once)
        values = [targets.completed(value, shadow.x)[chosen] for value in (0, 1)]
        wanted = torch.stack(values, 1).flatten(0, 1)[None]  # (1, 2 targets, columns): value 0 and 1 of each in turn
        made = train_ami(dense, dict(model.tensors), wanted, shadow.x.flatten(1), AmiRecipe(self.epochs, self.lr))
        return replace(model, tensors=made.install(dense, dict(model.tensors), 0))

    def run(self, view: View, rng: torch.Generator) -> Attributes:
        dense, targets, shadow = (
            read_dense_network(view.knows("architecture")()),
            targets_of(view),
            view.knows("shadow_data"),
        )
        indices, signal = read_neurons(view, dense, targets, 2, self.at_once)
        score = into_unit_interval(signal[:, 1].abs() - signal[:, 0].abs())
        if self.imputation:
            frequent = float(shadow.x.flatten(1)[:, targets.secret_column()].mean()) >= 0.5
            score = torch.where(signal.abs().sum(1) > 0, score, 1e-6 if frequent else -1e-6)
        prior = impute(targets, shadow.x.flatten(1))[indices]
        return Attributes(origins(targets, indices, self.at_once), score, prior, torch.tensor(indices) % self.at_once)
