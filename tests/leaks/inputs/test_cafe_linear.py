"""CAFE, Steps I and II: how far errors spread is known without an inverse, and the batch plan is factored once."""

from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from vertical_kit import SAMPLES, federate, plain, server_view

from fedspill.federation.batches import circulant, membership, plan_batches
from fedspill.leaks.inputs.cafe import first_layers
from fedspill.leaks.inputs.vertical.first_layer import first_layer, first_layer_of_moving_model
from fedspill.leaks.inputs.vertical.inverse_diagonal import inverse_diagonal, least_chi_squared_mean
from fedspill.leaks.inputs.vertical.separate_products import ProductSystem
from fedspill.leaks.inputs.vertical.separate_sums import CirculantDesign, FactoredDesign, batch_design, overlaps
from fedspill.leaks.inputs.vertical.server_observations import observe
from fedspill.leaks.inputs.vertical.undo_model_change import with_model_held_still

CUBIC = ("cholesky_inverse", "inverse", "linalg_inv_ex", "linalg_eigh", "_linalg_eigh", "_linalg_svd", "linalg_lu")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plan(samples: int, size: int, rounds: int) -> Tensor:
    return membership(plan_batches("random", samples, size, rounds, rng()), samples)


class Asked(TorchDispatchMode):
    """Counts what is asked of matrices with so many rows and columns."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.calls = size, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        matrices = [arg for arg in args if isinstance(arg, Tensor) and tuple(arg.shape) == (self.size, self.size)]
        if matrices:
            self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [1, 7, 64])
def test_few_unknowns_have_the_exact_diagonal(n: int) -> None:
    matrix = torch.randn(n, n, generator=rng(), dtype=torch.float64)
    matrix = matrix @ matrix.T + torch.eye(n, dtype=torch.float64)
    found = inverse_diagonal(torch.linalg.cholesky(matrix), probes=64)
    torch.testing.assert_close(found.value, torch.linalg.inv(matrix).diagonal())
    assert torch.equal(found.value, found.most)


@pytest.mark.parametrize("near", [0.3, 1e-6])
def test_probes_tell_the_diagonal_as_well_as_promised_whatever_the_system(near: float) -> None:
    """Also with twins in it, whose entries are 1e12 times the others': each is estimated on its own scale."""
    n, probes = 400, 128
    columns = torch.randn(2 * n, n, generator=rng(1), dtype=torch.float64)
    columns[:, 1::40] = columns[:, ::40] + near * columns[:, 1::40]
    matrix = columns.T @ columns
    exact = torch.linalg.inv(matrix).diagonal()
    assert float(exact.max() / exact.min()) > (10 if near > 0.1 else 1e11)
    found = inverse_diagonal(torch.linalg.cholesky(matrix), probes)
    ratio = found.value / exact
    alone = torch.arange(n) % 40 > 1
    assert abs(float(ratio[alone].mean()) - 1) < 0.03
    assert float(ratio[alone].std()) == pytest.approx((2 / probes) ** 0.5, rel=0.2)
    assert bool((ratio - 1).abs().max() < 5 * (2 / probes) ** 0.5)
    assert bool((found.most >= exact).all()), "the bound holds"
    assert bool((found.most < 3 * exact).all()), "and is worth something"


def test_the_bound_is_that_of_chi_squared() -> None:
    for probes in (64, 128, 256):
        assert least_chi_squared_mean(probes) == pytest.approx(chi2.ppf(1e-6, probes) / probes, rel=0.02)
        assert least_chi_squared_mean(probes) <= chi2.ppf(1e-6, probes) / probes


@pytest.mark.parametrize("samples", [30, 31])
def test_of_a_circulant_plan_the_diagonal_is_closed_form(samples: int) -> None:
    used = membership(circulant(samples, 7, rng()), samples)
    made = batch_design(used)
    assert isinstance(made, CirculantDesign)
    exact = torch.linalg.inv(used.T @ used).diagonal()
    torch.testing.assert_close(made.variance().expand(samples), exact)
    rows = torch.randn(samples, 50, generator=rng(), dtype=torch.float64)
    error = (made.separate((used @ rows).float().double()).values - rows).square().mean().sqrt()
    assert float(error) < float(made.separate(used @ rows).error[0]) < 20 * float(error)


