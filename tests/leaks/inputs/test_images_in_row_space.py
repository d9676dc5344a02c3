"""Images behind convolutions by one layer's row space: those that send back alike come back too."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact import images_in_row_space
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.trace import Origin
from fedspill.training import Schedule

SHAPE, CLASSES = (1, 6, 6), 3


def convolutions(hidden: bool = True) -> nn.Sequential:
    """With `hidden`, two linear layers and a head; without, one of them and the head."""
    torch.manual_seed(3)
    lower = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()]
    upper = [nn.Linear(144, 48), nn.ReLU(), *([nn.Linear(48, 16), nn.ReLU()] if hidden else [])]
    return nn.Sequential(*lower, nn.Flatten(), *upper, nn.Linear(16 if hidden else 48, CLASSES))


def drawn(samples: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(samples)
    return torch.randn(samples, *SHAPE, generator=rng), torch.arange(samples) % CLASSES


def recovered(x: Tensor, y: Tensor, noise: float = 0.0, seconds: float = 120.0, hidden: bool = True) -> RecoveredInputs:
    model, rng = convolutions(hidden), torch.Generator().manual_seed(1)
    sent = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    gradients = {}
    for (name, _), gradient in zip(model.named_parameters(), sent, strict=True):
        drawn = torch.randn(gradient.shape, generator=rng, dtype=torch.float64)
        gradients[name] = gradient.double() + noise * gradient.abs().mean() * drawn
    model = copy.deepcopy(model).double().eval()
    message = AttackedMessage(Origin(0, "client:0"), model, gradients, Schedule(len(x), len(x)), None, plain=True)
    return recover_exactly(message, SHAPE, CLASSES, RootSearchEffort(seconds=seconds), rng)


def apart(found: RecoveredInputs, x: Tensor) -> Tensor:
    flat = found.samples.flatten(1).double()
    nearest: Tensor = torch.cdist(flat, x.flatten(1).double()).min(1).values / flat.norm(dim=1)
    return nearest


def test_images_that_send_back_alike_come_back_by_the_first_layer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = drawn(9)  # three classes and 16 units: the second layer's gradient has five directions for nine images
    found = recovered(x, y)
    assert len(found.samples) == len(x)
    assert float(apart(found, x).max()) < 1e-3
    assert bool(found.certified.all())
    assert found.labels is not None
    assert sorted(found.labels.tolist()) == sorted(y.tolist())
    monkeypatch.setattr(images_in_row_space.RowSpace, "drawn", lambda self, like, rng, time: like[:0])
    without = recovered(x, y)
    assert len(without.samples) < len(x)
    assert not bool(without.certified.any())  # a batch that is not whole explains nothing


def test_an_image_that_is_there_twice_is_not_vouched_for() -> None:
    x, y = drawn(5)
    x[4], y[4] = x[0], y[0]
    found = recovered(x, y)
    assert not bool(found.certified.any())


def test_noise_leaves_nothing_to_vouch_for() -> None:
    x, y = drawn(2)
    assert not bool(recovered(x, y, noise=0.05, seconds=0.1).certified.any())


def test_the_search_ends_when_its_time_is_over_and_says_so() -> None:
    x, y = drawn(9)
    found = recovered(x, y, seconds=1e-3)
    assert not bool(found.certified.any())
    assert "in the time given" in found.why


def test_a_head_of_fewer_classes_than_images_above_one_layer_is_no_hindrance() -> None:
    x, y = drawn(6)
    found = recovered(x, y, hidden=False)
    assert len(found.samples) == len(x)
    assert float(apart(found, x).max()) < 1e-3
    assert bool(found.certified.all())
    assert found.route == "a linear layer behind convolutions"
