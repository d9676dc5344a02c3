"""Quantity Inference: Algorithm 2, joint fit and regression, on rounds whose clients are known."""

import math

import pytest
import torch
from watched import guess

from fedspill.errors import NotApplicable, Unfit
from fedspill.leaks.quantity import quantity_inference
from fedspill.leaks.quantity.metrics import QuantityError, WithinOne
from fedspill.leaks.quantity.quantity_inference import joint_counts, published_counts, regressed_counts
from fedspill.observe.round_sums import LabelsPerClient
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace


@pytest.mark.parametrize("solver", ["auto", "nnls", "regression"])
def test_ours_counts_within_one(solver: str) -> None:
    found, trace = guess("quantity-inference", solver=solver, rehearsals=40)
    assert WithinOne().score(found, trace.truth()).value > 0.95
    score = QuantityError().score(found, trace.truth())
    assert score.value < 0.6 * score.chance


def test_the_route_follows_what_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single-label trainings are believed while the model is untrained and they explain what was added."""
    assert "joint fit" in guess("quantity-inference", rehearsals=40)[0].notes[0]
    for limit, out_of_reach in (("EXPLAINED", 1.01), ("UNTRAINED", 0.0)):
        with monkeypatch.context() as patch:
            patch.setattr(quantity_inference, limit, out_of_reach)
            assert "regression" in guess("quantity-inference", rehearsals=40)[0].notes[0], limit


def test_algorithm_2_runs_with_and_without_filters() -> None:
    for options in ({}, {"filters": False}, {"abort_spread": 0.0}):
        found, trace = guess("quantity-inference", solver="paper", **options)
        assert WithinOne().score(found, trace.truth()).status == "ok"
    assert bool(torch.isnan(found.clients).any())  # a spread of 0 is too strict for real weights


def test_algorithm_2_solves_equation_4() -> None:
    rng = torch.Generator().manual_seed(0)
    singles = -torch.rand(4, 4, 6, generator=rng).double()
    singles[torch.arange(4), torch.arange(4)] *= -5
    owners, clients, labels = torch.tensor([3.0, 1.0, 2.0, 2.0]).double(), 4, 2.0
    rows = []
    for label in range(4):
        fall = torch.cat([singles[:label, label], singles[label + 1 :, label]]).mean(0)
        rows.append(owners[label] * singles[label, label] + (clients * labels - owners[label]) * fall)
    found = published_counts(singles, torch.stack(rows), clients, labels, 0.9, True, math.inf)
    assert torch.allclose(found, owners)


def test_the_joint_fit_recovers_a_sum_of_single_trainings() -> None:
    rng = torch.Generator().manual_seed(1)
    singles = torch.randn(5, 5, 9, generator=rng).double()
    owners = torch.tensor([2.0, 0.0, 1.0, 3.0, 2.0]).double()
    found, agreement = joint_counts(singles, torch.einsum("c,cof->of", owners, singles), 4, 2.0)
    assert torch.allclose(found, owners, atol=1e-6)
    assert agreement > 0.999


def test_the_regression_is_linear_so_that_it_holds_for_a_sum() -> None:
    rng = torch.Generator().manual_seed(2)
    response = torch.randn(4, 3, 5, generator=rng).double()
    owned = (torch.rand(40, 4, generator=rng) < 0.5).double()
    updates = torch.einsum("kc,cof->kof", owned, response) + 0.01 * torch.randn(40, 3, 5, generator=rng).double()
    clients = owned[:6]
    found = regressed_counts(owned, updates, updates[:6].sum(0), 6)
    assert torch.allclose(found, clients.sum(0), atol=0.5)


def test_what_is_known_of_labels_per_client() -> None:
    trace, known = guess("quantity-inference", solver="nnls")[1], {}
    for value, expected in ((4, (3, 5, 4.0)), ((3, 5), (3, 5, 4.0)), (10, (10, 10, 10.0))):
        view = trace.view(make_client(), knowledge={"labels_per_client": value, **known})
        read = LabelsPerClient.known_to(view, 10)
        assert (read.low, read.high, read.mean) == expected
    with pytest.raises(NotApplicable):
        LabelsPerClient.known_to(trace.view(make_client(), knowledge={"labels_per_client": "many"}), 10)


def make_client():  # type: ignore[no-untyped-def]
    from fedspill.threat import CURIOUS_CLIENT

    return CURIOUS_CLIENT


def test_a_curious_server_does_not_know_enough_and_one_model_is_not_enough() -> None:
    _, trace = guess("quantity-inference", solver="nnls")
    with pytest.raises(Unfit, match="labels_per_client"):
        make("attacks", "quantity-inference")(trace.view(CURIOUS_SERVER, knowledge={}), seed=1)
    from watched import watched

    first = MemoryTrace.of([next(trace.messages("model"))], trace.protocol)
    with pytest.raises(NotApplicable, match="consecutive"):
        make("attacks", "quantity-inference")(first.view(make_client(), knowledge=watched()[1]), seed=1)
