"""Class shares by rehearsal: trainings of made-up clients, and a regression of their shares on their last bias.

T plain SGD steps change the last bias by lr * T * (r - p), r the shares and p what the model predicted on the way. How
p follows r is what path bases guess from both ends of the walk; where the walk turns on its way, the guess fails. An
adversary with auxiliary data can walk itself: it draws compositions around a first guess, trains on auxiliary samples
as the client does, from the same model, and regresses the compositions on what the trainings do to the bias. That
assumes nothing about the optimizer. The error of leaving one rehearsal out says how far the result is to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

# Index lists of made-up clients' auxiliary samples to the change of the last layer (clients, outputs, features + 1).
Rehearse: TypeAlias = Callable[[list[Tensor]], Tensor]

BROAD = 12.0  # concentration of the first draw, around a first guess
EVEN = 0.3  # of the first draw's centre that is even shares: the first guess may be far off
NARROWEST = 400.0  # concentration of a later draw, at most
SPREAD = 2.0  # times the error so far: how widely a later draw is spread
LEAST = 0.02  # of each share in a later draw's centre: a class that seems absent is still tried
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # tried, over the mean variance
FAR = 2.0  # times as far from the rehearsals' mean as the farthest of them: nothing that was rehearsed
SMALLEST_ERROR = 0.005  # that is believed
FARTHEST = 4.0  # deviations from the rehearsals' mean: beyond them nothing is extrapolated
FORWARD_RIDGE = 1e-3  # of the regression of the bias on the shares, over the mean variance
THERE = 4.5  # deviations above the bias of those who lack a class: the client has it


@dataclass(frozen=True, eq=False)
class Seen:
    """One round of the client in question: what it sent, and how to rehearse that round."""

    moved: Tensor  # (outputs, features + 1) the change of the last layer
    samples: int
    rehearse: Rehearse


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """What rehearsals of one round say."""

    shares: Tensor  # (classes,) >= 0, adding up to 1
    error: float  # mean L1 error of a rehearsal that is left out
    agreement: float  # correlation of left-out shares with their prediction
    near: bool  # whether what was sent lies among what the rehearsals sent
    excess: Tensor  # (outputs,) by how many deviations the client's bias rose higher than such shares make it rise


def rehearsed_shares(
    rounds: Sequence[Seen], first: Tensor, allowed: Tensor, labels: Tensor, rehearsals: int, rng: torch.Generator
) -> tuple[list[Rehearsed], Tensor]:
    """Of each round the shares (classes,) of the allowed classes, and these; the search begins at `first` (classes,).

    A broad draw of compositions for the first round finds the neighbourhood. Then each round is rehearsed there, as
    closely as the rounds before it have left the answer open. `labels` (n,) are those of the auxiliary samples. The
    agreement is that of the broad draw: among compositions that hardly differ nothing can agree. A class that was taken
    for absent, and whose bias rose higher than that of all who lack it, is there: then all begins anew with it.
    """
    count = int(allowed.sum())
    even = allowed.double() / count
    if count == 1:
        return [Rehearsed(even, SMALLEST_ERROR, 1.0, True, torch.zeros(0)) for _ in rounds], allowed
    broad = _rehearsed(rounds[0], (1 - EVEN) * first * allowed + EVEN * even, BROAD, labels, rehearsals, rng)
    results: list[Rehearsed] = []
    estimate, known = broad.shares, 0.0  # a weighted mean of rounds, the weights one over squared errors
    for one in rounds:
        error = known**-0.5 if known else broad.error
        concentration = min(max(count * (0.8 / (SPREAD * error)) ** 2, BROAD), NARROWEST)
        result = _rehearsed(one, allowed * (estimate + LEAST), concentration, labels, rehearsals, rng)
        missed = ~allowed & (result.excess > THERE)
        if not results and result.near and bool(missed.any()):
            return rehearsed_shares(rounds, estimate, allowed | missed, labels, rehearsals, rng)
        results.append(replace(result, agreement=broad.agreement))
        if result.near:
            weight = result.error**-2
            estimate = (known * estimate + weight * result.shares) / (known + weight)
            known += weight
    return results, allowed


def _rehearsed(
    one: Seen, centre: Tensor, concentration: float, labels: Tensor, rehearsals: int, rng: torch.Generator
) -> Rehearsed:
    centre = centre / centre.sum()
    drawn = compositions(centre, concentration, rehearsals, rng)
    moves = one.rehearse([deal(shares, one.samples, labels, rng) for shares in drawn])
    if not bool(torch.isfinite(moves).all()):
        return Rehearsed(centre, 2.0, 0.0, False, torch.zeros(moves.shape[1]))
    fitted = regress(drawn, _rise(moves), _rise(one.moved))
    return replace(fitted, near=_is_near(moves, one.moved))


def compositions(centre: Tensor, concentration: float, number: int, rng: torch.Generator) -> Tensor:
    """(number, classes) Dirichlet draws around `centre` (classes,); a class of share 0 stays absent."""
    seeded = np.random.default_rng(int(torch.randint(1 << 62, (1,), generator=rng)))
    present = centre > 0
    drawn = torch.zeros(number, len(centre), dtype=torch.float64)
    drawn[:, present] = torch.from_numpy(seeded.dirichlet((concentration * centre[present]).numpy(), number))
    return drawn


def deal(shares: Tensor, samples: int, labels: Tensor, rng: torch.Generator) -> Tensor:
    """(samples,) indices with the wanted shares (classes,); a class's samples repeat only after all were dealt."""
    counts = (shares * samples).floor().long()
    fullest = torch.topk(shares * samples - counts, samples - int(counts.sum())).indices
    counts[fullest] += 1
    dealt = []
    for label in torch.nonzero(counts).flatten():
        pool = torch.nonzero(labels == label).flatten()
        decks = -(-int(counts[label]) // len(pool))
        deck = torch.cat([pool[torch.randperm(len(pool), generator=rng)] for _ in range(decks)])
        dealt.append(deck[: int(counts[label])])
    return torch.cat(dealt)


def regress(shares: Tensor, observed: Tensor, target: Tensor) -> Rehearsed:
    """Ridge regression of shares (n, classes) on observed (n, outputs), applied to target (outputs,).

    The ridge is the one with the smallest left-out error, which costs no second fit.
    """
    mean, deviation = observed.mean(0), observed.std(0).clamp_min(1e-300)
    known, asked = (observed - mean) / deviation, ((target - mean) / deviation).clamp(-FARTHEST, FARTHEST)
    centre = shares.mean(0)
    gram = known @ known.T / known.shape[1]
    best: tuple[float, Tensor, Tensor] | None = None
    for ridge in RIDGES:
        inverse = torch.linalg.inv(gram + ridge * torch.eye(len(gram), dtype=gram.dtype))
        weights = inverse @ (shares - centre)
        left_out = weights / inverse.diagonal()[:, None]
        error = float(left_out.abs().sum(1).mean())
        if best is None or error < best[0]:
            best = error, centre + (known @ asked / known.shape[1]) @ weights, left_out
    assert best is not None
    error, found, left_out = best
    unexplained = float((left_out**2).sum() / ((shares - centre) ** 2).sum().clamp_min(1e-300))
    found = found.clamp_min(0)
    found = found / found.sum()
    excess = _excess(shares, observed, found, target)
    return Rehearsed(found, max(error, SMALLEST_ERROR), max(1 - unexplained, 0.0) ** 0.5, True, excess)


def _excess(shares: Tensor, observed: Tensor, found: Tensor, target: Tensor) -> Tensor:
    """(outputs,) how far target lies above what shares `found` make of it, in deviations of those who were observed."""
    mean, centre = observed.mean(0), shares.mean(0)
    deviation = shares - centre
    gram = deviation @ deviation.T
    ridge = FORWARD_RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    slope = deviation.T @ torch.linalg.solve(gram + ridge, observed - mean)
    rest = observed - mean - deviation @ slope
    above: Tensor = (target - mean - (found - centre) @ slope) / rest.std(0).clamp_min(1e-300)
    return above


def _rise(moves: Tensor) -> Tensor:
    """(..., outputs) how far each output rose: its bias, or the sum of its weights in a layer without bias."""
    bias = moves[..., -1]
    return bias if bool(bias.any()) else moves.sum(-1)


def _is_near(moves: Tensor, moved: Tensor) -> bool:
    """Whether `moved` is about as far from the mean of moves (n, ...) as they are: noise and clipping are not."""
    mean = moves.mean(0)
    return float((moved - mean).norm()) <= FAR * float((moves - mean).flatten(1).norm(dim=1).max())
