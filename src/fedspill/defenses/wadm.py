"""WADM as published (paper 004, Figure 23): neurons of the second layer whose weights changed their distribution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedspill.defense import ACCEPT, ClientContext, Defense, Verdict
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class Wadm(Defense):
    """Puts back the second layer's neurons whose weights' histogram diverges from the one before.

    Misses what it does not look at (the first layer, biases, output weights), and rows of a few large weights: those
    stretch the common range until all else falls into one bin, whatever their size (docs/design/active.md).
    """

    name: ClassVar[str] = "wadm"
    title: ClassVar[str] = "WADM: restore neurons whose weights changed"
    paper: ClassVar[str] = "004"

    threshold: float = 0.1556
    bins: int = 5
    units: Literal["published", "corrected"] = "published"  # the authors divide by neurons instead of weights

    def incoming(self, message: Message, previous: Message | None, client: ClientContext) -> Verdict:
        names = [name for name, tensor in message.tensors.items() if tensor.ndim == 2]
        if previous is None or len(names) < 2 or names[1] not in previous.tensors:
            return ACCEPT
        name = names[1]
        now, before = message.tensors[name], previous.tensors[name]
        flagged = torch.from_numpy(divergences(before, now, self.bins, self.units) >= self.threshold)
        if not bool(flagged.any()):
            return ACCEPT
        bias = f"{name.rpartition('.')[0]}.bias"
        repaired = dict(message.tensors)
        for part in [name] + [bias] * (bias in repaired):
            repaired[part] = torch.where(_along(flagged, repaired[part]), previous.tensors[part], repaired[part])
        why = f"the weights of {int(flagged.sum())} neurons of the second layer changed their distribution"
        return Verdict("repair", why, replace(message, tensors=repaired))


def divergences(before: Tensor, now: Tensor, bins: int, units: str) -> NDArray[np.float64]:
    """(neurons,) the smaller of the two Kullback-Leibler divergences of each neuron's weight histograms."""
    rows, fan_in = before.shape
    scale = fan_in / rows if units == "published" else 1.0
    found = np.zeros(rows)
    for row, (old, new) in enumerate(zip(before.double().numpy(), now.double().numpy(), strict=True)):
        low, high = min(old.min(), new.min()), max(old.max(), new.max())
        if not np.isfinite(high - low):
            found[row] = np.inf
        elif high > low:
            p, q = (np.histogram(weights, bins, (low, high))[0] / fan_in for weights in (old, new))
            found[row] = scale * min(_divergence(p, q), _divergence(q, p))
    return found


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    there = p > 0
    if bool((q[there] == 0).any()):
        return float("inf")
    return float((p[there] * np.log(p[there] / q[there])).sum())


def _along(flags: Tensor, tensor: Tensor) -> Tensor:
    return flags.to(tensor.device).reshape(-1, *[1] * (tensor.ndim - 1))
