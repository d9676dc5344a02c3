"""The last and the first linear layer: found on the zoo and on other people's modules, refused with the reason else."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from fedspill import registry
from fedspill.errors import NoHead
from fedspill.models.heads import Head, last_linear

needs_torchvision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Forward(nn.Module):
    """A module whose forward is a given function of itself and x, for writing odd networks down in a line."""

    function: Any

    def __init__(self, forward: Any, **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


@pytest.mark.parametrize(
    ("name", "options", "shape", "layer", "features"),
    [
        ("mlp", {}, (6,), "head", 64),
        ("logistic", {}, (6,), "head", 6),
        ("cnn", {"width": 2}, (3, 16, 16), "head", 8),
        ("cnn-decaf", {}, (1, 28, 28), "head", 128),
        ("cnn-eavesdrop", {}, (1, 28, 28), "head", 50),
        ("lenet5", {}, (3, 32, 32), "head", 84),
        ("vgg11", {"batch_norm": True}, (3, 32, 32), "classifier.0", 512),
        ("vgg11", {"hidden": [20, 10], "dropout": 0.5}, (3, 32, 32), "classifier.6", 10),
        ("resnet18", {}, (3, 32, 32), "fc", 512),
        ("resnet32", {}, (3, 32, 32), "fc", 64),
        pytest.param("efficientnet-b0", {}, (3, 32, 32), "classifier.1", 1280, marks=needs_torchvision),
        pytest.param("mnasnet", {}, (3, 32, 32), "classifier.1", 1280, marks=needs_torchvision),
        pytest.param("shufflenet-v2", {}, (3, 32, 32), "fc", 1024, marks=needs_torchvision),
        pytest.param(
            "vit", {"hidden": 12, "layers": 1, "mlp": 8}, (3, 32, 32), "heads.head", 12, marks=needs_torchvision
        ),
    ],
)
def test_the_head_of_a_zoo_model_carries_the_errors_in_its_bias_gradient(
    name: str, options: dict[str, Any], shape: tuple[int, ...], layer: str, features: int
) -> None:
    network = registry.make("models", name, options).build(shape, 7, seed=0)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    head = last_linear(network, x, classes=7)
    assert head == Head(layer, f"{layer}.weight", f"{layer}.bias", classes=7, features=features)
    assert last_linear(network) == head
    assert network.get_parameter(head.weight).shape == (7, features)

    network.eval()
    y = torch.tensor([0, 3, 3, 6])
    logits = network(x)
    assert head.bias is not None
    bias = network.get_parameter(head.bias)
    (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, y), bias)
    errors = torch.softmax(logits, 1) - functional.one_hot(y, 7)
    torch.testing.assert_close(gradient, errors.mean(0).detach(), rtol=1e-4, atol=1e-6)


def test_a_head_without_bias_says_so() -> None:
    network = registry.make("models", "vgg11", {"last_bias": False}).build((3, 32, 32), 5, seed=0)
    assert last_linear(network, torch.zeros(2, 3, 32, 32)) == Head("classifier.0", "classifier.0.weight", None, 5, 512)


def test_watching_changes_nothing() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.layers(x + torch.rand_like(x))  # draws whatever the mode

    layers = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
    )
    layers[4].eval()  # a frozen batch norm within a network in training
    network = Forward(forward, layers=layers)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    last_linear(network, X)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())
    assert [module.training for module in layers] == [True, True, True, True, False, True]
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_batch_of_one_passes_batch_norm() -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    assert last_linear(network, X[:1]).name == "2"


def test_a_failing_model_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(5, 2))
    with pytest.raises(NoHead, match=r"fails on the example of shape \(3, 6\): RuntimeError"):
        last_linear(network, X)
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())


def test_a_linear_layer_alone_is_its_own_head() -> None:
    assert last_linear(nn.Linear(6, 2), X) == Head("", "weight", "bias", 2, 6)
    assert last_linear(nn.Linear(6, 2)) == Head("", "weight", "bias", 2, 6)


def test_execution_order_beats_registration_order() -> None:
    network = Forward(lambda self, x: self.last(self.first(x)), last=nn.Linear(4, 2), first=nn.Linear(6, 4))
    assert last_linear(network, X).name == "last"
    assert last_linear(network).name == "first"  # all that can be known without an example


def test_a_side_branch_that_runs_last_is_not_the_head() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        logits = self.main(x)
        self.side(x)
        assert isinstance(logits, Tensor)
        return logits

    assert last_linear(Forward(forward, main=nn.Linear(6, 2), side=nn.Linear(6, 5)), X).name == "main"


def test_a_head_may_be_one_part_of_a_sum() -> None:
    def wide_and_deep(self: Any, x: Tensor) -> Any:
        return self.wide(x) + self.deep(torch.relu(self.hidden(x)))

    layers = {"wide": nn.Linear(6, 3), "hidden": nn.Linear(6, 5), "deep": nn.Linear(5, 3)}
    network = Forward(wide_and_deep, **layers)
    head = last_linear(network, X, classes=3)
    assert (head.name, head.features) == ("deep", 5)
    labels = torch.tensor([0, 2, 2])
    logits = network(X)
    functional.cross_entropy(logits, labels).backward()
    errors = logits.detach().softmax(1) - functional.one_hot(labels, 3)
    assert torch.allclose(layers["deep"].bias.grad, errors.mean(0), atol=1e-6)


def test_a_part_that_is_weighed_or_bent_on_its_way_is_no_head() -> None:
    scaled = Forward(lambda self, x: self.scale(self.fc(x)) + x, fc=nn.Linear(6, 6), scale=nn.BatchNorm1d(6))
    halved = Forward(lambda self, x: 0.5 * self.fc(x) + x, fc=nn.Linear(6, 6))
    curved = Forward(lambda self, x: self.fc(x).tanh() + x, fc=nn.Linear(6, 6))
    for network, words in ((scaled, "BatchNorm1d"), (halved, "something else"), (curved, "something else")):
        with pytest.raises(NoHead, match=words):
            last_linear(network, X)


def test_the_single_logit_may_lose_its_column() -> None:
    network = Forward(lambda self, x: self.fc(x).squeeze(1), fc=nn.Linear(6, 1))
    assert last_linear(network, X) == Head("fc", "fc.weight", "fc.bias", 1, 6)


def test_log_softmax_is_let_pass_since_cross_entropy_sees_through_it() -> None:
    network = Forward(lambda self, x: functional.log_softmax(self.fc(x), dim=1), fc=nn.Linear(6, 4))
    assert last_linear(network, X).name == "fc"
    assert last_linear(nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(dim=1)), X).name == "0"
    y = torch.tensor([0, 1, 1])
    (gradient,) = torch.autograd.grad(functional.cross_entropy(network(X), y), network.get_parameter("fc.bias"))
    errors = torch.softmax(network.get_submodule("fc")(X), 1) - functional.one_hot(y, 4)
    torch.testing.assert_close(gradient, errors.mean(0).detach())


def test_a_second_name_for_the_head_is_no_tie() -> None:
    head = nn.Linear(6, 2)
    network = Forward(lambda self, x: self.alias(x), fc=head, alias=head)
    assert last_linear(network, X).weight == "fc.weight"
    assert "fc.weight" in dict(network.named_parameters())


def test_wrappers_prefix_the_names() -> None:
    network = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    assert last_linear(network, X).weight == "0.1.weight"
    assert last_linear(nn.Sequential(nn.Linear(6, 3), nn.Flatten(), nn.Identity()), X).name == "0"


class Scaled(nn.Linear):
    """A linear layer that is none: cosine-like heads are often written so."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, self.bias) * 16


