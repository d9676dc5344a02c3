"""The layers of a fully connected network, in which a malicious server plants neurons (paper 004, Figure 14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.errors import NotAChain, NotApplicable
from fedspill.models.module_chain import kind_of, module_chain

_WITHOUT_EFFECT = (nn.Flatten, nn.Dropout, nn.Identity)  # on what a planted neuron reads


@dataclass(frozen=True)
class HiddenActivation:
    """The activation of all hidden layers: ReLU, or ELU with its alpha."""

    elu: bool
    alpha: float = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        return nn.functional.elu(z, self.alpha) if self.elu else z.clamp(min=0)

    def slope(self, z: Tensor) -> Tensor:
        """The derivative, elementwise."""
        on = (z > 0).to(z.dtype)
        return on + (1 - on) * self.alpha * z.clamp(max=0).exp() if self.elu else on

    @property
    def resting_output(self) -> float:
        """The output of a unit whose input is far below zero."""
        return -self.alpha if self.elu else 0.0

    @property
    def rises_both_ways(self) -> bool:
        """Whether it is 0 at 0 and positive on both sides, so that one unit measures a distance."""
        return self.elu and self.alpha < 0


@dataclass(frozen=True)
class DenseNetwork:
    """A chain of linear layers: their names in order, and the activation between them."""

    layers: tuple[str, ...]
    activation: HiddenActivation

    @property
    def hidden(self) -> int:
        return len(self.layers) - 1

    def weight(self, layer: int) -> str:
        return f"{self.layers[layer]}.weight"

    def bias(self, layer: int) -> str:
        return f"{self.layers[layer]}.bias"

    def pre_activations(self, state: Mapping[str, Tensor], x: Tensor, layer: int) -> Tensor:
        """(n, units) what enters the activation of that layer; for the last layer, the logits."""
        h = x.flatten(1)
        for number in range(layer):
            h = self.activation(h @ state[self.weight(number)].T + state[self.bias(number)])
        return h @ state[self.weight(layer)].T + state[self.bias(layer)]


def read_dense_network(model: nn.Module) -> DenseNetwork:
    """The layers of a model that is a plain chain of linear layers; other models raise NotApplicable."""
    layers: list[str] = []
    activations: set[HiddenActivation] = set()
    try:
        chain = module_chain(model)
    except NotAChain as error:
        raise NotApplicable(f"A neuron is planted in a chain of layers: {error.problem}.") from None
    for name, module in chain:
        if isinstance(module, _WITHOUT_EFFECT):
            continue
        if isinstance(module, nn.Linear) and module.bias is not None:
            layers.append(name)
        elif isinstance(module, nn.ReLU):
            activations.add(HiddenActivation(False))
        elif isinstance(module, nn.ELU):
            activations.add(HiddenActivation(True, float(module.alpha)))
        else:
            raise NotApplicable(
                f"A neuron can be planted in dense layers with biases and ReLU or ELU; this model has "
                f"{kind_of(module)}."
            )
    if len(layers) < 2 or len(activations) != 1:
        raise NotApplicable(
            f"A neuron can be planted in a network with hidden layers of one activation; this one has "
            f"{max(len(layers) - 1, 0)} hidden layers and {len(activations)} activations."
        )
    return DenseNetwork(tuple(layers), activations.pop())


@torch.no_grad()
def residuals(logits: Tensor, y: Tensor) -> Tensor:
    """(n, logits) the gradient of each sample's cross-entropy, for one logit (sigmoid) or one per class."""
    if logits.shape[1] == 1:
        return torch.sigmoid(logits) - y[:, None].to(logits.dtype)
    return torch.softmax(logits, 1) - nn.functional.one_hot(y, logits.shape[1]).to(logits.dtype)


@torch.no_grad()
def unit_gradients(dense: DenseNetwork, state: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """(n, units) each sample's gradient at the units of the last hidden layer: what moves their biases."""
    last = dense.hidden
    s = dense.pre_activations(state, x, last - 1)
    logits = dense.activation(s) @ state[dense.weight(last)].T + state[dense.bias(last)]
    return (residuals(logits, y) @ state[dense.weight(last)]) * dense.activation.slope(s)