def test_standard_errors_are_those_of_the_noise() -> None:
    """More samples than probes: errors that were made are as large as was said, sample by sample."""
    used, rows = plan(400, 10, 440), torch.randn(400, 60, generator=rng(), dtype=torch.float64)
    noise = 1e-3 * torch.randn(440, 60, generator=rng(5), dtype=torch.float64)
    made = batch_design(used)
    assert isinstance(made, FactoredDesign)
    solved = made.separate(used @ rows + noise)
    ratio = (solved.values - rows).square().mean(1).sqrt() / solved.error
    assert float(ratio.mean()) == pytest.approx(1, abs=0.05)
    assert 0.5 < float(ratio.min()) < float(ratio.max()) < 1.6
    exact = torch.linalg.inv(used.T @ used).diagonal().sqrt()
    assert float((solved.error / exact).std() / (solved.error / exact).mean()) < 0.07


def test_parallel_samples_of_the_same_rounds_are_found_entangled() -> None:
    used = membership(plan_batches("epochs", 300, 10, 90, rng()), 300)
    factors = torch.randn(300, 40, generator=rng(), dtype=torch.float64)
    used[:, 1], factors[1] = used[:, 0], factors[0]  # twins, and parallel
    h = torch.randn(300, 4, generator=rng(1), dtype=torch.float64)
    sums = [(row, (h * used[row][:, None]).T @ factors) for row in range(90)]
    solved = ProductSystem(used, factors, sums).solve(1e-12)
    lone = torch.ones(300, dtype=torch.bool)
    lone[:2] = False
    assert bool((solved.entangled[:2] > 1e3).all())
    assert bool((solved.entangled[lone] < 100).all())
    assert bool((solved.most >= solved.error).all())


def test_overlaps_do_not_depend_on_how_they_are_counted() -> None:
    for size in (3, 40):
        used = plan(60, size, 20)
        torch.testing.assert_close(overlaps(used), used.T @ used)


def test_step_one_factors_one_matrix_for_all_parties_and_inverts_none() -> None:
    trace, _, _ = federate(plain(), rounds=SAMPLES + 10, batches="random", batch=5)
    observed = observe(server_view(trace, plain))
    with Asked(SAMPLES) as asked:
        for uploads in observed.uploads:
            observed.design(uploads.bias_places, "cpu").separate(uploads.sums)
    assert asked.calls["linalg_cholesky_ex"] == 1
    with Asked(SAMPLES) as asked:
        layers, _ = first_layers(observed, rng(), first_layer)
    assert {layer.route for layer in layers} == {"linear"}
    assert asked.calls["linalg_cholesky_ex"] <= 2 * len(layers), "Step II: one each, a second where there is noise"
    assert not set(asked.calls) & set(CUBIC), asked.calls


def test_passes_over_a_moving_model_factor_only_what_changed() -> None:
    trace, _, _ = federate(plain(), static=False, lr=0.01, rounds=12)
    observed = observe(server_view(trace, plain))
    with Asked(SAMPLES) as asked:
        layers, _ = first_layers(observed, rng(), first_layer_of_moving_model)
    assert asked.calls["linalg_cholesky_ex"] <= 5 * len(layers), "one for each weighing of the rounds"
    assert not set(asked.calls) & set(CUBIC), asked.calls
    many, _, _ = federate(plain(), static=False, lr=1e-4, rounds=SAMPLES + 10, batches="random", batch=5)
    seen = observe(server_view(many, plain))
    x, labels = torch.zeros(SAMPLES, 1, 8, 8), torch.zeros(SAMPLES, dtype=torch.int64)
    again = with_model_held_still(seen, 3, x, labels, features_only=False)
    rows = seen.uploads[0].bias_places
    assert again.design(rows, "cpu") is seen.design(rows, "cpu"), "the batches are the same in every pass"