class Harmless(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


def test_a_subclass_that_computes_the_same_is_taken() -> None:
    assert last_linear(nn.Sequential(Harmless(6, 2)), X).name == "0"
    with pytest.raises(NoHead, match=r"own forward method.*Pass an example"):
        last_linear(nn.Sequential(Harmless(6, 2)))


class BareParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


def _tied() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    network[2].weight = network[0].weight
    return network


def _pruned() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 2))
    prune.random_unstructured(network[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    return network


LAYERS = {"fc": nn.Linear(6, 6)}
REFUSED: dict[str, tuple[nn.Module, str]] = {
    "tuple": (Forward(lambda self, x: (self.fc(x), x), **LAYERS), "one tensor of logits, got a tuple.*forward returns"),
    "dict": (Forward(lambda self, x: {"logits": self.fc(x)}, **LAYERS), "one tensor of logits, got a dict"),
    "no linear": (nn.Sequential(nn.ReLU()), "no torch.nn.Linear runs"),
    "bare parameter": (BareParameter(), "'' .BareParameter.*bare parameter.*is not seen"),
    "functional": (
        Forward(lambda self, x: functional.linear(functional.relu(self.fc(x)), torch.ones(2, 6)), **LAYERS),
        "last to run is 'fc'.*returns something else",
    ),
    "convolution": (
        nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        r"last layer to run is '1' \(Conv2d\).*1x1 convolution",
    ),
    "batch norm behind": (nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)), r"'1' \(BatchNorm1d\)"),
    "softmax": (nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1)), "returns the softmax of '0'.*move the softmax"),
    "sigmoid": (nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), "returns the sigmoid of '0'"),
    "activation": (nn.Sequential(nn.Linear(6, 4), nn.Tanh()), "the model returns something else"),
    "in place": (nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True)), "'0' are changed in place"),
    "scaled": (Forward(lambda self, x: 2 * self.fc(x), **LAYERS), "returns something else"),
    "transposed": (Forward(lambda self, x: self.fc(x).T, **LAYERS), r"something else, of shape \(6, 3\)"),
    "pooled": (
        Forward(lambda self, x: self.fc(x).mean(0, keepdim=True), **LAYERS),
        r"something else, of shape \(1, 6\)",
    ),
    "run twice": (
        Forward(lambda self, x: self.fc(functional.relu(self.fc(x))), **LAYERS),
        "'fc' to run once.*runs 2 times",
    ),
    "tied": (_tied(), r"'2' to have its parameters to itself; '0' \(Linear\) uses them"),
    "weight norm": (nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 2))), "weight of '0' to be a parameter"),
    "spectral norm": (
        nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 2))),
        "weight of '0' to be a parameter",
    ),
    "pruned": (_pruned(), "weight of '0' to be a parameter; it is computed from others"),
    "subclass": (nn.Sequential(Scaled(6, 2)), "its class Scaled computes something else"),
    "lazy": (nn.Sequential(nn.LazyLinear(2)), "'0.weight' is lazy.*Run the model on one batch"),
    "lazy elsewhere": (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), "'0.weight' is lazy"),
    "per token": (
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 5)),
        r"one row per example, \(3, 5\); it gives \(3, 2, 5\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_heads(case: str) -> None:
    network, words = REFUSED[case]
    with pytest.raises(NoHead, match=words) as caught:
        last_linear(network, X)
    assert caught.value.remedy


