"""Networks that scale or turn their input before the first layer: as good as none, and dropout is not vouched for."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.trace import Origin
from fedspill.training import Schedule

SHAPE, CLASSES = (1, 6, 6), 6


class Normalized(nn.Module):
    """Shifts, scales and transposes images, then two layers with an activation that nobody lists."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(6, 1))
        self.one, self.two, self.three = nn.Linear(36, 48), nn.Linear(48, 40), nn.Linear(40, CLASSES)

    def front(self, x: Tensor) -> Tensor:
        scaled: Tensor = ((x - self.mean) / 0.3).transpose(2, 3)
        return scaled

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(self.front(x).reshape(x.size(0), -1))
        out: Tensor = self.three(nn.functional.hardswish(self.two(h * torch.sigmoid(h))))
        return out


class Centred(Normalized):
    """What is the same in all pixels is taken away, and nobody can tell it."""

    def front(self, x: Tensor) -> Tensor:
        return x - x.mean((1, 2, 3), keepdim=True)


class Dropped(Normalized):
    """A part of the input is dropped while clients train."""

    def front(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().front(x), 0.3, self.training)


def recovered(network: type[nn.Module], samples: int, epochs: int = 1) -> tuple[RecoveredInputs, Tensor]:
    """What comes back of samples, and how far each is from the nearest true one."""
    torch.manual_seed(4)
    model = network().train()
    x, y, lr = torch.rand(samples, *SHAPE), torch.arange(samples) % CLASSES, 0.05
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(trained(x), y))
        optimizer.step()
    after = dict(trained.named_parameters())
    sent = {name: (p.detach().double() - after[name].detach().double()) / lr for name, p in model.named_parameters()}
    schedule = Schedule(samples, samples, epochs)
    message = AttackedMessage(Origin(0, "client:0"), model.double().eval(), sent, schedule, lr, plain=True)
    found = recover_exactly(message, SHAPE, CLASSES, RootSearchEffort(), torch.Generator().manual_seed(0))
    if not len(found.samples):
        return found, torch.zeros(0)
    flat = found.samples.flatten(1).double()
    return found, torch.cdist(flat, x.flatten(1).double()).min(1).values / flat.norm(dim=1)


@pytest.mark.parametrize(("samples", "epochs"), [(1, 1), (16, 1), (4, 3)])
def test_inputs_come_back_through_a_network_that_normalises_them_itself(samples: int, epochs: int) -> None:
    found, apart = recovered(Normalized, samples, epochs)
    assert len(found.samples) == samples
    assert tuple(found.samples.shape[1:]) == SHAPE
    assert float(apart.max()) < 1e-3
    assert bool(found.certified.all())


def test_what_a_front_takes_away_is_not_made_up() -> None:
    found, _ = recovered(Centred, 4)
    assert not bool(found.certified.any())
    assert found.why


@pytest.mark.parametrize("samples", [1, 4])
def test_what_dropout_left_of_an_input_is_not_vouched_for(samples: int) -> None:
    found, _ = recovered(Dropped, samples)
    assert not bool(found.certified.any())
