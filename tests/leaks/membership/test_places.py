"""Convolutions as linear layers of places: patches are what the layer multiplies, and members lie in its rows."""

from __future__ import annotations

import torch
from torch import nn

from fedspill.dataset import Examples
from fedspill.leaks.membership.passive.places import records_at_places
from fedspill.leaks.membership.passive.soft_span import share_within, whitening
from fedspill.training import gradient


def network() -> nn.Sequential:
    torch.manual_seed(0)
    start = (nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4))
    return nn.Sequential(*start, nn.Conv2d(6, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


def test_a_convolution_is_its_matrix_times_the_patches_of_its_places() -> None:
    model, x = network(), torch.randn(5, 1, 8, 8)
    found = records_at_places(model, x)
    assert found is not None
    assert (found.name.weight, found.name.bias) == ("3.weight", "3.bias"), "the one before has 64 places"
    assert found.inputs.shape == (5, 4, 55)
    put_out = found.inputs @ found.name.matrix(dict(model.named_parameters()), found.inputs.device).T
    assert torch.allclose(put_out.transpose(1, 2).reshape(5, 12, 2, 2).float(), model[:4](x), atol=1e-5)


def test_members_lie_in_the_rows_of_a_convolution_and_outsiders_do_not() -> None:
    model = network()
    records = Examples(torch.randn(60, 1, 8, 8), torch.arange(60) % 3)
    change = gradient(model, records.take(torch.arange(2)))
    found = records_at_places(model, records.x)
    assert found is not None
    white = whitening(found.inputs.flatten(0, 1))
    shares = share_within(found.name.matrix(change, found.inputs.device), white, found.inputs @ white)
    assert float(shares[:2].min()) > 0.99, "eight places in twelve rows"
    assert float(shares[2:].max()) < 0.9


def test_what_cannot_be_unfolded_is_left_alone() -> None:
    x = torch.randn(3, 2, 4, 4)
    for layer in (nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(2, 4, 3, padding="same"), nn.Conv2d(2, 40, 3)):
        assert records_at_places(nn.Sequential(layer, nn.Flatten()), x) is None
    assert records_at_places(nn.Flatten(), x) is None
