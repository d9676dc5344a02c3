"""Reads the samples of a batch out of the first layer's gradient, one after the other, each with a certificate.

A reading is a row of the gradient, or the difference of two rows that are alike but for their threshold. What is alone
in one is found (lone_samples.py) and taken out of the gradient, which leaves others alone in their readings, until
nothing more is found.

Samples that the network itself vouches for go first: for some label it sends back for them what was read. Where there
are none of these left, one is taken that leaves another reading empty, by another number of the sample, if it is taken
out. What is vouched for in the end is what fits to all that was found. Nothing of this uses the truth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.planting.explained_readings import explaining
from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.leading_candidates import leading_on
from fedspill.planting.lone_samples import LEFT, SAME, BatchReader, LoneSample, known_already, lone_samples, vouched
from fedspill.planting.readings import FLOOR, Readings, readings_of


@dataclass(frozen=True, eq=False)
class Peeled:
    """The samples that were vouched for, and their labels."""

    samples: Tensor  # (found, *shape)
    labels: Tensor  # (found,)


@torch.no_grad()
def peel(
    network: PlantedNetwork,
    packing: InputPacking,
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    samples: int,
    readings: Readings | None = None,
    *,
    labels: Tensor | None = None,
    again: bool = True,
) -> Peeled:
    """All samples that can be vouched for in the mean gradient over `samples` of them, in float64.

    weight_gradient (rows, features) and bias_gradient (rows,) are those of the first layer. `labels` are those that the
    batch may have; of very many, one fits a mixture by chance. Without `again` only what is alone in a reading at once
    is found.
    """
    first, second = network.first, network.second
    if readings is None:
        readings = readings_of(first.weight, first.bias, second.weight)
    whole, biases = weight_gradient.clone(), bias_gradient.clone()
    floor = FLOOR * float(biases.abs().max())
    reader = BatchReader(network, packing, readings, samples, floor, labels)
    look = torch.ones_like(readings.rows, dtype=torch.bool)
    found: list[LoneSample] = []
    waiting: dict[int, LoneSample] = {}
    while len(found) < samples:
        part = readings.of(biases)
        empty = part.abs() <= floor
        for place in look.nonzero().flatten().tolist():
            waiting.pop(place, None)
        open_ = (look & ~empty).nonzero().flatten()
        seen = lone_samples(reader, open_, (readings.at(open_).of(whole), part[open_]))
        waiting |= {one.place: one for one in seen}
        fitting = sorted(waiting.values(), key=lambda one: one.off)
        able = _distinct((one for one in fitting if not bool((one.inside & empty).any())), found, packing)
        fresh = [one for one in able if one.near]
        if not fresh:
            able = _distinct(able, found, packing, LEFT)
            fresh = explaining(able, whole, biases, readings) or leading_on(reader, able, whole, biases)
        fresh = fresh[: samples - len(found)]
        if not fresh:
            break
        found += fresh
        if not again:
            break
        sent = torch.stack([one.sent for one in fresh])  # (n, rows)
        whole -= sent.T @ torch.stack([one.features for one in fresh])
        biases -= sent.sum(0)
        look = (readings.of(sent.T).abs() > 0).any(1)
    if again:
        found = vouched(found, whole, biases, reader)
    stack = torch.stack([one.x for one in found]) if found else whole.new_zeros(0, *packing.shape)
    return Peeled(stack, torch.tensor([one.label for one in found], dtype=torch.int64))


def _distinct(
    able: Iterable[LoneSample], found: list[LoneSample], packing: InputPacking, same: float = SAME
) -> list[LoneSample]:
    """Each sample once, however many readings it is alone in, and without those found before."""
    known, twins = [one.x for one in found], dict[bytes, list[Tensor]]()
    fresh = []
    for one in able:
        alike = twins.setdefault(one.mark, [])
        if not known_already(one.x, alike, packing, same):  # else the same sample, found through another reading
            alike.append(one.x)
            if not known_already(one.x, known, packing, same):
                known.append(one.x)
                fresh.append(one)
    return fresh
