"""The generated stand-in has what was published about COP-MODE."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fedspill.data.cop_mode_standin import CopModeStandin
from fedspill.dataset import Dataset, Examples


@pytest.fixture(scope="module")
def standin() -> Dataset:
    return CopModeStandin().load()


def test_sizes_per_user_are_the_published_ones(standin: Dataset) -> None:
    every = Examples.join([standin.train, standin.test])
    assert every.users is not None
    sizes = every.users.bincount().numpy()
    assert len(sizes) == 93
    assert len(every) == 65_261
    assert (sizes.min(), sizes.max()) == (51, 8_358)
    assert np.percentile(sizes, (25, 50, 75)).tolist() == [270, 446, 680]
    assert round(sizes.mean()) == 702


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_users_grant_as_published(seed: int) -> None:
    dataset = CopModeStandin(seed=seed).load()
    every = Examples.join([dataset.train, dataset.test])
    assert every.users is not None
    assert float(every.y.double().mean()) == pytest.approx(0.66, abs=0.002)
    rates = every.users.bincount(weights=every.y.double()) / every.users.bincount()
    assert int((rates > 0.9).sum()) == 17
    assert int((rates < 0.35).sum()) == 26
    assert int(((rates >= 0.35) & (rates <= 0.9)).sum()) == 50


def test_columns_are_53_and_one_hot(standin: Dataset) -> None:
    assert standin.shape == (53,)
    assert len(standin.columns) == 53
    assert len(set(standin.columns)) == 53
    assert (float(standin.train.x.min()), float(standin.train.x.max())) == (0, 1)
    assert sorted(len(group) for group in standin.groups) == [3, 4, 9, 30]
    for group in standin.groups:
        assert (standin.train.x[:, list(group)].sum(dim=1) == 1).all()
        assert (standin.train.x[:, list(group)].sum(dim=0) > 0).all()


def test_it_says_that_it_is_generated(standin: Dataset) -> None:
    assert "generated" in CopModeStandin.title
    assert "Generated" in standin.note
    assert "inputs, where the original" not in standin.note


def test_it_is_about_as_hard_as_the_original(standin: Dataset) -> None:
    """Published: AUC about 83 %, accuracy about 77 %."""
    model = LogisticRegression(max_iter=500).fit(standin.train.x.numpy(), standin.train.y.numpy())
    scores = model.predict_proba(standin.test.x.numpy())[:, 1]
    assert roc_auc_score(standin.test.y.numpy(), scores) == pytest.approx(0.83, abs=0.03)
    assert float(((scores > 0.5) == standin.test.y.numpy()).mean()) == pytest.approx(0.77, abs=0.03)


def test_the_seed_decides(standin: Dataset) -> None:
    again, other = CopModeStandin().load(), CopModeStandin(seed=5).load()
    assert torch.equal(again.train.x, standin.train.x)
    assert torch.equal(again.train.y, standin.train.y)
    assert not torch.equal(other.train.y, standin.train.y)


def test_every_user_has_a_fifth_to_test(standin: Dataset) -> None:
    assert standin.train.users is not None
    assert standin.test.users is not None
    train, test = standin.train.users.bincount(), standin.test.users.bincount()
    assert len(train) == len(test) == 93
    assert ((test / (train + test)) - 0.2).abs().max() < 0.01
