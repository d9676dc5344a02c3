"""What the layers of a defended message say of beta, the summed derivative of the loss by each logit, and how surely.

The last bias holds beta itself, the other layers hold it as layer_signals.py reads it. Each has the noise that the
defense put on it, and the others a misfit, because samples are not alike; they are joined by how sure each is. Of a
compressed message some coordinates were not sent, which bounds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.layer_signals import Reader, Signals
from fedspill.leaks.labels.counts.whole_counts import Steps
from fedspill.observe.known_defenses import KnownDefenses


@dataclass(frozen=True, eq=False)
class LayerReadings:
    """What the layers of several origins say, in units of one pass's summed gradient."""

    beta: Tensor  # (origins, classes)
    noise: Tensor  # (origins, classes) standard deviation that the defense put on it
    own: Tensor  # (origins, classes) variance that a sample adds to its own class, in samples
    other: Tensor  # (origins, classes) to another
    low: Tensor  # (origins, classes) bounds of what was not sent; -inf and inf elsewhere
    high: Tensor
    whole: Tensor  # (origins,) bool: surely not clipped


def look(
    wire: KnownDefenses,
    tensors: Sequence[Mapping[str, Tensor]],
    noise: float,
    head: tuple[str, str | None],
    signals: Sequence[Sequence[Signals]],
    steps: Steps,
    clip_test: Sequence[bool],
) -> LayerReadings:
    """tensors: each origin's gradients by name, scaled to one pass; signals: of the model that it began with."""
    rows = [_one(wire, own, noise, head, signals[index], steps) for index, own in enumerate(tensors)]
    beta, spread, own, other, low, high = (torch.stack(part) for part in zip(*rows, strict=True))
    return LayerReadings(beta, spread, own, other, low, high, torch.tensor(clip_test))


def _one(
    wire: KnownDefenses,
    tensors: Mapping[str, Tensor],
    noise: float,
    head: tuple[str, str | None],
    signals: Sequence[Signals],
    steps: Steps,
) -> tuple[Tensor, ...]:
    weight, bias = head
    classes = len(tensors[weight])
    beta = torch.zeros(classes, dtype=torch.float64)
    variance = torch.full_like(beta, torch.inf)
    own, other = torch.zeros_like(beta), torch.zeros_like(beta)
    low, high = torch.full_like(beta, -torch.inf), torch.full_like(beta, torch.inf)
    if bias is not None and not wire.effect.no_last_bias:
        beta = tensors[bias].double()
        variance = torch.full_like(beta, noise**2 + wire.rounding(tensors[bias]) ** 2)
        floor = wire.kept(tensors[bias])
        if floor:
            hidden = beta == 0
            variance[hidden] = torch.inf
            low[hidden], high[hidden] = -floor, floor
    rest = _rest(wire, tensors, weight, signals)
    if rest is not None:
        found, gain, own_rest, other_rest = rest
        coarse = max(wire.rounding(tensors[layer.weight]) for layer in signals) if wire.effect.rounding else 0.0
        push = 1 / steps.unit
        pushed = (-found).clamp_min(0) * steps.unit
        misfit = push**2 * (own_rest * pushed + other_rest * (steps.samples - pushed).clamp_min(0)) + 1e-12
        spread = gain * (noise**2 + coarse**2) + misfit
        known = variance.isfinite()
        share = torch.where(known, variance / (variance + spread), torch.ones_like(variance))
        share = share.nan_to_num(0.0)
        beta = torch.where(share > 0, (1 - share) * beta + share * found, beta)
        left = torch.where(known, variance * (1 - share), gain * (noise**2 + coarse**2))
        variance = left.where(spread.isfinite(), variance)
        own, other = share**2 * own_rest, share**2 * other_rest
        low = torch.where(share >= 1, -torch.inf, low)
        high = torch.where(share >= 1, torch.inf, high)
    return beta, variance.sqrt(), own, other, low, high


def _rest(
    wire: KnownDefenses, tensors: Mapping[str, Tensor], weight: str, signals: Sequence[Signals]
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Beta from everything but the last bias, its noise gain and its misfit, (classes,) each; None: nothing is left."""
    if not signals:
        return None
    if wire.effect.dropped:
        return _survivors(tensors[weight].double().flatten(1), signals[-1])
    kept = [layer for layer in signals if layer.weight != weight]
    if not wire.effect.no_last_layer:
        kept += [replace(layer, bias=None) for layer in signals if layer.weight == weight]
    reader = Reader.of(kept)
    if reader is None:
        return None
    return reader.beta(tensors), reader.noise_gain(), reader.own_spread, reader.other_spread


def _survivors(rows: Tensor, head: Signals) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Beta (classes,) of the rows (classes, in) of which some weights were sent; infinite gain where none was."""
    features = head.features.mean(0)
    sent = rows != 0
    energy = (sent * features.square()).sum(1)
    beta = torch.where(energy > 0, (rows * features).sum(1) / energy.clamp_min(1e-30), torch.zeros_like(energy))
    doubt = torch.full_like(beta, COUNTS.few_weights_doubt**2)
    return beta, torch.where(energy > 0, 1 / energy.clamp_min(1e-30), torch.inf), doubt, torch.zeros_like(beta)
