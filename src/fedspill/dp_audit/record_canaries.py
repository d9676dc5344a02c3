"""Record canaries: noise images in a client's data or not, by a coin, in one run; all known records decoded at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.dp_audit.gaussian_privacy import MOST_MU, epsilon_of
from fedspill.dp_audit.lower_bounds import Scores, one_run_f_dp, separation, steinke
from fedspill.dp_audit.mechanism import Claim, RecordMechanism
from fedspill.dp_audit.result import DpResult, DpTest, shared_confidence
from fedspill.errors import NotApplicable
from fedspill.leaks.membership.passive.sample_layers import RecordsAtLayer, records_at_layers

CANARIES = 600
_LOUDEST = 3.0  # deviation of a canary's numbers: noise images are the best canaries (research/membership.md)


def audit_records(
    what: str,
    mechanism: RecordMechanism,
    claim: Claim,
    model: nn.Module,
    real: Examples,
    rng: torch.Generator,
    *,
    canaries: int = CANARIES,
) -> DpResult:
    """One run of `claim.releases` steps on real records and half of the canaries.

    Three bounds stand side by side: for normal noise, against a Gaussian trade-off curve, and without assumptions.
    """
    classes = int(real.y.max()) + 1
    noise = Examples(
        _LOUDEST * torch.randn(canaries, *real.x.shape[1:], generator=rng),
        torch.randint(classes, (canaries,), generator=rng),
    )
    inside = torch.rand(canaries, generator=rng) < 0.5
    known = Examples.join([noise, Examples(real.x, real.y)])
    used = Examples.join([noise.take(inside.nonzero().flatten()), Examples(real.x, real.y)])
    layers = records_at_layers(model.eval(), known.x, known.y)
    if not layers:
        raise NotApplicable(
            "The model has no linear layer that sees one vector per record: canaries cannot be decoded."
        )
    decoder = Decoder(layers, claim)
    scores = torch.zeros(canaries, dtype=torch.double)
    for number in range(claim.releases):
        scores += decoder.decoded(mechanism.release(model, used.x, used.y, number))[:canaries]
    values, inner = scores.numpy(), inside.numpy()
    return DpResult(
        what=what,
        claimed=claim.claimed,
        delta=claim.delta,
        tests=tuple(_tests(values[inner], values[~inner], claim)),
        notes=decoder.notes(canaries),
    )


class Decoder:
    """How much of each known record's clipped gradient a sum holds: least squares with a ridge far below the noise.

    Without it canaries hide one another: a sum's inner product with one canary holds parts of all the others.
    """

    def __init__(self, layers: list[RecordsAtLayer], claim: Claim) -> None:
        self._layers, self._claim = layers, claim
        squares = torch.stack([layer.squares() for layer in layers]).sum(0)
        self._norms = squares.sqrt().clamp_min(1e-12)
        gram = torch.stack([layer.gram(layer) for layer in layers]).sum(0) / (self._norms * self._norms[:, None])
        ridge = max(1e-4, min(1.0, 0.01 * (claim.sigma / claim.clip) ** 2))
        self._factor = torch.linalg.cholesky(gram + ridge * torch.eye(len(gram), dtype=gram.dtype))

    def decoded(self, total: Mapping[str, Tensor]) -> Tensor:
        """(records,) in units of the clip."""
        products = torch.stack([layer.products(total) for layer in self._layers]).sum(0)
        weights = (products / self._norms / self._claim.clip)[:, None]
        return torch.cholesky_solve(weights, self._factor)[:, 0]

    def notes(self, canaries: int) -> tuple[str, ...]:
        short = float((self._norms[:canaries] < self._claim.clip).double().mean())
        if short == 0:
            return ()
        return (
            f"{short:.0%} of the canaries are shorter than the clip at linear layers: they show less than they could",
        )


def _tests(inside: Scores, outside: Scores, claim: Claim) -> list[DpTest]:
    confidence = shared_confidence(3)
    # All bounds on scores that are told apart surely: what the test can show at most.
    perfect = np.linspace(0, 1, len(inside)) + 1e6, np.linspace(0, 1, len(outside))
    found = separation(inside, outside, confidence)
    tests = [
        DpTest(
            name="record canaries, decoded",
            estimate=epsilon_of(found.mu, claim.delta),
            lower=epsilon_of(found.low, claim.delta),
            confidence=confidence,
            assumption="normal noise, canaries alike",
            largest=epsilon_of(MOST_MU, claim.delta),
        )
    ]
    for name, bound, assumption in (
        ("record canaries, one run against a Gaussian curve", one_run_f_dp, "the mechanism is a Gaussian one"),
        ("record canaries, one run", steinke, "none"),
    ):
        low = bound(inside, outside, claim.delta, confidence)
        most = bound(*perfect, claim.delta, confidence)
        tests.append(
            DpTest(name=name, estimate=low, lower=low, confidence=confidence, assumption=assumption, largest=most)
        )
    return tests
