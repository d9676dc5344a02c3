"""Fishing (Wen et al. 2022): a last layer that lets the samples of one class through, and silences all others.

All rows of the last layer but that of the class are zero, with biases so high that no sample is taken for the class. A
sample of another class then sends nothing back, and one of the class sends its whole gradient. Where a batch holds one
sample of the class, the batch's gradient is that sample's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.training import Tensors

_CERTAIN = 20.0  # by which other logits lie above: the class has the probability exp(-20)
_RANK_ONE = 1e-4  # share of the gradient that a single sample may leave unexplained, by rounding


def head_of(model: nn.Module) -> str:
    """The name of the last linear layer, which must have a bias and a logit for each class."""
    linear: list[tuple[str, nn.Linear]] = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not linear or linear[-1][1].bias is None or linear[-1][1].out_features < 2:
        raise NotApplicable("A class is fished for in a last linear layer with a bias and a logit for each class.")
    return linear[-1][0]


@torch.no_grad()
def plant_class(head: str, state: Tensors, label: int) -> Tensors:
    """The state with a last layer that only samples of class `label` get through."""
    planted = {name: tensor.clone() for name, tensor in state.items()}
    weight, bias = planted[f"{head}.weight"], planted[f"{head}.bias"]
    own = weight[label].clone()
    weight.zero_()
    weight[label] = own
    bias.fill_(_CERTAIN + float(bias[label]))
    bias[label] -= _CERTAIN
    return planted


def one_sample(weight_gradient: Tensor, bias_gradient: Tensor) -> tuple[Tensor, bool]:
    """(features,) the sample that a first layer's gradient holds, and whether it holds one only: then it has rank one.

    Where it holds several, what comes out is their mean, weighted by what they send back.
    """
    size = bias_gradient.square().sum().clamp_min(1e-300)
    found = bias_gradient @ weight_gradient / size
    off = (weight_gradient - bias_gradient[:, None] * found).norm()
    return found, bool(off < _RANK_ONE * weight_gradient.norm())
