"""Client canaries: clients whose updates are known directions, in a round or not by a coin (Andrew et al. 2024).

At the clip's norm they measure the noise, at thirty times the clip they test the clipping. Pooled over canaries the
statistic sees any noise that is missing. Within each canary, over rounds, it also sees noise that repeats. Canaries
that lie in one tensor see noise that misses a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dp_audit.gaussian_privacy import MOST_MU, epsilon_of
from fedspill.dp_audit.lower_bounds import Scores, Separation, separation, separation_of
from fedspill.dp_audit.mechanism import Claim, ClientMechanism
from fedspill.dp_audit.replay import replay
from fedspill.dp_audit.result import DpResult, DpTest, shared_confidence

_REAL = 20  # clients beside the canaries
_MOST = 600  # canaries in a design
_ALONE = 64  # the same where each takes a message of its own, and no other canary disturbs it
_MEMORY = 2**24  # numbers that all canaries of a design may have together
_ROUNDS = 16
_PER_TENSOR = 24  # rounds of the designs that look at single tensors, which have few canaries
_FEWEST = 8  # rounds below which canaries of single tensors are left to replay, which looks at each tensor too
_ASSUMPTION = "normal noise"


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """What canaries show: (canaries, rounds) in units of the clip, whether each was in, and its tensor."""

    values: Tensor
    inside: Tensor
    tensor: Tensor  # (canaries,) index


def audit_clients(what: str, mechanism: ClientMechanism, claim: Claim, rng: torch.Generator) -> DpResult:
    """Replay first, then canaries at once and thirty times the clip, spread out and tensor by tensor."""
    statistics = 6  # replay, pooled and within at 1 x and 30 x, and tensors
    tests = replay(mechanism, claim, rng, statistics=statistics)
    everywhere = spread_out(mechanism, rng)
    for scale in (1.0, 30.0):
        found = canary_scores(mechanism, claim, everywhere, scale, _ROUNDS, rng)
        where = f"client canaries at {scale:g} x the clip"
        confidence = shared_confidence(statistics)
        tests.append(_test(f"{where}, pooled", claim, pooled(found, confidence), confidence))
        tests.append(_test(f"{where}, within each", claim, within(found, confidence), confidence))
    rounds = _rounds_of_tensors(mechanism)
    if rounds >= _FEWEST:
        directions, tensor = in_tensors(mechanism, rng)
        found = canary_scores(mechanism, claim, directions, 1.0, rounds, rng, tensor)
        tests += list(_of_tensors(mechanism, claim, found, shared_confidence(statistics * len(mechanism.spans))))
    return DpResult(what=what, claimed=claim.claimed, delta=claim.delta, tests=tuple(tests))


def spread_out(mechanism: ClientMechanism, rng: torch.Generator) -> Tensor:
    """(canaries, numbers) orthonormal, over all tensors; at most a quarter of the dimensions."""
    numbers = mechanism.numbers
    # Two thirds of the calls are for these: two scales, every canary in every round.
    most = min(_ALONE, mechanism.calls // (3 * _ROUNDS)) if mechanism.alone else _MOST
    many = max(2, min(most, numbers // 4, _MEMORY // numbers))
    basis: Tensor = torch.linalg.qr(torch.randn(numbers, many, generator=rng))[0]
    return basis.T


def in_tensors(mechanism: ClientMechanism, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Orthonormal canaries (canaries, numbers) that lie in one tensor each, and which (canaries,)."""
    rows, places = [], []
    tensors = len(mechanism.spans)
    most = min(10, max(1, mechanism.calls // (3 * _PER_TENSOR * tensors))) if mechanism.alone else 40
    each = max(1, min(most, _MEMORY // mechanism.numbers // tensors))
    for place, span in enumerate(mechanism.spans.values()):
        size = span.stop - span.start
        many = min(each, max(1, size // 4))
        part = torch.zeros(many, mechanism.numbers)
        part[:, span] = torch.linalg.qr(torch.randn(size, many, generator=rng))[0].T
        rows.append(part)
        places += [place] * many
    return torch.cat(rows), torch.tensor(places)


def _rounds_of_tensors(mechanism: ClientMechanism) -> int:
    return min(_PER_TENSOR, mechanism.calls // (3 * len(mechanism.spans))) if mechanism.alone else _PER_TENSOR


def canary_scores(
    mechanism: ClientMechanism,
    claim: Claim,
    directions: Tensor,
    scale: float,
    rounds: int,
    rng: torch.Generator,
    tensor: Tensor | None = None,
) -> CanaryScores:
    """Runs the rounds. A mechanism of single messages gets one canary a message, in or turned around."""
    many, size = directions.shape
    inside = torch.rand(many, rounds, generator=rng) < 0.5
    values = torch.zeros(many, rounds, dtype=torch.double)
    sent = scale * claim.clip * directions
    for number in range(rounds):
        if mechanism.alone:
            for row in range(many):
                sign = 1.0 if bool(inside[row, number]) else -1.0
                message = mechanism.release(sign * sent[row][None], number * many + row)
                values[row, number] = float((message @ directions[row]).double())
        else:
            real = torch.randn(_REAL, size, generator=rng)
            real = claim.clip * real / real.norm(dim=1, keepdim=True)
            # The real clients' part along the canaries is not what is measured: canaries know where they point.
            real = real - (real @ directions.T) @ directions
            message = mechanism.release(torch.cat([real, sent[inside[:, number]]]), number)
            values[:, number] = (directions @ message).double()
    return CanaryScores(values / claim.clip, inside, torch.zeros(many, dtype=torch.int64) if tensor is None else tensor)


def pooled(found: CanaryScores, confidence: float) -> Separation:
    """Of one round, over all canaries and rounds."""
    return separation(*_sides(found.values - found.values.mean(0), found.inside), confidence)


def within(found: CanaryScores, confidence: float) -> Separation:
    """Of one round, each canary compared with itself in other rounds: what repeats in every round cancels."""
    present = found.inside.double()
    values = found.values - found.values.mean(1, keepdim=True)
    present = present - present.mean(1, keepdim=True)
    total = float(present.square().sum())
    free = found.values.numel() - len(found.values) - 1
    if total == 0 or free < 2:
        return Separation(0.0, 0.0)
    slope = float((values * present).sum()) / total
    spread = math.sqrt(float((values - slope * present).square().sum()) / free)
    return separation_of(slope, spread, 1 / math.sqrt(total), free, confidence)


def _of_tensors(mechanism: ClientMechanism, claim: Claim, found: CanaryScores, confidence: float) -> Iterator[DpTest]:
    for place, name in enumerate(mechanism.spans):
        mine = found.tensor == place
        sides = _sides(found.values[mine], found.inside[mine])
        yield _test(f"client canaries in {name}", claim, separation(*sides, confidence), confidence)


def _sides(values: Tensor, inside: Tensor) -> tuple[Scores, Scores]:
    return values[inside].numpy(), values[~inside].numpy()


def _test(name: str, claim: Claim, found: Separation, confidence: float) -> DpTest:
    composed = math.sqrt(claim.releases)
    estimate, lower = (epsilon_of(min(mu * composed, MOST_MU), claim.delta) for mu in (found.mu, found.low))
    return DpTest(
        name=name,
        estimate=estimate,
        lower=lower,
        confidence=confidence,
        assumption=_ASSUMPTION,
        largest=epsilon_of(MOST_MU, claim.delta),
    )
