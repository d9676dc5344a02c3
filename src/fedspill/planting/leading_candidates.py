"""Candidates that lead on: once such a one is taken out, another reading holds a sample that was hidden beside it.

What is left of a reading without something that never was in it is no sample: its values are impossible, or no label
fits. So a candidate of which the network is not sure is believed if what it frees fits too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.planting.lone_samples import BatchReader, LoneSample, known_already, lone_samples

_CHANCE = 1e-3  # that labels fit a mixture and what is left without it; as for one sample of ten labels


@torch.no_grad()
def leading_on(reader: BatchReader, able: Sequence[LoneSample], weight: Tensor, bias: Tensor) -> list[LoneSample]:
    """Those candidates that lead on, of gradients weight (rows, features) and bias (rows,)."""
    return [one for one in able if one.chance < 1 and _leads_on(reader, one, weight, bias)]


def _leads_on(reader: BatchReader, one: LoneSample, weight: Tensor, bias: Tensor) -> bool:
    places = one.others.nonzero().flatten()
    some = reader.readings.at(places)
    own = some.of(one.sent)
    held, read = some.of(weight) - own[:, None] * one.features, some.of(bias) - own
    filled = read.abs() > reader.floor
    freed = lone_samples(reader, places[filled], (held[filled], read[filled]))
    return any(
        one.chance * other.chance < _CHANCE and not known_already(other.x, [one.x], reader.packing) for other in freed
    )
