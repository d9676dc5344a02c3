"""NVFlare's own privacy filters, as they are: what their epsilon covers, and what passes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare.apis.filter", reason="needs NVFlare: pip install 'fedspill[nvflare]'")

from nvflare.apis.dxo import from_shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from site_kit import context, update_sent
from torch import Tensor

from fedspill.dp_audit import DpResult, audit_neighbours
from fedspill.dp_audit.neighbours import opposite

NUMBERS, GAMMA = 25_000, 1e-5


def sent_by(a_filter: Any, update: Tensor) -> Tensor:
    """What leaves a site behind the filter, called as NVFlare's client calls it."""
    shareable = update_sent({"weight": update.numpy().astype(np.float32)})
    left = a_filter.process(shareable, context("site-1", "server", "t", "train"))
    return torch.from_numpy(np.asarray(from_shareable(left).data["weight"]))


def audited(a_filter: Any, epsilon: float) -> DpResult:
    np.random.seed(3)  # noqa: NPY002, NVFlare draws from this generator
    one, other = opposite(NUMBERS, GAMMA)
    return audit_neighbours(
        type(a_filter).__name__,
        lambda update: sent_by(a_filter, update),
        one,
        other,
        epsilon=epsilon,
        delta=0.0,
        calls=200,
    )


def test_the_epsilon_that_is_set_covers_the_selection_alone() -> None:
    """The default release noise has a budget of its own, which NVFlare's ledger counts and the option does not name."""
    svt = SVTPrivacy()
    result = audited(svt, svt.epsilon)
    ledger = svt.get_privacy_ledger()[0]["epsilon_total"]
    assert svt.epsilon == 0.1
    assert result.violated, "of what is called epsilon"
    assert 1 < result.lower < ledger, "but not of what the ledger says"


def test_with_a_release_budget_of_its_own_no_violation_is_found() -> None:
    svt = SVTPrivacy(epsilon=0.5, epsilon_release=0.5)
    result = audited(svt, 1.0)
    assert svt.get_privacy_ledger()[0]["epsilon_total"] == pytest.approx(1.0)
    assert not result.violated


def test_single_numbers_pass_without_noise() -> None:
    """NVFlare's ledger says so; a temperature or a learnt scale leaves as it is."""
    shareable = update_sent({"weight": np.zeros(50, np.float32), "scale": np.float32(0.25)})
    left = SVTPrivacy().process(shareable, context("site-1", "server", "t", "train"))
    assert float(from_shareable(left).data["scale"]) == 0.25


def test_percentile_privacy_adds_no_noise_at_all() -> None:
    update = GAMMA * torch.randn(NUMBERS, generator=torch.Generator().manual_seed(1))
    first, second = (sent_by(PercentilePrivacy(), update) for _ in range(2))
    assert torch.equal(first, second)
    assert audited(PercentilePrivacy(gamma=1.0), 2.0).violated
