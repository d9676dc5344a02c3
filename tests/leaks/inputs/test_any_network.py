"""Batches of networks that are no chain of layers: found by running them, and vouched for by the whole gradient."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.trace import Origin
from fedspill.training import Schedule

CLASSES = 5
ROUTE = "a layer that reads inputs, and one that is fed what is made of them"


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.one, self.two = nn.Linear(20, 32), nn.Linear(32, 32)
        self.head, self.wide = nn.Linear(32, CLASSES), nn.Linear(20, CLASSES)

    def upper(self, h: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.two(h)))
        return out


class AroundALayer(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.one(x.flatten(1)))
        out: Tensor = self.head(h + torch.tanh(self.two(h))) + self.wide(x.flatten(1))
        return out


class ScaledInside(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = (x.flatten(1) - 0.4) / 0.2
        return self.upper(torch.tanh(self.one(x))) + 0 * self.wide(x)


class Gated(Layers):
    """Three layers read the input, and one of them is too narrow to tell samples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.gate = nn.Linear(20, 2), nn.Linear(20, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        scale = self.few(x).softmax(1)[:, :1]
        out: Tensor = self.upper(scale * self.one(x) * self.gate(x).sigmoid()) + 0 * self.wide(x)
        return out


class NormOfTheFirst(Layers):
    """A layer norm of the first layer holds every mixture of samples as well as the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.down = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x.flatten(1))
        out: Tensor = self.head(h + self.down(torch.tanh(self.two(self.norm(h))))) + 0 * self.wide(x.flatten(1))
        return out


class HalvesApart(Layers):
    """Two layers read a half of the input each, and one reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.join = nn.Linear(10, 24), nn.Linear(10, 24), nn.Linear(48, 32)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.flatten(1)[:, :10], x.flatten(1)[:, 10:]
        both = torch.cat([torch.tanh(self.left(left)), torch.tanh(self.right(right))], 1)
        out: Tensor = self.head(torch.tanh(self.join(both)))
        return out


class SameLayerTwice(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.again, self.more = nn.Linear(20, 20), nn.Linear(20, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.again(torch.tanh(self.again(x.flatten(1)))))
        out: Tensor = self.head(torch.tanh(self.more(h)))
        return out


class FrozenFirst(Layers):
    """What reads the input is not trained; a connection goes around the layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(20, 40).requires_grad_(False)
        self.down, self.up, self.out = nn.Linear(40, 12), nn.Linear(12, 40), nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.gelu(self.base(x.flatten(1)))
        out: Tensor = self.out(h + self.up(nn.functional.gelu(self.down(h))))
        return out


class WeightNormed(Layers):
    """Weights are a size times a direction, and the gradients of both are sent instead of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = weight_norm(self.one), weight_norm(self.two)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(torch.tanh(self.one(x.flatten(1))))


class HalvesAlike(Layers):
    """The same layer reads both halves, and what is made of them does not tell which is which."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.join = nn.Linear(10, 40), nn.Linear(80, 32)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.tanh(self.part(x.flatten(1)[:, :10])), torch.tanh(self.part(x.flatten(1)[:, 10:]))
        out: Tensor = self.head(torch.tanh(self.join(torch.cat([left + right, left * right], 1))))
        return out


class PartOfTheInput(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.some = nn.Linear(15, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.some(x.flatten(1)[:, :15]))
        out: Tensor = self.head(h + torch.tanh(self.two(h)))
        return out


class Rectified(Layers):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.two(self.one(x.flatten(1)).relu()).relu())
        return out


class RectifiedAround(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x.flatten(1)).relu()
        out: Tensor = self.head(h + self.two(h).relu())
        return out


class DropsAtRandom(AroundALayer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


class ByDimensions(Layers):
    """What it does with images is not what it does with rows, along which it is traced."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2) if x.ndim > 2 else x
        x = x.reshape(x.shape[0], -1)
        return self.upper(torch.tanh(self.one(x)))


def found_of(network: nn.Module, x: Tensor, y: Tensor) -> RecoveredInputs:
    """What exact recovery finds of one step of a client in training mode."""
    network.train()
    loss = nn.functional.cross_entropy(network(x), y)
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    names = list(trained)
    sent = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
    gradients = {name: gradient.double() for name, gradient in zip(names, sent, strict=True)}
    model, schedule = copy.deepcopy(network).double().eval(), Schedule(len(x), len(x))
    message = AttackedMessage(Origin(0, "client:0"), model, gradients, schedule, None, plain=True)
    rng = torch.Generator().manual_seed(1)
    return recover_exactly(message, tuple(x.shape[1:]), CLASSES, RootSearchEffort(), rng)


def batch(size: int, *shape: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(4)
    return torch.rand(size, *shape, generator=rng), torch.randint(CLASSES, (size,), generator=rng)


@pytest.mark.parametrize("network", [AroundALayer, ScaledInside])
@pytest.mark.parametrize("size", [1, 4])
def test_paths_around_layers_and_scaling_inside_the_network_hide_nothing(network: type[nn.Module], size: int) -> None:
    x, y = batch(size, 20)
    found = found_of(network(), x, y)
    assert len(found.samples) == size
    assert float(torch.cdist(found.samples, x.double()).min(1).values.max()) < 1e-3
    assert bool(found.certified.all())
    assert found.route == ROUTE
    assert found.labels is not None
    assert sorted(found.labels.tolist()) == sorted(y.tolist())


@pytest.mark.parametrize("network", [Gated, NormOfTheFirst])
def test_layers_that_hold_mixtures_of_samples_too_are_not_asked_for_samples(network: type[nn.Module]) -> None:
    x, y = batch(4, 20)
    found = found_of(network(), x, y)
    assert len(found.samples) == 4
    assert float(torch.cdist(found.samples, x.double()).min(1).values.max()) < 1e-3
    assert bool(found.certified.all())


def test_samples_that_were_found_are_taken_out_before_others_are_sought() -> None:
    x, y = batch(10, 20)
    found = found_of(AroundALayer(), x, y)
    assert len(found.samples) == 10
    assert float(torch.cdist(found.samples, x.double()).min(1).values.max()) < 1e-3
    assert bool(found.certified.all())


def test_samples_that_take_another_branch_than_was_traced_are_found_by_running_the_network() -> None:
    x, y = batch(3, 4, 5)
    found = found_of(ByDimensions(), x, y)
    assert float(torch.cdist(found.samples.flatten(1), x.flatten(1).double()).min(1).values.max()) < 1e-3
    assert bool(found.certified.all())
    assert found.route == ROUTE


def test_a_network_that_draws_at_random_while_it_trains_is_refused() -> None:
    x, y = batch(3, 20)
    found = found_of(DropsAtRandom(), x, y)
    assert not found.tried
    assert found.why.startswith("exact recovery of 3 samples does not apply")


@pytest.mark.parametrize("network", [HalvesApart, SameLayerTwice, FrozenFirst, WeightNormed])
@pytest.mark.parametrize("size", [2, 4])
def test_parts_in_layers_of_their_own_repeated_frozen_and_normed_layers_hide_nothing(
    network: type[nn.Module], size: int
) -> None:
    x, y = batch(size, 20)
    found = found_of(network(), x, y)
    assert len(found.samples) == size
    assert float(torch.cdist(found.samples, x.double()).min(1).values.max()) < 1e-3
    assert bool(found.certified.all())


def test_a_sample_that_is_there_twice_is_returned_twice_without_a_certificate() -> None:
    x, y = batch(4, 20)
    found = found_of(AroundALayer(), torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))
    assert len(found.samples) == 5
    assert int(found.certified.sum()) == 3  # of what counts twice nobody can tell that it is no mean
    assert int((torch.cdist(found.samples, x[:1].double()) < 1e-3).sum()) == 2


def test_nobody_vouches_where_parts_of_a_sample_may_change_places() -> None:
    x, y = batch(3, 20)
    found = found_of(HalvesAlike(), x, y)
    assert not bool(found.certified.any())


def test_a_network_that_reads_a_part_of_the_input_is_refused_in_a_sentence() -> None:
    x, y = batch(3, 20)
    found = found_of(PartOfTheInput(), x, y)
    assert not found.tried
    assert found.why.endswith("layers with room for 3 samples do not see all of an input")


@pytest.mark.parametrize("seed", [3, 11])
@pytest.mark.parametrize("around", [False, True])
def test_the_mean_of_two_samples_that_send_back_the_same_is_no_certified_copy(seed: int, around: bool) -> None:
    torch.manual_seed(seed)
    x = torch.rand(4, 20)
    x = torch.cat([x, x[:1] + 0.3 * (torch.rand(1, 20) - 0.5)])
    network = RectifiedAround() if around else Rectified()
    with torch.no_grad():
        network.head.weight *= 300  # every probability is 0 or 1 then
    y = network(x).argmin(1)
    y[4] = y[0]
    found = found_of(network, x, y)
    wrong = torch.cdist(found.samples.flatten(1), x.double()).min(1).values > 0.02 * x.norm(dim=1).mean()
    assert not bool((wrong & found.certified).any())