def test_a_lazy_layer_is_not_resolved_by_looking() -> None:
    network = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(NoHead):
        last_linear(network, X)
    assert isinstance(network[0], nn.LazyLinear)
    network(X)
    assert last_linear(network, X) == Head("0", "0.weight", "0.bias", 2, 6)


def test_an_example_that_is_no_batch_is_refused() -> None:
    with pytest.raises(NoHead, match="Pass the example as a batch"):
        last_linear(nn.Sequential(nn.Linear(6, 2)), X[0])


def test_the_wrong_number_of_classes_is_refused() -> None:
    for example in (X, None):
        with pytest.raises(NoHead, match=r"Expected a last linear layer of 10 outputs.*'0' has 2"):
            last_linear(nn.Sequential(nn.Linear(6, 2)), example, classes=10)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 1)), "no torch.nn.Linear layer"),
        (nn.Sequential(nn.Linear(6, 2), nn.Softmax(dim=1)), r"'0'.*'1' \(Softmax\).*Pass an example"),
        (nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 2, 1)), r"'2' \(Conv2d\)"),
        (nn.Sequential(nn.Linear(6, 4), nn.MultiheadAttention(4, 1)), r"'1' \(MultiheadAttention\)"),
        (nn.MultiheadAttention(4, 1), "a last linear layer"),
        (_tied(), "'2' to have its parameters to itself"),
        (_pruned(), "weight of '0' to be a parameter"),
        (nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 2))), "weight of '0'|parametrization"),
        (nn.Sequential(nn.LazyLinear(2)), "is lazy"),
    ],
)
def test_refused_without_an_example(network: nn.Module, words: str) -> None:
    with pytest.raises(NoHead, match=words):
        last_linear(network)


def test_an_activation_registered_last_does_not_hide_the_head() -> None:
    network = Forward(lambda self, x: self.fc(self.relu(x)), fc=nn.Linear(6, 2), relu=nn.ReLU())
    assert last_linear(network) == last_linear(network, X)
