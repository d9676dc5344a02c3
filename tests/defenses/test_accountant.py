"""Epsilon: ours against Opacus's, against closed forms, and refused where it would be a lie."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedspill.defense import DataUse
from fedspill.defenses.accountant import gaussian_epsilon, laplace_epsilon
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.loss_distribution import exact_gaussian, tighter_epsilon
from fedspill.defenses.verify import data_use, guarantee_of
from fedspill.errors import UsageError
from fedspill.federation.horizontal import Settings
from fedspill.training import LocalTraining

CASES = [
    (1.0, 0.01, 1000),
    (0.5, 0.1, 50),
    (0.1, 0.05, 60),
    (0.25, 0.05, 60),
    (4.0, 0.05, 60),
    (16.0, 0.05, 600),
    (1.3, 1.0, 12),
    (0.7, 0.9, 12),
]


@pytest.mark.parametrize(("multiplier", "sampling", "steps"), CASES)
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_epsilon_is_that_of_opacus(multiplier: float, sampling: float, steps: int, delta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed: fedspill[dp]")
        theirs: Any = accountants.RDPAccountant()
        theirs.history = [(multiplier, sampling, steps)]
        expected = theirs.get_epsilon(delta)
    ours = gaussian_epsilon(multiplier, sampling, steps, delta)
    assert ours == pytest.approx(max(expected, 0.0), abs=1e-6, rel=1e-9)


def test_epsilon_grows_with_steps_and_falls_with_noise() -> None:
    values = [gaussian_epsilon(1.0, 0.1, steps, 1e-5) for steps in (1, 10, 100)]
    assert values == sorted(values)
    assert gaussian_epsilon(2.0, 0.1, 100, 1e-5) < values[-1]
    assert gaussian_epsilon(1.0, 0.1, 0, 1e-5) == 0
    assert gaussian_epsilon(0.0, 0.1, 1, 1e-5) == math.inf


def test_a_tiny_sampling_rate_is_no_rounding_error() -> None:
    assert 0 <= gaussian_epsilon(1.0, 1e-6, 1, 1e-5) < 0.3


def test_laplace_adds_up_linearly() -> None:
    assert laplace_epsilon(2.0, 3.0, 4) == pytest.approx(6.0)
    assert laplace_epsilon(0.0, 3.0, 4) == math.inf


@pytest.mark.parametrize("bad", [(-1.0, 0.1, 1, 1e-5), (1.0, 0.0, 1, 1e-5), (1.0, 0.1, -1, 1e-5), (1.0, 0.1, 1, 0.0)])
def test_senseless_parameters_are_refused(bad: tuple[float, float, int, float]) -> None:
    with pytest.raises(UsageError):
        gaussian_epsilon(*bad)


@pytest.mark.parametrize("kind", [ClipNoise, DpSgd])
def test_a_claim_with_a_fixed_seed_is_refused(kind: Any) -> None:
    with pytest.raises(UsageError, match="cannot claim a guarantee with seeded noise"):
        kind(claim=True)
    kind(claim=True, noise="secure")


def test_a_guarantee_holds_for_secure_noise_only() -> None:
    use = DataUse(rounds=10, steps=5, epochs=1, sampling=0.2, parameters=1000, samples=80)
    for kind in (ClipNoise, DpSgd):
        seeded, secure = kind().claims(use), kind(noise="secure", claim=True).claims(use)
        assert seeded is not None
        assert secure is not None
        assert (seeded.holds, secure.holds) == (False, True)
        assert seeded.epsilon == secure.epsilon


def test_no_noise_claims_nothing() -> None:
    use = DataUse(rounds=10, steps=5, epochs=1, sampling=0.2, parameters=1000, samples=80)
    assert ClipNoise(sigma=0).claims(use) is None
    assert ClipNoise(clip=None).claims(use) is None
    assert DpSgd(noise_multiplier=0).claims(use) is None


def test_epsilon_counts_the_real_number_of_steps() -> None:
    training = LocalTraining(batch_size=10, epochs=2)
    settings = Settings(rounds=7, training=training, defenses=(DpSgd(noise_multiplier=1.1),))
    use = data_use(settings, [50, 100], 321)
    assert (use.rounds, use.steps, use.sampling) == (7, 20, 0.2)
    guarantee = guarantee_of(settings, [50, 100], 321)
    assert guarantee is not None
    assert guarantee.epsilon == pytest.approx(tighter_epsilon(1.1, 0.2, 7 * 20, 1e-5)[0])


def test_shuffled_steps_get_no_credit_for_sampling() -> None:
    use = DataUse(rounds=4, steps=5, epochs=1, sampling=0.2, parameters=10, samples=50)
    shuffled = DpSgd(noise_multiplier=2.0, sampling="shuffle").claims(use)
    assert shuffled is not None
    assert shuffled.epsilon == pytest.approx(tighter_epsilon(1.0, 1.0, 4, 1e-5)[0])


@pytest.mark.parametrize(("multiplier", "steps", "delta"), [(1.0, 1, 1e-5), (4.0, 10, 1e-5), (0.8, 3, 1e-3)])
def test_the_exact_epsilon_of_gaussian_noise_gives_its_delta_back(multiplier: float, steps: int, delta: float) -> None:
    """By the density itself: delta is what of P lies above e^epsilon times Q."""
    epsilon, sigma = exact_gaussian(multiplier, steps, delta), multiplier / math.sqrt(steps)
    z = np.linspace(-40 * sigma, 40 * sigma + 1, 2_000_001)
    one, other = (stats.norm.pdf(z, at, sigma) for at in (1.0, 0.0))
    reached = float(np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), z))
    assert reached == pytest.approx(delta, rel=1e-3)
    assert epsilon < gaussian_epsilon(multiplier, 1.0, steps, delta)


@pytest.mark.parametrize(("multiplier", "sampling", "steps"), [(1.0, 0.01, 1000), (4.0, 0.05, 60), (1.3, 1.0, 12)])
def test_the_tighter_of_two_bounds_is_reported_and_never_the_looser(
    multiplier: float, sampling: float, steps: int
) -> None:
    epsilon, by = tighter_epsilon(multiplier, sampling, steps, 1e-5)
    renyi = gaussian_epsilon(multiplier, sampling, steps, 1e-5)
    assert 0 < epsilon <= renyi
    assert (by == "Renyi") == (epsilon == renyi)
    assert epsilon > 0.5 * renyi  # both bound the same number
