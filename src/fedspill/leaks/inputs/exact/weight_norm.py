"""The gradient of weights that are a size times a direction (weight norm), from the gradients of both.

With w = g v / |v| for each unit, the size gets dg = dw . v / |v| and the direction gets (g / |v|) times what of dw is
at right angles to v. Together they are all of dw, which has a direction for each sample, as that of any linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

# Names of size and direction beside a layer: of torch.nn.utils.parametrizations.weight_norm, and of the older function.
_NAMES = (("parametrizations.weight.original0", "parametrizations.weight.original1"), ("weight_g", "weight_v"))


@dataclass(frozen=True, eq=False)
class SizeAndDirection:
    """Both parameters of a layer, or the gradients of both."""

    size: Tensor  # (m, 1)
    direction: Tensor  # (m, d)

    @staticmethod
    def among(tensors: Mapping[str, Tensor], layer: str) -> SizeAndDirection | None:
        """Those of the layer, if it has such."""
        for size, direction in _NAMES:
            one, two = tensors.get(f"{layer}.{size}"), tensors.get(f"{layer}.{direction}")
            if one is not None and two is not None and two.ndim == 2 and one.shape == (len(two), 1):
                return SizeAndDirection(one.double(), two.double())
        return None


def with_made_weights(model: nn.Module, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of one step, and beside them those of weights that weight norm makes."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    made = dict(gradients)
    for name, module in model.named_modules():
        own, sent = SizeAndDirection.among(parameters, name), SizeAndDirection.among(gradients, name)
        if isinstance(module, nn.Linear) and own is not None and sent is not None and bool((own.size != 0).all()):
            length = own.direction.norm(dim=1, keepdim=True)
            made[f"{name}.weight"] = sent.direction * length / own.size + sent.size * own.direction / length
    return made
