"""Reads bins after several local steps, where no certificate holds: what two bins agree on is taken for a sample.

A client that makes many steps moves the planted rows a little, and a sample sends back something else in every step.
What it leaves in its bin of one number and in its bin of another is still a multiple of itself in both. Where two bins
that a finding belongs into point the same way, each holds that sample alone; it is then taken out of the others. What
is left over is returned too, the strongest first. Some of all this is wrong, and nothing says which.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.lone_samples import known_already
from fedspill.planting.readings import readings_of

ALIKE = 1e-3  # by which the cosine of two bins with one sample in them may fall short of 1
_SLACK = 0.06  # of the range of inputs that rows which moved may take a value outside
_FAINT = 1e-3  # of the strongest reading: what is weaker is left from rows that moved
_SAME = 1e-2  # of the range, root mean square: by so much two readings of one sample may differ
_PASSES = 12


@torch.no_grad()
def agreed(
    network: PlantedNetwork, packing: InputPacking, weight_gradient: Tensor, bias_gradient: Tensor, samples: int
) -> tuple[Tensor, int]:
    """(at most `samples`, *shape) what was found, and how many of the first of these two bins agreed on.

    weight_gradient (rows, features) and bias_gradient (rows,) are what moved the first layer, of any scale, in float64.
    """
    readings = readings_of(network.first.weight, network.first.bias, network.second.weight)
    whole, part = readings.of(weight_gradient), readings.of(bias_gradient)
    found: list[Tensor] = []
    for _ in range(_PASSES):
        places, x = _possible(whole, part, packing)
        if not len(places):
            break
        active = (network.passed(x).z.detach() > 0).to(whole.dtype)
        inside = readings.of(active.T) != 0  # (readings, n)
        unit = whole / whole.norm(dim=1, keepdim=True).clamp_min(1e-300)
        same = (unit @ unit[places].T).abs() > 1 - ALIKE
        same[places, torch.arange(len(places))] = False
        sure = (inside & same).any(0) & inside[places, torch.arange(len(places))]
        fresh = 0
        for index in sure.nonzero().flatten()[part[places][sure].abs().argsort(descending=True)].tolist():
            if len(found) < samples and not known_already(x[index], found, packing, _SAME):
                found.append(x[index])
                fresh += 1
                into = inside[:, index]
                alone = into & same[:, index]
                alone[places[index]] = True
                size = part[alone].mean()
                whole[into & ~alone] -= size * whole[places[index]] / part[places[index]]
                part[into & ~alone] -= size
                whole[alone], part[alone] = 0.0, 0.0
        if not fresh:
            break
    agreed_on = len(found)
    places, x = _possible(whole, part, packing)
    for index in part[places].abs().argsort(descending=True).tolist():
        if len(found) < samples and not known_already(x[index], found, packing, _SAME):
            found.append(x[index])
    return (torch.stack(found) if found else x[:0]), agreed_on


def _possible(whole: Tensor, part: Tensor, packing: InputPacking) -> tuple[Tensor, Tensor]:
    """Which readings hold values that inputs can have, and these (n, *shape)."""
    places = (part.abs() > _FAINT * part.abs().max().clamp_min(1e-300)).nonzero().flatten()
    x = packing.unpack(whole[places] / part[places, None])
    slack = _SLACK * (packing.high - packing.low)
    sound = ((x > packing.low - slack) & (x < packing.high + slack)).flatten(1).all(1)
    return places[sound], x[sound].clamp(packing.low, packing.high)
