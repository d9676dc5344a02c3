"""AMI, active membership inference (Nguyen et al., AISTATS 2023), as paper 004 builds on it: one trained neuron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP
from fedspill.messages import Message
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.read_sums import into_unit_interval, origins, read_neurons
from fedspill.planting.targets import targets_of
from fedspill.planting.trained_neurons import AMI as PUBLISHED
from fedspill.planting.trained_neurons import train_ami
from fedspill.planting.trained_neurons_control import RELU_CONTROL, TRAINED_NEEDS
from fedspill.trace import View


@final
@dataclass(frozen=True)
class AMI(ActiveAttack):
    """A record is a member if the neuron trained to fire for it alone has a gradient.

    The authors stop training when no test record fires; here, when no shadow record kept aside does: an adversary has
    no test records. Needs a network with two hidden layers.
    """

    name: ClassVar[str] = "ami"
    title: ClassVar[str] = "AMI: membership by a trained neuron"
    paper: ClassVar[str] = "Nguyen et al. 2023, in 004"
    needs = TRAINED_NEEDS
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = {**RELU_CONTROL, "targets": {"members": 12, "others": 12}}

    at_once: int = 1
    epochs: int = 4000  # at most; the authors go on up to a million, at 1e-4
    lr: float = 5e-4

    def rounds(self, view: View) -> range:
        return targets_of(view).rounds(self.at_once)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        dense, targets, shadow = (
            read_dense_network(view.knows("architecture")()),
            targets_of(view),
            view.knows("shadow_data"),
        )
        chosen = targets.group(model.round, self.at_once)
        recipe = replace(PUBLISHED, epochs=self.epochs, lr=self.lr)
        wanted = targets.x.flatten(1)[chosen][None]
        made = train_ami(dense, dict(model.tensors), wanted, shadow.x.flatten(1), recipe)
        return replace(model, tensors=made.install(dense, dict(model.tensors), 0))

    def run(self, view: View, rng: torch.Generator) -> Membership:
        dense, targets = read_dense_network(view.knows("architecture")()), targets_of(view)
        indices, signal = read_neurons(view, dense, targets, 1, self.at_once)
        return Membership(
            origins(targets, indices, self.at_once),
            into_unit_interval(signal[:, 0].abs()),
            torch.tensor(indices) % self.at_once,
        )
