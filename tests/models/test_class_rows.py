"""Heads that are no plain linear layer: which parameter has a row for each class."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from fedspill.models.class_rows import any_head, class_rows
from fedspill.models.heads import Head


class Cosine(nn.Module):
    """A cosine classifier with a temperature that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.classes = nn.Parameter(torch.randn(3, 5))
        self.temperature = nn.Parameter(torch.tensor(4.0))

    def forward(self, x: Tensor) -> Tensor:
        features = functional.normalize(self.body(x).relu(), dim=1)
        return self.temperature * features @ functional.normalize(self.classes, dim=1).T


def convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("network", "weight", "bias", "features"),
    [
        (Cosine(), "classes", None, 5),
        (convolution(), "1.weight", "1.bias", 6),
        (
            nn.Sequential(nn.Linear(6, 5), parametrizations.weight_norm(nn.Linear(5, 3))),
            "1.parametrizations.weight.original1",
            "1.bias",
            5,
        ),
    ],
)
def test_rows_of_classes_are_found_by_what_they_do(network: nn.Module, weight: str, bias: Any, features: int) -> None:
    assert any_head(network, X) == Head(weight, weight, bias, 3, features, plain=False)


def test_a_plain_last_layer_is_preferred() -> None:
    network = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3)), nn.Linear(3, 3))
    head = any_head(network, X)
    assert head is not None
    assert (head.weight, head.plain) == ("1.weight", True)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)),  # every logit answers to every row
        nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)),
        nn.Linear(5, 3),  # fails on the example
        nn.Sequential(nn.LazyLinear(3), nn.Tanh()),
    ],
)
def test_what_has_no_rows_of_classes_has_no_head(network: nn.Module) -> None:
    assert any_head(network, X) is None


def test_looking_leaves_gradients_and_modes_alone() -> None:
    network = Cosine().train()
    class_rows(network, X)
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())
