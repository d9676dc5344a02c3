"""Replay: the same updates twice. What differs is the noise, tensor by tensor, and it must be as large as claimed."""

from __future__ import annotations

import math

import torch
from scipy.stats import chi2

from fedspill.dp_audit.gaussian_privacy import MOST_MU, epsilon_of
from fedspill.dp_audit.mechanism import Claim, ClientMechanism
from fedspill.dp_audit.result import DpTest, shared_confidence

_PAIRS = 4
ASSUMPTION = "normal noise, and a client whose whole clipped update lies in that tensor"


def replay(mechanism: ClientMechanism, claim: Claim, rng: torch.Generator, *, statistics: int = 1) -> list[DpTest]:
    """One test for each tensor: the epsilon of a client that lies in it, from the noise that is surely not exceeded."""
    updates = torch.randn(1 if mechanism.alone else 8, mechanism.numbers, generator=rng)
    updates = 0.5 * claim.clip * updates / updates.norm(dim=1, keepdim=True)
    pairs = [
        (mechanism.release(updates, 2 * pair).double() - mechanism.release(updates, 2 * pair + 1).double())
        for pair in range(_PAIRS)
    ]
    difference = torch.stack(pairs) / math.sqrt(2)
    confidence = shared_confidence(statistics * len(mechanism.spans))
    tests = []
    for name, span in mechanism.spans.items():
        numbers = difference[:, span].numel()
        square = float(difference[:, span].square().sum())
        most = math.sqrt(square / float(chi2.ppf(1 - confidence, numbers)))
        spread = math.sqrt(square / numbers)
        estimate, lower = (_epsilon(claim, deviation) for deviation in (spread, most))
        tests.append(
            DpTest(
                name=f"replay, noise on {name} is {spread / claim.sigma:.3g} of what was claimed",
                estimate=estimate,
                lower=lower,
                confidence=confidence,
                assumption=ASSUMPTION,
                largest=epsilon_of(MOST_MU, claim.delta),
            )
        )
    return tests


def _epsilon(claim: Claim, deviation: float) -> float:
    mu = MOST_MU if deviation <= 0 else min(claim.reach / deviation * math.sqrt(claim.releases), MOST_MU)
    return epsilon_of(mu, claim.delta)
