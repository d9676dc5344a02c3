"""What canary clients wrote down, held against a claim: an audit of a server whose code nobody lets us call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import norm

from fedspill.adapters.canary_seat import CanaryLog, CanaryScore
from fedspill.dp_audit.gaussian_privacy import MOST_MU, epsilon_of
from fedspill.dp_audit.mechanism import Claim
from fedspill.dp_audit.result import DpResult, DpTest, shared_confidence
from fedspill.errors import UsageError

_ASSUMPTION = "normal noise, and a server that does not know the canaries' directions"


def audit_canary_clients(folder: Path | str, claim: Claim) -> DpResult:
    """All canary clients whose files are in a folder; each scale of canaries is a test of its own.

    A score of a round is normal with variance 1 around the canary's mu, or less: other clients' updates hide it. So the
    mean over rounds, less its error, is surely there; over the claim's releases it composes as Gaussian noise does.
    """
    logs = [CanaryLog.read(path) for path in sorted(Path(folder).glob("*.json"))]
    if not logs:
        raise UsageError(f"{folder} holds no file of a canary client.", remedy="Name the folder of `canary_client`.")
    other = {log.clip for log in logs if not math.isclose(log.clip, claim.clip)}
    if other:
        raise UsageError(f"Canaries were made for a clip of {min(other):g}, the claim has {claim.clip:g}.")
    scales = sorted({log.scale for log in logs})
    confidence = shared_confidence(len(scales))
    tests = []
    for scale in scales:
        scores = [score for log in logs if log.scale == scale for score in log.scores]
        tests += [_test(scale, scores, claim, confidence)] if scores else []
    return DpResult(
        what=f"a server, seen by {len(logs)} canary clients" if len(logs) > 1 else "a server, seen by a canary client",
        claimed=claim.claimed,
        delta=claim.delta,
        tests=tuple(tests),
        not_tested="" if tests else "no canary client was sent a second model, which would show what became of it",
    )


def _test(scale: float, scores: Sequence[CanaryScore], claim: Claim, confidence: float) -> DpTest:
    rounds = len(scores)
    mean = sum(score.value for score in scores) / rounds
    low = mean - float(norm.ppf(confidence)) / math.sqrt(rounds)
    # Against one other client of the same length a canary stands out by the root of the model's numbers.
    most = math.sqrt(min(score.numbers for score in scores))
    reach = claim.reach / claim.clip * math.sqrt(claim.releases)
    estimate, lower, largest = (epsilon_of(min(max(mu, 0.0) * reach, MOST_MU), claim.delta) for mu in (mean, low, most))
    return DpTest(
        name=f"canary clients at {scale:g} x the clip, {rounds} rounds",
        estimate=estimate,
        lower=lower,
        confidence=confidence,
        assumption=_ASSUMPTION,
        largest=largest,
    )
