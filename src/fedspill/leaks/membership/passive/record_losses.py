"""The loss of every record at one model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.training import is_next_token, is_single

AT_ONCE = 256  # records in one forward pass
_MOST = 1e6  # a loss that overflowed is as bad as any


def losses(model: nn.Module, logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(records,) cross-entropy of each record; for a single logit the binary one, of a text the mean of its tokens."""
    if is_next_token(logits):
        return _text_losses(model, logits, x)
    if is_single(logits):
        return functional.binary_cross_entropy_with_logits(logits.flatten(), y.to(logits.dtype), reduction="none")
    return functional.cross_entropy(logits, y, reduction="none")


@torch.no_grad()
def record_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(records,) in float64, finite, on the CPU; they go through the model where that is."""
    x, y = (part.to(next(model.parameters()).device) for part in (x, y))
    parts = [
        losses(model, model(some), some, labels)
        for some, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True)
    ]
    return torch.cat(parts).double().cpu().nan_to_num(_MOST, _MOST, 0.0).clamp(max=_MOST)


def _text_losses(model: nn.Module, logits: Tensor, x: Tensor) -> Tensor:
    """(texts,) mean cross-entropy of the tokens that follow, for logits (texts, length, tokens); padding left out."""
    paddings = [layer.padding_idx for layer in model.modules() if isinstance(layer, nn.Embedding)]
    targets = x[:, 1:]
    padding = next((padding for padding in paddings if padding is not None), None)
    real = torch.ones_like(targets, dtype=torch.bool) if padding is None else targets != padding
    each = functional.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
    return (each * real).sum(1) / real.sum(1).clamp_min(1)
