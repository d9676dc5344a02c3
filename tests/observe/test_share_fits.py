"""Fits of class shares: they find what they are told, judge themselves on what they have not seen, and mix."""

import pytest
import torch
from torch import Tensor

from fedspill.observe.share_fits import Fitter, common_slope, fits_of, mixed, own_slopes, positive, ridge

CLASSES = 5


def drawn(number: int, seed: int = 0) -> Tensor:
    gamma = torch._standard_gamma(torch.ones(number, CLASSES).double(), generator=torch.Generator().manual_seed(seed))
    return positive(gamma)


def folds(number: int) -> Tensor:
    return torch.arange(number) % 2


@pytest.mark.parametrize("fitter", [common_slope, own_slopes, lambda *given: ridge(1e-4, *given)])
def test_a_reading_that_is_a_multiple_of_the_shares_is_read_exactly(fitter: Fitter) -> None:
    known, asked = drawn(40), drawn(3, seed=1)
    assert torch.allclose(fitter(3 * known - 1, known, 3 * asked - 1), asked, atol=2e-3)


def test_only_a_regression_on_all_classes_undoes_a_mixture_of_them() -> None:
    known, asked = drawn(60), drawn(4, seed=1)
    blur = 0.5 * torch.eye(CLASSES).double() + 0.5 * torch.eye(CLASSES).double().roll(1, 0)
    alone = (own_slopes(known @ blur, known, asked @ blur) - asked).abs().sum()
    together = (ridge(1e-4, known @ blur, known, asked @ blur) - asked).abs().sum()
    assert together < 0.1 * alone


def test_the_mixture_is_about_as_good_as_the_best_reading_among_useless_ones() -> None:
    rng = torch.Generator().manual_seed(2)
    known, asked = drawn(60), drawn(20, seed=3)

    def readings(shares: Tensor) -> dict[str, Tensor]:
        noise = [torch.randn(shares.shape, generator=rng, dtype=torch.float64) for _ in range(4)]
        return {"good": shares + 0.01 * noise[0], "noise": noise[1], "more": noise[2], "poor": shares + noise[3]}

    fit = mixed(fits_of(readings(known), known, folds(60), readings(asked)), known)
    assert float((positive(fit.shares) - asked).abs().sum(1).mean()) < 0.06
    assert float((positive(fit.unseen) - known).abs().sum(1).mean()) < 0.06


def test_the_error_on_unseen_clients_is_the_error_that_comes() -> None:
    rng = torch.Generator().manual_seed(4)
    known, asked = drawn(80), drawn(200, seed=5)
    noisy = known + 0.05 * torch.randn(known.shape, generator=rng, dtype=torch.float64)
    wanted = asked + 0.05 * torch.randn(asked.shape, generator=rng, dtype=torch.float64)
    fit = mixed(fits_of({"a": noisy}, known, folds(80), {"a": wanted}), known)
    stated, comes = (fit.unseen - known).abs().sum(1).mean(), (fit.shares - asked).abs().sum(1).mean()
    assert 0.8 < float(stated / comes) < 1.4


def test_a_client_is_never_judged_by_a_fit_that_saw_its_fold() -> None:
    known = drawn(10)
    copied = torch.cat([known, known])  # a fit that sees one copy would know the other
    noise = torch.randn(20, CLASSES, generator=torch.Generator().manual_seed(6)).double()
    noise[10:] = noise[:10]
    apart = mixed(fits_of({"a": noise}, copied, torch.arange(20) // 10, {"a": noise}), copied)
    same = mixed(fits_of({"a": noise}, copied, torch.arange(20) % 10, {"a": noise}), copied)
    assert float((same.unseen - copied).abs().mean()) > 0.02
    assert float((apart.unseen - copied).abs().mean()) < float((same.unseen - copied).abs().mean())


def test_shares_without_anything_positive_are_even() -> None:
    assert torch.allclose(positive(-torch.ones(2, 4)), torch.full((2, 4), 0.25))


def test_a_reading_that_never_moves_says_nothing_and_breaks_nothing() -> None:
    """A frozen bias reads as zeros, or as what rounding leaves of a constant."""
    rng = torch.Generator().manual_seed(0)
    shares = torch.rand(24, 5, generator=rng, dtype=torch.float64)
    shares /= shares.sum(1, keepdim=True)
    folds = torch.arange(24) % 2
    still = {
        "zeros": torch.zeros(24, 5, dtype=torch.float64),
        "constant": torch.full((24, 5), 0.3).double() + 1e-17 * torch.rand(24, 5, generator=rng, dtype=torch.float64),
    }
    asked = {name: reading[:3] for name, reading in still.items()}
    for fit in fits_of(still, shares, folds, asked):
        assert torch.allclose(fit.shares, shares.mean(0).expand(3, 5), atol=1e-6)
