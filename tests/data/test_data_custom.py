"""A user's own function becomes a data set, or the error says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedspill.data.custom import CustomData
from fedspill.errors import InputRefused, UsageError

MODULE = """
import numpy as np
import torch
from fedspill.dataset import Dataset, Examples

number = 5

def arrays():
    return np.ones((4, 3)), np.array([0, 1, 2, 0]), np.zeros((2, 3)), [0, 1]

def dataset():
    part = Examples(torch.zeros(2, 5), torch.tensor([0, 1]))
    return Dataset("mine", ("no", "yes"), part, part)

def three(): return 1, 2, 3
def nothing(): return None
def not_arrays(): return "a", "b", "c", "d"
def float_labels(): return np.ones((2, 3)), np.ones(2), np.ones((2, 3)), np.ones(2)
def different(): return np.ones((1, 3)), np.array([0]), np.ones((1, 4)), np.array([0])
def flat(): return np.ones(3), np.array([0, 0, 0]), np.ones(3), np.array([0, 0, 0])
def uneven(): return np.ones((3, 2)), np.array([0]), np.ones((1, 2)), np.array([0])
def negative(): return np.ones((1, 2)), np.array([-1]), np.ones((1, 2)), np.array([0])
def from_one(): return np.ones((2, 2)), np.array([1, 2]), np.ones((1, 2)), np.array([1])
def nan(): return np.full((1, 2), np.nan), np.array([0]), np.ones((1, 2)), np.array([0])
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fedspill_test_own.py").write_text(MODULE)
    (tmp_path / "fedspill_test_broken.py").write_text("import fedspill_test_absent")
    monkeypatch.syspath_prepend(tmp_path)


def test_arrays_become_a_dataset() -> None:
    dataset = CustomData(factory="fedspill_test_own:arrays").load()
    assert dataset.classes == ("0", "1", "2")
    assert dataset.train.x.dtype == torch.float32
    assert dataset.train.y.tolist() == [0, 1, 2, 0]
    assert dataset.test.x.shape == (2, 3)


def test_a_dataset_is_taken_as_it_is() -> None:
    assert CustomData(factory="fedspill_test_own:dataset").load().classes == ("no", "yes")


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("", "must be 'package.module:function', got ''"),
        ("fedspill_test_own", "must be 'package.module:function'"),
        (":arrays", "must be 'package.module:function'"),
        ("fedspill_test_absent:arrays", "'fedspill_test_absent' .* cannot be imported"),
        (
            "fedspill_test_broken:arrays",
            "'fedspill_test_broken' .* cannot be imported: No module named 'fedspill_test_abs",
        ),
        ("fedspill_test_own:absent", "'absent' .* does not exist"),
        ("fedspill_test_own:number", "'number' .* is not a function"),
        (".own:arrays", "must be 'package.module:function'"),
    ],
)
def test_a_factory_that_cannot_be_called(factory: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        CustomData(factory=factory).load()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("three", r"must return .* tuple \(x_train, y_train, x_test, y_test\), got a tuple of 3"),
        ("nothing", "got a NoneType"),
        ("from_one", "smallest label is 1, and labels are counted from 0"),
        ("not_arrays", "x_train must be an array, got a str"),
        ("float_labels", r"y_train must be whole numbers of shape \(n,\), got torch.float64"),
        ("different", "inputs must be alike"),
        ("flat", r"x_train must be of shape \(n, ...\)"),
        ("uneven", "3 train inputs but 1 labels"),
        ("negative", "label lies outside"),
        ("nan", "NaN or infinite"),
    ],
)
def test_a_factory_that_returns_something_else(function: str, told: str) -> None:
    with pytest.raises(InputRefused, match=told):
        CustomData(factory=f"fedspill_test_own:{function}").load()
