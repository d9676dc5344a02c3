"""Exact span: a linear layer moves by signals times inputs, so every record that was trained on lies in its row space.

With fewer records than inputs the row space is not the whole space, and a record that was not trained on sticks out.
Where the layer sees the records themselves, the spaces of all rounds are one, and are read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.membership.passive.observed import Observed
from fedspill.leaks.membership.passive.sample_layers import LayerName, RecordsAtLayer

_ABOVE_NOISE = 3.0  # singular values that exceed the first one beyond the records by this factor count as signal
_SPARE = 4  # dimensions that a layer must have beyond the records
_NEAREST = 1e-14  # least share outside a space; below it is rounding of float64


@dataclass(frozen=True, eq=False)
class SpanDirections:
    """The leading right singular vectors of a sender's change, and how clearly they end."""

    basis: Tensor  # (in, rank)
    gap: float  # the last singular value that counts over the first that does not


def leading_directions(square: Tensor, records: int | None) -> SpanDirections | None:
    """The row space of what `records` records made, from the sum (in, in) of D^T D; None where it fills the space.

    The first singular value beyond the records is noise (rounding, or a defense), and those that do not exceed it are
    not told from it. Where nobody says how many records there are, the space ends at the largest gap.
    """
    width = len(square)
    values, vectors = torch.linalg.eigh(square)
    sizes = values.flip(0).clamp_min(0).sqrt()
    if records is None:
        steps = sizes[:-1] / sizes[1:].clamp_min(1e-8 * float(sizes[0]) + 1e-300)
        records = int(steps[: width - _SPARE].argmax()) + 1 if width > _SPARE else width
    if records > width - _SPARE or float(sizes[0]) == 0:
        return None
    noise = float(sizes[records])
    rank = int((sizes[:records] > _ABOVE_NOISE * noise).sum())
    if rank == 0:
        return None
    return SpanDirections(vectors.flip(1)[:, :rank], float(sizes[rank - 1] / sizes[rank].clamp_min(1e-300)))


def nearness(directions: SpanDirections, inputs: Tensor) -> Tensor:
    """(records,) minus the log share of a record's square norm that lies outside the space."""
    whole = inputs.square().sum(1).clamp_min(1e-300)
    within = (inputs @ directions.basis).square().sum(1) / whole
    return -(1 - within).clamp_min(_NEAREST).log()


def best_layer(layers: Sequence[RecordsAtLayer], observed: Observed, records: int | None) -> RecordsAtLayer | None:
    """The layer with most room beyond the records, raw ones first; None where none has room."""
    rounds = len(observed.rounds)

    def room(layer: RecordsAtLayer) -> int:
        out = layer.signals.shape[1] or _outputs(observed, layer.name)
        if records is None:
            return layer.inputs.shape[1] - out if not layer.raw else layer.inputs.shape[1]
        fits = out * (rounds if layer.raw else 1) >= min(records, layer.inputs.shape[1])
        return layer.inputs.shape[1] - _SPARE - records if fits else -1

    fitting = [layer for layer in layers if room(layer) >= 0]
    return max(fitting, key=lambda layer: (layer.raw, room(layer)), default=None)


def _outputs(observed: Observed, name: LayerName) -> int:
    change = next(iter(observed.rounds[0].changes.values()))
    return len(change[name.weight])


def square_of(change: Tensor) -> Tensor:
    """(in, in) D^T D, every message with the same weight: late rounds move little and show as much."""
    scale = float(change.norm())
    return change.T @ change / scale**2 if scale > 0 else change.new_zeros(change.shape[1], change.shape[1])
