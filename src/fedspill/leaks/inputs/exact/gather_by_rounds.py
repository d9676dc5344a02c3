"""Which samples are one client's: those that take part in the same rounds.

A sample that was found in one round is looked for in all others. The first layer's gradient of a round is a sum of
signals times inputs, so that a sample took part if it lies in the row space, whether or not a search found it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.gradient_rank import room, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import first_layer
from fedspill.leaks.inputs.exact.sample_roots import ALIKE
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs

PRESENT, ABSENT = 1e-3, 1e-2  # share of a sample outside of a row space; between both nobody can tell
COINCIDENCE = 0.05  # samples of others that may be expected in the same rounds by chance, for a group to stand


@dataclass(frozen=True, eq=False)
class Gathered:
    """The samples that were vouched for in any round, once each."""

    samples: Tensor  # (n, *shape)
    found_in: Tensor  # (n, rounds) whether the round's own search found it
    present: Tensor  # (n, rounds) whether it took part
    groups: Tensor  # (n,) the same number for samples of one client; -1 where that is not known
    note: str = ""  # why there are no groups


def gather_by_rounds(
    messages: Sequence[AttackedMessage], answers: Sequence[RecoveredInputs], rng: torch.Generator
) -> Gathered:
    """All samples that were vouched for, where each took part, and the groups that this makes."""
    shape = next((answer.samples.shape[1:] for answer in answers if bool(answer.certified.any())), torch.Size([1]))
    samples = torch.zeros(0, *shape, dtype=torch.float64)
    found_in = torch.zeros(0, len(messages), dtype=torch.bool)
    for number, answer in enumerate(answers):
        for x in answer.samples[answer.certified].double():
            apart = (samples - x).flatten(1).norm(dim=1) / x.norm().clamp_min(1e-300)
            if not bool((apart < ALIKE).any()):
                samples = torch.cat([samples, x[None]])
                found_in = torch.cat([found_in, torch.zeros(1, len(messages), dtype=torch.bool)])
                apart = torch.cat([apart, apart.new_zeros(1)])
            found_in[int(apart.argmin()), number] = True
    nobody = torch.full((len(samples),), -1)
    if not len(samples):
        return Gathered(samples, found_in, found_in, nobody)
    outside = torch.stack([_outside(message, samples, rng) for message in messages], 1)
    told = ((outside < PRESENT) | (outside > ABSENT)).all(1)
    present = found_in | (outside < PRESENT)
    return Gathered(samples, found_in, present, *_groups(present, told))


def _outside(message: AttackedMessage, samples: Tensor, rng: torch.Generator) -> Tensor:
    """(n,) the share of each sample that the round's row space does not hold; between present and absent if unknown."""
    unknown = torch.full((len(samples),), (PRESENT * ABSENT) ** 0.5, dtype=torch.float64)
    try:
        layer = first_layer(message.model)
    except CannotRecover:
        return unknown
    gradient = message.gradients.get(layer.weight_name)
    if gradient is None or gradient.shape[1] != samples[0].numel():
        return unknown
    rows = truncated_svd(gradient.double(), message.samples, rng)
    if rows is None or rows.tail > PRESENT or rows.rank >= room(gradient):  # the space holds whatever there is
        return unknown
    flat = samples.flatten(1)
    outside: Tensor = (flat - (flat @ rows.right) @ rows.right.T).norm(dim=1) / flat.norm(dim=1).clamp_min(1e-300)
    return outside


def _groups(present: Tensor, told: Tensor) -> tuple[Tensor, str]:
    """(n,) the same number for samples of exactly the same rounds, and a note where there are no groups.

    If others took part in each round with the rate that samples have, independently, r^k (1 - r)^(R - k) of them would
    share k given rounds of R. A group stands if not even one sample is expected to be in it for that reason.
    """
    groups = torch.full((len(present),), -1)
    rounds = present.shape[1]
    rate = present.double().mean(0)  # of samples in each round
    patterns, which = torch.unique(present[told], dim=0, return_inverse=True)
    by_chance = torch.where(patterns, rate, 1 - rate).prod(1) * len(present)
    stands = (by_chance < COINCIDENCE) & (patterns.sum(1) > 1) & (patterns.sum(1) < rounds)
    numbers = torch.where(stands, torch.arange(len(patterns)), -1)
    groups[told] = numbers[which]
    if bool((groups >= 0).any()):
        return groups, ""
    return groups, "no samples are put together by client: the rounds in which they took part do not tell them apart"
