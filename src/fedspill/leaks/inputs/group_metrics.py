"""How far samples behind a sum are put together by client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.metrics import CLEAR
from fedspill.leaks.inputs.scoring.pairs import answered_origins, real_inputs
from fedspill.leaks.inputs.scoring.similarity import Range, matched, psnr
from fedspill.metric import Measured, Metric, clusters_of
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class InputsGrouped(Metric[Inputs]):
    """Share of the pairs of samples that are said to be one client's which are; a sample below 30 dB is nobody's.

    Chance is the share of all pairs behind the message that are one client's.
    """

    name: ClassVar[str] = "inputs-grouped"
    title: ClassVar[str] = "Pairs of samples put together that are one client's"
    guesses = Inputs
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Inputs, truth: Truth) -> Measured:
        origins = answered_origins(guess)
        of = [guess.of[index] for index in origins]
        if guess.groups is None or not all(truth.has(origin, "used_samples") for origin in of):
            raise NotScored("the attack puts no samples together by client")
        values, chance, trials, scored = [], [], [], []
        span = Range.of(real := real_inputs(of, truth))
        for index, origin, own in zip(origins, of, real, strict=True):
            held_by = truth.get(origin, "used_samples")[:, 0]
            together = _pairs(groups := guess.groups[index]) & (groups >= 0)
            if not bool(together.any()):
                continue
            client = _clients(guess.samples[index], own, held_by, span)
            right = _pairs(client) & (client >= 0)
            values.append(right[together].double().mean())
            chance.append(_pairs(held_by)[_pairs(torch.zeros_like(held_by))].double().mean())
            trials.append(int(together.sum()) // 2)
            scored.append(origin)
        if not values:
            raise NotScored("the attack puts no samples together by client")
        return Measured(torch.stack(values), torch.stack(chance), torch.tensor(trials), *clusters_of(scored))


def _pairs(numbers: Tensor) -> Tensor:
    """(n, n) whether two different places have the same number."""
    return (numbers[:, None] == numbers) & ~torch.eye(len(numbers), dtype=torch.bool)


def _clients(samples: Tensor, real: Tensor, held_by: Tensor, span: Range) -> Tensor:
    """(k,) whose each sample is; -1 for what is no sample."""
    found, true = span.unit(samples.reshape(len(samples), *real.shape[1:])), span.unit(real)
    client = torch.full((len(samples),), -1)
    for place, index in enumerate(matched(found, true).tolist()):
        if index >= 0 and float(psnr(found[index][None], true[place][None])) > CLEAR:
            client[index] = held_by[place]
    return client
