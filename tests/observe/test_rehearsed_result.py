"""Errors that an estimate states are those of the reading alone, whatever centre make-believe clients lie around."""

import pytest
import torch
from torch import Tensor

from fedspill.observe.rehearsed_result import RehearsedShares
from fedspill.observe.share_fits import ShareFit, common_slope, mixed, positive

CLASSES, CLIENTS, SAMPLES = 6, 200, 100_000


def fitted(noise: float, rng: torch.Generator) -> tuple[RehearsedShares, Tensor]:
    """A client read around a first estimate of the same reading, and what is true of it."""
    truth = positive(torch.rand(CLASSES, generator=rng, dtype=torch.float64))
    error = noise * torch.randn(CLASSES, generator=rng, dtype=torch.float64)
    error -= error.mean()
    centre = truth + error  # read from the client's own reading, with its error
    off = noise * torch.randn(CLIENTS, CLASSES, generator=rng, dtype=torch.float64)
    counts = (SAMPLES * positive(centre + off)).round()
    known = counts / counts.sum(1, keepdim=True)
    chance = noise * torch.randn(CLIENTS, CLASSES, generator=rng, dtype=torch.float64)
    readings = known + chance - chance.mean(1, keepdim=True)
    half = CLIENTS // 2
    unseen = torch.cat(
        [
            common_slope(readings[half:], known[half:], readings[:half]),
            common_slope(readings[:half], known[:half], readings[half:]),
        ]
    )
    fit = mixed([ShareFit(common_slope(readings, known, (truth + error)[None]), unseen)], known)
    return RehearsedShares(fit.shares[0], counts, fit.unseen - known, 1.0, True), truth


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_a_client_errs_as_the_reading_alone_does_and_not_as_estimates_drawn_to_their_centre(noise: float) -> None:
    rng = torch.Generator().manual_seed(1)
    pairs = [fitted(noise, rng) for _ in range(120)]
    real = sum(float((one.shares - truth).abs().sum()) for one, truth in pairs) / len(pairs)
    own = sum(float(one.own_errors.abs().sum(1).mean()) for one, _ in pairs) / len(pairs)
    drawn = sum(one.error for one, _ in pairs) / len(pairs)
    assert 0.8 * real < own < 1.25 * real
    assert drawn < 0.85 * real


def test_what_is_not_drawn_to_the_centre_is_the_reading() -> None:
    rng = torch.Generator().manual_seed(2)
    result, truth = fitted(0.02, rng)
    assert result.slope == pytest.approx(0.5, abs=0.1)  # as much noise as clients differ
    apart = (result.shares - result.known.mean(0)).abs().sum()
    assert float((result.measured - result.known.mean(0)).abs().sum()) > 1.5 * float(apart)
    assert float(result.own_errors.mean()) == pytest.approx(0.0, abs=1e-9)
    assert len(truth) == CLASSES
