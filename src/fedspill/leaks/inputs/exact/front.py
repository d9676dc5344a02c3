"""A linear pair and what comes before it: nothing, or convolutions. From samples to what the pair is fed, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.behind_convolutions import (
    convolutions_below,
    has_convolutions,
    usual_norm,
)
from fedspill.leaks.inputs.exact.images_with_features import image_from_nothing, image_near
from fedspill.leaks.inputs.exact.leading_layers import LayerPair, leading_pair
from fedspill.leaks.inputs.exact.sample_roots import usual_scale

NEARLY = 120  # moves of a search for images; what these leave is made good when samples are solved for in turns


@dataclass(frozen=True, eq=False)
class Front:
    """The pair, the layers below it, and the shape of a sample."""

    pair: LayerPair
    below: nn.Sequential | None  # None: the pair reads samples
    shape: tuple[int, ...]

    @staticmethod
    def of(model: nn.Module, shape: tuple[int, ...], *, mixing: bool) -> Front:
        """Raises CannotRecover where the network does not begin so; `mixing` as in leading_pair."""
        if not has_convolutions(model):
            return Front(leading_pair(model, mixing=mixing), None, shape)
        network = convolutions_below(model, mixing=mixing)
        return Front(network.pair, network.below, shape)

    def features(self, x: Tensor) -> Tensor:
        """(k, f) what the pair is fed for samples x (k, *shape)."""
        if self.below is None:
            return x.flatten(1)
        with torch.no_grad():
            return torch.as_tensor(self.below(x)).flatten(1)

    def samples(self, features: Tensor, start: Tensor | None) -> Tensor:
        """(k, *shape) the samples with these features, by a search from `start`, grey if it is None."""
        if self.below is None:
            return features.reshape(len(features), *self.shape)
        if not len(features):
            return features.new_zeros(0, *self.shape)
        if start is None:
            return image_from_nothing(self.below, features, self.shape, NEARLY)
        return image_near(self.below, features, start, NEARLY)

    def usual_norm(self, rng: torch.Generator) -> float:
        """The norm of what a standardised sample feeds the pair."""
        if self.below is None:
            return usual_scale(self.pair.first.weight.shape[1])
        return usual_norm(self.below, self.shape, rng)
