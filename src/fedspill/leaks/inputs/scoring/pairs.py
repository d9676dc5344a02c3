"""Recovered inputs beside the true ones: who is matched with whom, one to one, and how well."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.errors import NothingToGuess, NoTruth, NotScored
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.scoring.similarity import Range, matched, psnr
from fedspill.trace import Origin, Truth


def answered_origins(guess: Inputs) -> list[int]:
    """The origins that the attack answers for."""
    found = [index for index, yes in enumerate(guess.answered.tolist()) if yes]
    if not found:
        why = f": {guess.notes[-1]}" if guess.notes else ""
        raise NothingToGuess(f"the attack does not apply to what was observed{why}")
    return found


def real_inputs(of: Sequence[Origin], truth: Truth) -> list[Tensor]:
    """The true samples of each origin."""
    for origin in of:
        if not truth.has(origin, "inputs"):
            raise NoTruth(
                f"the samples of {origin.sender} in round {origin.round} are not at hand: recordings do not hold inputs"
            )
    return [truth.get(origin, "inputs") for origin in of]


def matched_guesses(samples: Tensor, real: Tensor, span: Range) -> Tensor:
    """(n, *shape) in [0, 1]: for each true sample the guessed one matched with it, grey where there is none."""
    if samples.numel() and samples[0].numel() != real[0].numel():
        raise NotScored(f"guessed samples have shape {tuple(samples.shape[1:])}, true ones {tuple(real.shape[1:])}")
    found = span.unit(samples.reshape(len(samples), *real.shape[1:]))
    order = matched(found, span.unit(real))
    grey = torch.full_like(real, 0.5, dtype=torch.float64)
    return torch.stack([found[i] if i >= 0 else grey[n] for n, i in enumerate(order.tolist())])


def guess_psnr(samples: Tensor, real: Tensor, span: Range) -> Tensor:
    """(k,) PSNR of each guessed sample against the true one matched with it; 0 for the surplus."""
    order = matched(span.unit(samples.reshape(len(samples), *real.shape[1:])), span.unit(real))
    values = psnr(matched_guesses(samples, real, span), span.unit(real))
    result = torch.zeros(len(samples), dtype=torch.float64)
    result[order[order >= 0]] = values[order >= 0]
    return result
