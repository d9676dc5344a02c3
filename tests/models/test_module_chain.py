"""Networks of any class as a chain of parts: the parts in a row do what the network does."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Examples
from fedspill.errors import NotAChain
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.models.module_chain import module_chain
from fedspill.planting.dense_network import read_dense_network
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(12, 20), nn.Linear(20, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.one(x.view(x.size(0), -1)))
        return cast(Tensor, self.head(torch.relu(self.two(x))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(12, 16), nn.LayerNorm(16)
        self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.stem(x.flatten(1))))
        return cast(Tensor, self.head(x + torch.tanh(self.inner(x)) * 0.5))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.one(torch.relu(self.one(x)))))


class Deciding(Functional):
    """A line of its forward looks at values."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < -1000:
            return -super().forward(x)
        assert x.shape[1:].numel() == 12
        return super().forward(x)


class AskingLength(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(len(x), -1))


class DecidingImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(2 * 8 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 100:  # as some do with images of bytes
            x = x / 255
        return cast(Tensor, self.head(self.body(x)))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(x * int(x.sum())))  # a line that no tracing gets through


class WithOptions(Functional):
    """Activations with options of their own, and columns in another order."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.leaky_relu(self.one(x[:, list(range(11, -1, -1))]), 0.3)
        return cast(Tensor, self.head(nn.functional.elu(self.two(x), alpha=0.5)))


@pytest.mark.parametrize("network", [Functional, Residual, Deciding, AskingLength, WithOptions])
def test_the_parts_in_a_row_do_what_the_network_does(network: type[nn.Module]) -> None:
    model = network()
    x = torch.randn(5, 12)
    assert torch.allclose(nn.Sequential(*(module for _, module in module_chain(model)))(x), model(x))


def test_what_cannot_be_cut_is_one_part() -> None:
    parts = [(name, type(module).__name__) for name, module in module_chain(Residual())]
    assert [kind for _, kind in parts] == ["Flatten", "Linear", "LayerNorm", "Tanh", "GraphModule", "Linear"]
    assert [name for name, kind in parts if kind == "Linear"] == ["stem", "head"]


def test_an_activation_keeps_its_options_and_a_choice_of_columns_is_not_taken_for_flattening() -> None:
    kinds = [type(module).__name__ for _, module in module_chain(WithOptions())]
    assert kinds == ["GraphModule", "Linear", "LeakyReLU", "Linear", "ELU", "Linear"]


def test_what_the_users_code_calls_len_is_len_again_afterwards() -> None:
    chain = [module for name, module in module_chain(AskingLength()) if not isinstance(module, nn.Flatten)]
    assert [type(module).__name__ for module in chain] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert "len" not in globals()


def test_a_layer_that_is_used_twice_makes_no_chain() -> None:
    with pytest.raises(NotAChain, match="used more than once"):
        module_chain(Twice())


def test_the_line_that_stops_the_tracing_is_named() -> None:
    line = Counting.forward.__code__.co_firstlineno + 1
    with pytest.raises(NotAChain, match=rf"TypeError at test_module_chain\.py:{line}$"):
        module_chain(Counting())


def test_tracing_a_branch_leaves_the_network_and_the_random_state_as_they_were() -> None:
    model, random = DecidingImages(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chain = module_chain(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    x = torch.rand(3, 1, 8, 8)
    assert torch.allclose(nn.Sequential(*(module for _, module in chain)).eval()(x), model.eval()(x))
    assert [name for name, module in chain if isinstance(module, nn.Conv2d | nn.Linear)] == ["body.0", "head"]


def read_inputs(network: type[nn.Module]) -> Outcome:
    """What the exact attack reads out of two batches of three."""
    rng = torch.Generator().manual_seed(3)
    clients = [Examples(torch.rand(3, 12, generator=rng), torch.tensor([0, 1, 3])) for _ in range(2)]
    training = LocalTraining(algorithm="fedsgd", batch_size=3)
    protocol = {"classes": 4, "head_weight": "head.weight", "head_bias": "head.bias", "algorithm": "fedsgd"}
    trace = MemoryTrace({**protocol, "batch_size": 3, "local_lr": 0.05, "local_epochs": 1, "optimizer": "sgd"})
    torch.manual_seed(0)
    Horizontal(network(), clients, Settings(rounds=1, training=training), 1, 4, trace).run()
    known = {"architecture": network, "unlabelled_aux": torch.rand(8, 12), "aux_data": clients[0]}
    return run_attack(
        make("attacks", "inputs"),
        trace,
        adversary("curious-server"),
        knowledge=known,
        seed=1,
        truth=trace.truth().beside(clients),
    )


@pytest.mark.parametrize("network", [Functional, Deciding])
def test_inputs_are_read_exactly_out_of_a_network_with_a_forward_of_its_own(network: type[nn.Module]) -> None:
    outcome = read_inputs(network)
    assert outcome.reading is not None
    assert outcome.reading.summary == "6 inputs out of 2 messages, 6 of them with a certificate"
    assert outcome.reading.expects == 1.0
    assert outcome.measured["inputs-recovered"].values == pytest.approx([1, 1])


def test_a_neuron_can_be_planted_in_a_network_with_a_forward_of_its_own() -> None:
    assert read_dense_network(Functional()).layers == ("one", "two", "head")


class Frozen(Functional):
    """Its first layer is not trained, so nothing is sent of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one.requires_grad_(False)


def test_a_frozen_first_layer_is_a_sentence() -> None:
    outcome = read_inputs(Frozen)
    assert outcome.status == "skipped"
    assert "the message holds nothing of one.weight: it is frozen, or was held back" in outcome.why
