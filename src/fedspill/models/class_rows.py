"""Heads that are no plain linear layer, found by what they do: row c of a parameter goes into the logit of class c.

So it is with weights that are normalised (weight norm, cosine classifiers), scaled logits, a bare parameter and a
convolution with a pool behind it. What such rows receive from a sample need not be its error times its features, but a
sample still moves the row of its class otherwise than those of others, and training on known samples shows how.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedspill.errors import NoHead
from fedspill.models.forward_once import evaluated
from fedspill.models.heads import Head, last_linear


def any_head(model: nn.Module, example: Tensor) -> Head | None:
    """The plain last layer, or else rows of classes, or None."""
    try:
        return last_linear(model, example)
    except NoHead:
        pass
    try:
        return class_rows(model, example)
    except Exception:  # of the model's own code: whoever trains it shows the error
        return None


def class_rows(model: nn.Module, example: Tensor) -> Head | None:
    """The last parameter of that kind, and the last bias; None where there is none, or logits are no matrix."""
    if any(isinstance(one, UninitializedParameter) for one in model.parameters()):
        return None
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad and one.is_floating_point()}
    with evaluated(model), torch.enable_grad():
        logits = model(example)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2 or not logits.requires_grad:
            return None
        classes = logits.shape[1]
        rows = {name: one for name, one in parameters.items() if one.ndim > 0 and len(one) == classes}
        for asked in range(min(classes, 3)):  # a few logits tell as much as all of a thousand
            found = torch.autograd.grad(
                logits[:, asked].sum(), list(rows.values()), retain_graph=True, allow_unused=True
            )
            rows = {
                name: one
                for (name, one), gradient in zip(rows.items(), found, strict=True)
                if gradient is not None and _is_row_alone(gradient, asked)
            }
    weights = [name for name, one in rows.items() if one.ndim >= 2 and one[0].numel() > 1]
    biases = [name for name, one in rows.items() if one.ndim == 1]
    if not weights:
        return None
    weight = weights[-1]
    return Head(weight, weight, biases[-1] if biases else None, classes, rows[weight][0].numel(), plain=False)


def _is_row_alone(gradient: Tensor, row: int) -> bool:
    others = torch.cat([gradient[:row], gradient[row + 1 :]])
    return bool(gradient[row].any()) and not bool(others.any())
