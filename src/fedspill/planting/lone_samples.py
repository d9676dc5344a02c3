"""Samples that are alone in a reading, and how sure that is.

Where one sample is in a reading, the quotient of its weight and bias part is that sample. Two samples give a mixture,
which looks like an image too. Three things tell. For some label the network sends back for a sample what was read. It
lies where it was found: its values are possible, and no reading that it must be part of is empty. And where it is part
of readings by other numbers, these are empty once it and the other samples found there are taken out.

The network's word is not always to be had: a deep one has units so near zero that a client's rounding switches them, so
that a few samples in a hundred send back something that is off by a thousandth and more. How strong a sample is, is
then what was read, and other readings vouch for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedspill.planting.first_layer import Passed, PlantedNetwork
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.readings import Readings

# Relative, of what a sample sends back. What a row gets by itself was 1e-6 off in nine of ten cases, and since rows are
# many, mixtures come by chance as near as 1e-4. Differences of float32 sums of 1,000 samples were 1.4e-5 off at most.
# The more labels there are, the more often one of them fits a mixture, so less is allowed then.
TOLERANCE, TOLERANCE_ALONE, _ROUNDED = 1e-4, 3e-6, 2e-5
FEW_LABELS = 10
LOOSE = 0.25  # what rounding may change where units of a deep network switch; ResNet18: 0.15 (64 images, seed 69100)
SLACK = 0.02  # of the range of inputs: a value so far outside is no rounding
SAME = 1e-3  # of the range, root mean square: two findings that differ by less are one sample, read twice
LEFT = 0.03  # of what a sample puts into a reading: with less left, nothing of its size is there any more
_AS_FAR = 10.0  # what is off by a tenth of it counts as being as far off: such errors spread over several decades
_DOUBT = 1e-2  # that a finding is none, above which it is not vouched for


@dataclass(frozen=True, eq=False)
class BatchReader:
    """What is known of the batch whose mean gradient is read, and by what it is read."""

    network: PlantedNetwork
    packing: InputPacking
    readings: Readings
    samples: int
    floor: float  # a reading of biases below it is rounding
    labels: Tensor | None = None  # those that it may have, all by default


@dataclass(frozen=True, eq=False)
class LoneSample:
    """What a reading holds if one sample is alone in it."""

    place: int  # of the reading
    x: Tensor
    label: int
    features: Tensor  # (features,) what the layer gets of it
    sent: Tensor  # (rows,) what it sends back, as a part of the batch's mean
    inside: Tensor  # (readings,) which readings it is part of
    others: Tensor  # (readings,) those of them that are differences by other numbers: what it can be held against
    mark: bytes  # which rows it wakes
    off: float  # relative, by which the network sends back something else for it
    chance: float  # that some label fits a mixture as well
    near: bool  # whether the network vouches for it by itself

    def left_in(self, weight: Tensor, bias: Tensor, readings: Readings) -> Tensor:
        """(others,) whether anything is left there of gradients (rows, features), (rows,) that it was taken out of."""
        some = readings.at(self.others.nonzero().flatten())
        most = LEFT * some.of(self.sent).abs()
        whole = some.of(weight).square().mean(1).sqrt()
        return (some.of(bias).abs() > most) | (whole > most * self.features.square().mean().sqrt())


@torch.no_grad()
def lone_samples(reader: BatchReader, places: Tensor, held: tuple[Tensor, Tensor]) -> list[LoneSample]:
    """What the readings at `places` hold, where that can be a sample of the batch; the best fitting first.

    held (n, features) and (n,) are what is read there of weights and biases.
    """
    whole, read = held
    x = reader.packing.unpack(whole / read[:, None])
    sound = _possible(x, reader.packing)
    places, read = places[sound], read[sound]
    if not len(places):
        return []
    x = x[sound].clamp(reader.packing.low, reader.packing.high)
    readings, some = reader.readings, reader.readings.at(places)
    passed = reader.network.passed(x)
    fit = _fitted(reader, passed, some, read)
    active = (passed.z.detach() > 0).to(read)  # (n, rows)
    inside = readings.of(active.T) != 0  # (readings, n)
    features, marks = passed.features.to(read), active.bool().cpu().numpy()
    tolerance = min(TOLERANCE, max(TOLERANCE * FEW_LABELS / fit.labels, _ROUNDED))
    near = fit.off < torch.where(some.share == 0, TOLERANCE_ALONE, tolerance)
    found = []
    for i in fit.off.argsort().tolist():
        place, own, off = int(places[i]), inside[:, i], float(fit.off[i])
        if not bool(own[place]) or off >= LOOSE:
            continue
        others = own & (readings.share != 0) & (readings.along != readings.along[place])
        found.append(
            LoneSample(
                place=place,
                x=x[i],
                label=int(fit.label[i]),
                features=features[i],
                sent=fit.sent[i],
                inside=own,
                others=others,
                mark=marks[i].tobytes(),
                off=off,
                chance=min(fit.labels * off, 1.0),
                near=bool(near[i]),
            )
        )
    return found


def _possible(x: Tensor, packing: InputPacking) -> Tensor:
    """(n,) whether all values of x (n, *shape) are ones that inputs have."""
    slack = SLACK * (packing.high - packing.low)
    flat = x.flatten(1)
    return ((flat > packing.low - slack) & (flat < packing.high + slack)).all(1)


class _Fit(NamedTuple):
    """How what the network sends back for samples fits what was read of them."""

    off: Tensor  # (n,) relative, for the label that fits best
    label: Tensor  # (n,)
    sent: Tensor  # (n, rows) with that label, as a part of the batch's mean
    labels: int  # that were tried


def _fitted(reader: BatchReader, passed: Passed, some: Readings, read: Tensor) -> _Fit:
    """read (n,) is what was read of the samples that were passed, sample i in reading i of `some`."""
    network, labels = reader.network, reader.labels
    expected = network.sent_by_label(passed, some.rows, some.less, some.share.to(passed.z)).to(read) / reader.samples
    expected = expected if labels is None else expected[:, labels]
    off, best = ((read[:, None] - expected).abs() / expected.abs().clamp_min(1e-300)).min(1)
    label = best if labels is None else labels[best]
    sent = network.sent(passed, label).to(read) / reader.samples
    # What was read is nearer to the truth than what the network says, unless reading rounds more.
    measured = (off > reader.floor / read.abs()) & (off < LOOSE)
    factor = torch.where(measured, read / expected.gather(1, best[:, None])[:, 0], torch.ones_like(read))
    return _Fit(off, label, sent * factor[:, None], expected.shape[1])


def vouched(found: Sequence[LoneSample], weight: Tensor, bias: Tensor, reader: BatchReader) -> list[LoneSample]:
    """Those of all that was found that hardly can be anything else; weight and bias are what is left without it.

    Held against each is a mixture of two samples: that a label fits it as well; that the two share a bin by this number
    and by each of the others by which nothing is left, though unlike. A sample leaves something in a reading where one
    that was not found is too, and may be far from what the network sends back. How often that is so, all findings tell
    together; the rarer it is, the more it says against one.
    """
    left = [one.left_in(weight, bias, reader.readings) for one in found]
    often = (sum(int(some.sum()) for some in left) + 1) / (sum(len(some) for some in left) + 2)
    offs = torch.tensor([one.off for one in found], dtype=torch.float64)
    sure = []
    for one, some in zip(found, left, strict=True):
        filled = int(some.sum())
        bins = int((reader.readings.along == reader.readings.along[one.place]).sum())
        shared = min(reader.samples / bins ** (1 + len(some) - filled), 1.0)
        as_far = 1.0 if one.near else int((offs >= one.off / _AS_FAR).sum()) / len(found)
        if one.chance * shared / often**filled / as_far < _DOUBT or not len(some):
            sure.append(one)
    return sure


def known_already(x: Tensor, found: Sequence[Tensor], packing: InputPacking, same: float = SAME) -> bool:
    """Whether a finding is one of those found before, read twice."""
    if not found:
        return False
    apart = (torch.stack(list(found)) - x).flatten(1).square().mean(1).sqrt().min()
    return float(apart) < same * (packing.high - packing.low)
