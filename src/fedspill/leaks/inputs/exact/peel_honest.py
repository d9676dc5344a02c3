"""Larger batches of an honest network: samples that are alone in a rectified row are found, taken out, and free others.

Nothing is planted. A row of the first layer that one sample of a batch wakes holds that sample, and what a found sample
sent to all other rows is known (planting/peel.py). How large a batch may be depends on how rarely rows fire.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.peel import peel
from fedspill.planting.reading_place import ReadingPlace


def peel_honest(attacked: AttackedMessage, known: Tensor) -> RecoveredInputs | None:
    """All samples that can be vouched for, of one step; None where the network does not allow it, or none is found.

    `known` (n, *shape) are inputs at hand, which say between which values inputs lie.
    """
    if attacked.steps != 1 or attacked.norms.by_batch:
        return None
    try:
        place = ReadingPlace.of(attacked.model, known)
    except NotApplicable:
        return None
    if place.through is not None:  # honest convolutions do not pass images on as they are
        return None
    if place.layer.weight not in attacked.gradients or place.layer.bias not in attacked.gradients:  # held back
        return None
    network = PlantedNetwork(attacked.model, place.layer)
    weight, bias = attacked.gradients[place.layer.weight], attacked.gradients[place.layer.bias]
    found = peel(network, place.packing(), weight, bias, attacked.samples)
    if not len(found.samples):
        return None
    return RecoveredInputs(found.samples, torch.ones(len(found.samples), dtype=torch.bool), found.labels)
