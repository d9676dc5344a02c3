"""Which layer of an update is the last one of a classifier, found in its numbers alone, whatever the framework.

Over the classes, the gradient of softmax cross-entropy adds up to zero, in the last bias and in every column of the
last weight. Few other layers do that, so the last layer is found, its orientation is known, and a layer that was named
wrongly is noticed. Two other kinds of layer add up to zero as well: one in front of a layer normalisation, which is
recognised by a normalisation of the same width, and one in front of another softmax (attention pooling, a router),
which cannot be recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedspill.errors import NoHead

# Splits "fc.weight", "dense/kernel:0", "head_w" or "W3" into the layer's name, the word for a weight, and a number.
_BIAS_OF = {"weight": "bias", "weights": "biases", "kernel": "bias", "W": "b", "w": "b"}
_WEIGHT = re.compile(r"^(.*[._/]|)(weights|weight|kernel|W|w)((?:[:_]?\d+)?)$", re.DOTALL)
ZERO_SUM = 1e-2  # the largest |sum over classes| / sum of absolute values; half precision and few steps stay well below


@dataclass(frozen=True, eq=False)
class HeadGradient:
    """The last layer's gradient: weight (classes, features), bias (classes,) or None."""

    name: str
    weight_name: str
    weight: Tensor
    bias: Tensor | None
    zero_sum: float  # how far from the zero sum, relative; 0 is exact
    transposed: bool  # stored as (features, classes)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "classes": self.weight.shape[0],
            "features": self.weight.shape[1],
            "bias": self.bias is not None,
            "transposed": self.transposed,
            "zero_sum_error": self.zero_sum,
        }


def find_head(gradient: Mapping[str, Tensor], name: str | None = None, *, unchecked: bool = False) -> HeadGradient:
    """The last layer among named gradients: as asked for, else the one layer whose classes add up to zero."""
    candidates = [head for weight in gradient if gradient[weight].ndim == 2 for head in _orientations(gradient, weight)]
    if not candidates:
        raise NoHead("No two-dimensional weight is in the file, so there is no linear last layer to read.")
    if name is not None:
        known = sorted({head.name for head in candidates})
        candidates = [head for head in candidates if name in (head.name, head.weight_name)]
        if not candidates:
            raise NoHead(f"There is no linear layer named {name!r}.", remedy=f"Linear layers: {', '.join(known)}.")
    best = min(candidates, key=lambda head: (head.zero_sum, head.bias is None))
    if name is None and not unchecked:
        best = _unexplained_head(candidates, gradient) or best
    if best.zero_sum > ZERO_SUM and not unchecked:
        which = f"Layer {best.name!r} is not" if name is not None else "No layer looks like"
        raise NoHead(
            f"{which} the last layer of a softmax classifier: its gradient should add up to zero over the classes, "
            f"and misses by {best.zero_sum:.1%}.",
            remedy="Leave --head out to have it found. Adam, compression and noise break the sum: name the layer with "
            "--head and add --unchecked.",
        )
    return best


def _unexplained_head(candidates: Sequence[HeadGradient], gradient: Mapping[str, Tensor]) -> HeadGradient | None:
    """The one layer that adds up to zero without a normalisation of its width; None where no layer adds up to zero."""
    fitting = [head for head in candidates if head.zero_sum <= ZERO_SUM]
    biases = {layer_and_bias_names(name)[1] for name, tensor in gradient.items() if tensor.ndim > 1}
    widths = {len(t) for name, t in gradient.items() if t.ndim == 1 and name not in biases and "bias" not in name}
    unexplained = [head for head in fitting if len(head.weight) not in widths] or fitting
    names = sorted({head.name for head in unexplained})
    if len(names) > 1:
        raise NoHead(
            f"{len(names)} layers look like the last one of a softmax classifier: {', '.join(names[:8])}.",
            remedy="Name the right one with --head.",
        )
    return min(unexplained, key=lambda head: head.zero_sum, default=None)


def _orientations(gradient: Mapping[str, Tensor], weight_name: str) -> list[HeadGradient]:
    """The layer read as (classes, features), and as (features, classes) where its bias allows that."""
    weight = gradient[weight_name]
    if weight.ndim != 2:
        return []
    name, bias_name = layer_and_bias_names(weight_name)
    bias = gradient.get(bias_name)
    bias = bias if bias is not None and bias.ndim == 1 else None
    found = []
    for transposed in (False, True):
        as_rows = weight.T if transposed else weight
        if (bias is None or len(bias) == len(as_rows)) and len(as_rows) > 1:
            found.append(HeadGradient(name, weight_name, as_rows, bias, _zero_sum_error(as_rows, bias), transposed))
    return found


def layer_and_bias_names(weight_name: str) -> tuple[str, str]:
    """The names of the layer and the bias that a weight belongs to, as torch, Keras, Flax and plain dictionaries do."""
    found = _WEIGHT.match(weight_name)
    if found is None:
        return weight_name, weight_name + ".bias"
    stem, word, ending = found.groups()
    return stem.rstrip("._/") or weight_name, stem + _BIAS_OF[word] + ending


def _zero_sum_error(weight: Tensor, bias: Tensor | None) -> float:
    """How far weight and bias are from adding up to zero over the classes: the sum over the sum of absolute values."""
    parts = [weight] if bias is None else [weight, bias[:, None]]
    shares = [part.sum(0).abs().sum() / part.abs().sum() if bool(part.any()) else torch.tensor(1.0) for part in parts]
    return float(max(shares))
