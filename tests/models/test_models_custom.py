"""The model `custom`: a factory of the user's, called, checked, and refused with the reason."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedspill import registry
from fedspill.errors import UsageError

SOURCE = """
import torch
from torch import nn

def full(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes))

def more(shape, classes, width=7):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, classes))

def defaults(shape=(9, 9), classes=9):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4))

class Zoo:
    @staticmethod
    def lazy(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

def one_logit(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 1), nn.Flatten(0))

def frozen(shape, classes):
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, classes))
    network[1].eval()
    return network

def needs_three(shape, classes, depth):
    return nn.Identity()

def stops(shape, classes):
    raise ValueError("no such width")

def no_module(shape, classes):
    return "resnet"

def pair(shape, classes):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def wrong_input(shape, classes):
    return nn.Linear(99, classes)

class Packed(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.words = nn.Embedding(9, 4, padding_idx=0, sparse=True)
        self.gru, self.out = nn.GRU(4, 5, batch_first=True), nn.Linear(5, classes)

    def forward(self, x):
        lengths = (x != 0).flatten(1).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words(x.flatten(1)), lengths, True, enforce_sorted=False)
        return self.out(self.gru(packed)[1][0])

number = 3
"""


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom_factories.py").write_text(SOURCE)
    (tmp_path / "custom_broken.py").write_text("raise OSError('no disk')")
    (tmp_path / "custom_incomplete.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("custom_factories", "custom_broken", "custom_incomplete"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def build(factory: str, classes: int = 4, seed: int = 0) -> nn.Module:
    network = registry.make("models", "custom", {"factory": factory}).build((2, 3), classes, seed=seed)
    assert isinstance(network, nn.Module)
    return network


@pytest.mark.parametrize("name", ["full", "more", "defaults", "fixed", "Zoo.lazy"])
def test_factories_are_called_as_they_ask(name: str) -> None:
    first, again, other = (build(f"custom_factories:{name}", seed=seed) for seed in (1, 1, 2))
    assert first(torch.ones(2, 2, 3)).shape == (2, 4)
    assert first.training
    key = next(iter(first.state_dict()))
    assert torch.equal(first.state_dict()[key], again.state_dict()[key])
    assert not torch.equal(first.state_dict()[key], other.state_dict()[key])


def test_two_classes_may_have_one_logit() -> None:
    assert build("custom_factories:one_logit", classes=2)(torch.ones(5, 2, 3)).shape == (5,)
    with pytest.raises(UsageError, match=r"logits of shape \(2, 4\), got \(2,\)"):
        build("custom_factories:one_logit")


def test_a_network_that_takes_no_empty_text_and_sends_sparse_gradients_is_a_model_of_text() -> None:
    spec = registry.make("models", "custom", {"factory": "custom_factories:Packed"})
    assert spec.takes_text((6,), 4)
    network = spec.build((6,), 4, seed=0)
    network(torch.tensor([[1, 2, 0, 0, 0, 0]])).sum().backward()
    assert network.words.weight.grad.layout is torch.strided


def test_looking_at_the_network_keeps_its_modes() -> None:
    network = build("custom_factories:frozen")
    assert network.training
    assert not network.get_submodule("1").training
    assert int(network.get_buffer("1.num_batches_tracked")) == 0


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("custom_factories", "takes 'package.module:function', got 'custom_factories'"),
        (":full", "takes 'package.module:function'"),
        ("custom_factories:", "takes 'package.module:function'"),
        ("no_such_module:full", "there is no module 'no_such_module'.*PYTHONPATH"),
        ("custom_incomplete:full", "there is no module 'no_such_dependency'"),
        ("custom_broken:full", r"failed: OSError at custom_broken\.py:1"),
        ("custom_factories:nothing", "module 'custom_factories' has no 'nothing'"),
        ("fedspill.models.mlp:Mpl", "Did you mean 'Mlp'"),
        ("custom_factories:number", "is a int, not a function"),
        ("custom_factories:needs_three", r"signature \(shape, classes, depth\).*f\(shape, classes\) or f\(\)"),
        ("custom_factories:stops", r"failed: ValueError at custom_factories\.py"),
        ("custom_factories:no_module", "must return a torch.nn.Module, but returned str"),
        ("custom_factories:pair", "got tuple.*return the logits and nothing else"),
        ("custom_factories:wrong_input", r"fails on inputs of shape \(2, 3\): RuntimeError"),
    ],
)
def test_refusals(factory: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(factory)


def test_a_fixed_network_of_another_class_count_is_refused() -> None:
    with pytest.raises(UsageError, match=r"logits of shape \(2, 9\), got \(2, 4\).*9 classes"):
        build("custom_factories:fixed", classes=9)


def test_the_factory_is_required() -> None:
    with pytest.raises(UsageError, match="factory"):
        registry.make("models", "custom", {})
