"""Every model of the zoo builds, runs, learns, depends on its seed alone, and has the published parameter count."""

import importlib.util
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedspill import registry
from fedspill.errors import UnknownName, UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.activations import activation

needs_torchvision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")

SMALL_VIT = {"hidden": 24, "layers": 2, "heads": 2, "mlp": 48}

# name, options, shape of one input, classes
ZOO: list[tuple[str, dict[str, Any], tuple[int, ...], int]] = [
    ("mlp", {}, (1, 28, 28), 10),
    ("mlp", {"widths": [64, 32], "activation": "elu", "alpha": -2.0}, (30,), 2),
    ("mlp", {"dropout": 0.3, "last_activation": "tanh"}, (3, 8, 8), 5),
    ("logistic", {}, (20,), 3),
    ("cnn-flat", {}, (1, 16, 16), 10),
    ("cnn", {"width": 8}, (3, 32, 32), 100),
    ("cnn-decaf", {}, (1, 28, 28), 10),
    ("cnn-decaf", {"activation": "leaky-relu", "dropout": 0.25}, (3, 32, 32), 10),
    ("cnn-decaf", {}, (1, 48, 48), 7),
    ("cnn-eavesdrop", {}, (1, 28, 28), 10),
    ("lenet5", {}, (3, 32, 32), 10),
    ("lenet5", {"activation": "sigmoid", "pool": "average"}, (1, 28, 28), 10),
    ("vgg11", {}, (3, 32, 32), 100),
    ("vgg11", {"batch_norm": False, "hidden": [32, 16], "pool": 2, "dropout": 0.5}, (1, 28, 28), 10),
    ("vgg16", {}, (3, 32, 32), 10),
    ("vgg19", {}, (3, 32, 32), 100),
    ("resnet18", {}, (3, 32, 32), 10),
    ("resnet50", {}, (3, 32, 32), 10),
    ("resnet32", {}, (3, 32, 32), 100),
    ("efficientnet-b0", {}, (3, 32, 32), 10),
    ("mnasnet", {}, (1, 32, 32), 10),
    ("shufflenet-v2", {}, (3, 32, 32), 10),
    ("cafe-towers", {}, (1, 28, 28), 10),
    ("cafe-towers", {"parties": 16, "double_softmax": False}, (3, 32, 32), 10),
    ("vertical-mlp", {}, (30,), 3),
    ("vertical-mlp", {"parties": 4, "widths": [16]}, (1, 8, 8), 10),
    ("vertical-mlp", {"parties": 3, "cut": "strips", "head_widths": [8]}, (1, 8, 8), 10),
    ("split-lenet", {}, (1, 28, 28), 10),
    ("split-lenet", {"cut": 4, "kernel": 3, "padding": 1}, (1, 8, 8), 10),
    ("split-resnet", {}, (3, 32, 32), 10),
    ("split-resnet", {"level": 1}, (1, 8, 8), 10),
    ("vit", SMALL_VIT, (3, 32, 32), 100),
    ("vit", {**SMALL_VIT, "patch_size": 7}, (1, 28, 28), 10),
]
FROM_TORCHVISION = {"efficientnet-b0", "mnasnet", "shufflenet-v2", "vit"}
# No batch norm, no dropout: these run under vmap.
STACKABLE: list[tuple[str, dict[str, Any], tuple[int, ...], int]] = [
    ("mlp", {"widths": [16, 8]}, (1, 8, 8), 4),
    ("logistic", {}, (1, 8, 8), 4),
    ("cnn", {"width": 2}, (3, 16, 16), 4),
    ("cnn-decaf", {"dense": 8}, (1, 28, 28), 4),
    ("cnn-decaf", {"dense": 8}, (3, 28, 28), 4),
    ("cnn-eavesdrop", {"dropout": 0.0}, (1, 28, 28), 4),
    ("lenet5", {"activation": "sigmoid"}, (1, 28, 28), 4),
    ("vgg11", {"batch_norm": False}, (3, 32, 32), 4),
    ("vit", SMALL_VIT, (3, 16, 16), 4),
]


def table(rows: list[tuple[str, dict[str, Any], tuple[int, ...], int]]) -> pytest.MarkDecorator:
    cases = [
        pytest.param(*row, id=f"{row[0]}-{number}", marks=[needs_torchvision] if row[0] in FROM_TORCHVISION else [])
        for number, row in enumerate(rows)
    ]
    return pytest.mark.parametrize(("name", "options", "shape", "classes"), cases)


def spec(name: str, options: dict[str, Any] | None = None) -> ModelSpec:
    made = registry.make("models", name, options)
    assert isinstance(made, ModelSpec)
    return made


@cache
def _built(row: int, seed: int) -> nn.Module:
    name, options, shape, classes = ZOO[row]
    return spec(name, options).build(shape, classes, seed=seed)


def built(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of seed 1, built once; tests do not change it."""
    return _built(ZOO.index((name, options, shape, classes)), 1)


def on_meta(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network without its memory, for counting and for shapes."""
    with torch.device("meta"):
        return spec(name, options).module(shape, classes)


TEXT = {"bert", "gpt", "mean-embedding", "recurrent"}  # tests/models/test_models_text.py


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def batch(shape: tuple[int, ...], size: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(size, *shape, generator=torch.Generator().manual_seed(seed))


def test_the_zoo_is_complete_and_every_model_is_tested() -> None:
    ours = [entry for entry in registry.entries("models") if isinstance(entry.source, Path)]
    assert {entry.name for entry in ours} == {row[0] for row in ZOO} | TEXT | {"custom"}
    for entry in ours:
        assert entry.title
        assert entry.about


@table(ZOO)
def test_logits_and_gradients_are_finite(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    network = built(name, options, shape, classes)
    assert network.training
    buffers = {key: value.clone() for key, value in network.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        logits = network(batch(shape))
    assert logits.shape == (2, classes)
    assert torch.isfinite(logits).all()
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, classes - 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert sum(float(gradient.abs().sum() > 0) for gradient in gradients) >= 0.9 * len(gradients)
    with torch.no_grad():
        for key, value in network.named_buffers():
            value.copy_(buffers[key])


@table(ZOO)
def test_weights_are_a_function_of_the_seed(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = spec(name, options).build(shape, classes, seed=1).state_dict()
    other = spec(name, options).build(shape, classes, seed=2).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    first = built(name, options, shape, classes).state_dict()
    assert list(first) == list(again)
    assert all(torch.equal(first[key], again[key]) for key in first)
    random = [key for key in first if first[key].is_floating_point() and first[key].std() > 0 and first[key].ndim > 1]
    assert random
    assert not any(torch.equal(first[key], other[key]) for key in random)


def test_building_leaves_the_random_state_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(seed: int) -> None:
        raise AssertionError("the GPUs were reseeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched)
    spec("logistic").build((4,), 2, seed=0)


@table(ZOO)
def test_nothing_works_in_place(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int) -> None:
    for layer in built(name, options, shape, classes).modules():
        assert not vars(layer).get("inplace", False), layer


@table([(name, {**options, "last_bias": False}, shape, classes) for name, options, shape, classes in ZOO])
def test_without_last_bias_only_that_is_missing(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    with_bias = {key for key, _ in on_meta(name, {**options, "last_bias": True}, shape, classes).named_parameters()}
    network = on_meta(name, options, shape, classes)
    missing = with_bias - {key for key, _ in network.named_parameters()}
    assert len(missing) == 1
    layer = network.get_submodule(missing.pop().removesuffix(".bias"))
    assert isinstance(layer, nn.Linear)
    assert layer.bias is None
    assert layer.out_features == classes
    assert network(torch.empty(2, *shape, device="meta")).shape == (2, classes)


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes", "parameters"),
    [
        ("logistic", {}, (1, 28, 28), 10, 7_850),
        ("mlp", {}, (1, 28, 28), 10, 784 * 256 + 256 + 256 * 64 + 64 + 64 * 10 + 10),  # 002
        ("mlp", {"widths": [1024, 1024, 1024]}, (3, 32, 32), 100, 5_348_452),  # 003
        ("mlp", {"widths": [1024, 512], "logits": 1}, (518,), 2, 518 * 1024 + 1024 + 1024 * 512 + 512 + 513),  # 004
        ("cnn", {}, (3, 32, 32), 100, 15_447_652),
        ("cnn-decaf", {}, (1, 28, 28), 10, 1_199_882),  # the stock MNIST example
        ("cnn-eavesdrop", {}, (1, 28, 28), 10, 21_840),  # the older stock MNIST example
        # 001: per party 64 and 128 filters 5x5, 2048-256-64-10, and a head of 40-10.
        ("cafe-towers", {}, (1, 28, 28), 10, 4 * (1_664 + 204_928 + 524_544 + 16_448 + 650) + 410),
        ("lenet5", {}, (1, 32, 32), 10, 61_706),
        ("lenet5", {}, (1, 28, 28), 10, 61_706),
        ("vgg11", {}, (3, 32, 32), 10, 9_231_114),
        ("vgg16", {}, (3, 32, 32), 10, 14_728_266),
        ("vgg19", {}, (3, 32, 32), 10, 20_040_522),
        ("resnet18", {}, (3, 32, 32), 10, 11_173_962),
        ("resnet18", {"stem": "imagenet"}, (3, 32, 32), 1000, 11_689_512),
        ("resnet18", {}, (3, 224, 224), 1000, 11_689_512),
        ("resnet50", {}, (3, 32, 32), 10, 23_520_842),
        ("resnet50", {}, (3, 224, 224), 1000, 25_557_032),
        ("resnet32", {}, (3, 32, 32), 10, 466_906),
    ],
)
def test_parameter_counts(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    assert count(on_meta(name, options, shape, classes)) == parameters


ORIGINAL_VGG = {"batch_norm": False, "hidden": [4096, 4096], "pool": 7, "dropout": 0.5}


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("vgg11", ORIGINAL_VGG, 132_863_336),
        ("vgg16", ORIGINAL_VGG, 138_357_544),
        ("vgg19", ORIGINAL_VGG, 143_667_240),
        ("vgg19", {**ORIGINAL_VGG, "batch_norm": True}, 143_678_248),
        pytest.param("efficientnet-b0", {}, 5_288_548, marks=needs_torchvision),
        pytest.param("mnasnet", {}, 4_383_312, marks=needs_torchvision),
        pytest.param("shufflenet-v2", {}, 2_278_604, marks=needs_torchvision),
        pytest.param(
            "vit",
            {"patch_size": 16, "hidden": 768, "layers": 12, "heads": 12, "mlp": 3072},
            86_567_656,
            marks=needs_torchvision,
        ),
    ],
)
def test_parameter_counts_and_shapes_on_imagenet(name: str, options: dict[str, Any], parameters: int) -> None:
    network = on_meta(name, options, (3, 224, 224), 1000)
    assert count(network) == parameters
    assert network(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_resnet32_of_width_10_is_the_network_of_003() -> None:
    network = on_meta("resnet32", {"width": 10}, (3, 32, 32), 100)
    assert round(count(network) / 1e6, 1) == 46.4
    widths = [layer.weight.shape[0] for name, layer in network.named_modules() if name.endswith("4.conv2")]
    assert widths == [160, 320, 640]
    assert sum(isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3) for layer in network.modules()) == 31


@pytest.mark.parametrize(("name", "side"), [("vgg11", side) for side in (7, 28, 48, 64)] + [("resnet18", 28)])
def test_other_image_sizes_are_adapted_to(name: str, side: int) -> None:
    network = on_meta(name, {}, (1, side, side), 10)
    assert network(torch.empty(2, 1, side, side, device="meta")).shape == (2, 10)


def test_decaf_takes_the_blocks_of_its_table_by_shape() -> None:
    def convolutions(shape: tuple[int, ...], **options: Any) -> tuple[list[int], int]:
        layers = list(on_meta("cnn-decaf", options, shape, 10).modules())
        filters = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]
        return filters, sum(isinstance(layer, nn.MaxPool2d) for layer in layers)

    assert convolutions((1, 28, 28)) == ([32, 64], 1)
    assert convolutions((3, 28, 28)) == ([32, 64, 128], 3)
    assert convolutions((3, 32, 32)) == ([32, 64, 128], 3)
    assert convolutions((1, 48, 48)) == ([32, 64, 128, 256], 4)
    assert convolutions((1, 48, 48), blocks=0) == ([32, 64], 1)
    assert convolutions((3, 32, 32), width=4) == ([4, 8, 16], 3)


@pytest.mark.parametrize(
    ("name", "options", "shape", "sides"),
    [
        ("cnn", {}, (3, 32, 32), [32, 32, 16, 3]),
        ("cnn-decaf", {}, (1, 28, 28), [26, 24]),
        ("cnn-decaf", {}, (3, 32, 32), [32, 16, 8]),
        ("cnn-eavesdrop", {}, (1, 28, 28), [24, 8]),
        ("lenet5", {}, (3, 32, 32), [28, 10]),
        ("vgg11", {}, (3, 32, 32), [32, 16, 8, 8, 4, 4, 2, 2]),
        ("vgg11", {}, (1, 28, 28), [28, 14, 7, 7, 4, 4, 2, 2]),
    ],
)
def test_images_shrink_as_published(
    name: str, options: dict[str, Any], shape: tuple[int, ...], sides: list[int]
) -> None:
    network, seen = on_meta(name, options, shape, 10), list[int]()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[-1]))
    network(torch.empty(2, *shape, device="meta"))
    assert seen == sides


def test_only_the_last_hidden_activation_is_varied() -> None:
    options = {"widths": [4, 4, 4], "activation": "relu", "last_activation": "tanh"}
    layers = [type(layer).__name__ for layer in spec("mlp", options).build((5,), 2, seed=0).children()]
    assert layers == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear", "Tanh", "Linear"]


@pytest.mark.parametrize(("last", "dropouts"), [(True, [3, 6]), (False, [3])])
def test_dropout_of_an_mlp_may_spare_the_head(last: bool, dropouts: list[int]) -> None:
    network = spec("mlp", {"widths": [4, 4], "dropout": 0.5, "last_dropout": last}).build((5,), 2, seed=0)
    assert [position for position, layer in enumerate(network.children()) if isinstance(layer, nn.Dropout)] == dropouts


def test_one_logit_replaces_the_classes() -> None:
    network = spec("mlp", {"widths": [8], "logits": 1}).build((5,), 2, seed=0)
    assert network(batch((5,))).shape == (2, 1)


def test_activations_compute_what_their_names_say() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0])
    expected = {
        "relu": [0.0, 0.0, 2.0],
        "leaky-relu": [-0.01, 0.0, 2.0],
        "sigmoid": [1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-2))],
        "tanh": [math.tanh(-1), 0.0, math.tanh(2)],
        "gelu": [-0.5 * (1 + math.erf(-1 / math.sqrt(2))), 0.0, 1 + math.erf(2 / math.sqrt(2))],
        "identity": [-1.0, 0.0, 2.0],
    }
    for name, values in expected.items():
        torch.testing.assert_close(activation(name)(x), torch.tensor(values))  # type: ignore[arg-type]
    torch.testing.assert_close(activation("elu")(x), torch.tensor([math.exp(-1) - 1, 0.0, 2.0]))
    torch.testing.assert_close(activation("elu", alpha=-2.0)(x), torch.tensor([-2 * (math.exp(-1) - 1), 0.0, 2.0]))
    with pytest.raises(UnknownName, match="activation named 'rel'"):
        activation("rel")  # type: ignore[arg-type]


def test_vgg_and_resnet_are_initialised_as_in_003() -> None:
    for name, options in (("vgg11", {"hidden": [600]}), ("resnet18", {})):
        network = spec(name, options).build((3, 32, 32), 100, seed=3)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 10_000:
                fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
                assert float(layer.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.03)
                assert abs(float(layer.weight.detach().mean())) < 0.03 * math.sqrt(2 / fan_out)
            if name == "vgg11" and isinstance(layer, nn.Linear):
                assert float(layer.weight.detach().std()) == pytest.approx(0.01, rel=0.03)
            if name == "vgg11" and isinstance(layer, nn.Linear | nn.Conv2d):
                assert layer.bias is not None
                assert not layer.bias.any()


@needs_torchvision
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnet_is_torchvision_s(name: str) -> None:
    from fedspill.models.torchvision_shim import torchvision_models

    torch.manual_seed(0)
    theirs = getattr(torchvision_models(), name)(num_classes=10).eval()
    ours = spec(name).build((3, 64, 64), 10, seed=0).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(ours(batch((3, 64, 64))), theirs(batch((3, 64, 64))))


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "letter", "batch_norm"),
    [("vgg11", "A", False), ("vgg11", "A", True), ("vgg16", "D", True), ("vgg19", "E", False)],
)
def test_vgg_is_torchvision_s(name: str, letter: str, batch_norm: bool) -> None:
    from fedspill.models.torchvision_shim import torchvision_models

    models = torchvision_models()
    with torch.device("meta"):
        theirs = getattr(models, f"{name}_bn" if batch_norm else name)(num_classes=7).state_dict()
    ours = on_meta(name, {**ORIGINAL_VGG, "batch_norm": batch_norm}, (3, 224, 224), 7).state_dict()
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}
    if name == "vgg11":
        torch.manual_seed(0)
        features = models.vgg.make_layers(models.vgg.cfgs[letter], batch_norm=batch_norm).eval()
        network = spec(name, {"batch_norm": batch_norm}).build((3, 32, 32), 7, seed=0).eval()
        network.get_submodule("features").load_state_dict(features.state_dict(), strict=True)
        with torch.no_grad():
            got = network.get_submodule("features")(batch((3, 32, 32)))
            torch.testing.assert_close(got, features(batch((3, 32, 32))))


@needs_torchvision
@pytest.mark.parametrize("training", [True, False])
def test_vit_is_torchvision_s(training: bool) -> None:
    from fedspill.models.torchvision_shim import torchvision_models

    ours = spec("vit", SMALL_VIT).build((3, 32, 32), 10, seed=0).train(training)
    theirs = torchvision_models().VisionTransformer(32, 4, 2, 2, 24, 48, num_classes=10).train(training)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(ours(batch((3, 32, 32))), theirs(batch((3, 32, 32))))


@needs_torchvision
def test_vit_starts_with_a_head_of_the_asked_spread() -> None:
    for std in (0.0, 0.02):
        network = spec("vit", {**SMALL_VIT, "head_std": std}).build((3, 32, 32), 100, seed=0)
        weight = network.get_parameter("heads.head.weight").detach()
        assert float(weight.std()) == pytest.approx(std, rel=0.1)


@needs_torchvision
def test_vit_scales_its_patches_by_the_channels() -> None:
    for channels in (1, 3):
        network = spec("vit", {**SMALL_VIT, "hidden": 96}).build((channels, 32, 32), 10, seed=0)
        weight = network.get_parameter("conv_proj.weight").detach()
        assert weight.shape == (96, channels, 4, 4)
        assert float(weight.std()) == pytest.approx(math.sqrt(1 / (channels * 16)), rel=0.1)


@table(STACKABLE)
def test_two_models_run_at_once_under_vmap(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    networks = [spec(name, options).build(shape, classes, seed=seed) for seed in (1, 2)]
    parameters, buffers = stack_module_state(networks)
    x = torch.stack([batch(shape, seed=1), batch(shape, seed=2)])

    def run(state: tuple[dict[str, Tensor], dict[str, Tensor]], x: Tensor) -> Tensor:
        logits = functional_call(networks[0], state, (x,))
        assert isinstance(logits, Tensor)
        return logits

    together = vmap(run)((parameters, buffers), x)
    alone = torch.stack([network(part) for network, part in zip(networks, x, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(alone[0], alone[1])


@table(STACKABLE)
def test_gradients_of_single_examples_under_vmap_average_to_the_batch_gradient(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    network = spec(name, options).build(shape, classes, seed=1)
    parameters = {key: value.detach() for key, value in network.named_parameters()}
    x, y = batch(shape, size=3), torch.tensor([0, 1, classes - 1])

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(network, parameters, (x[None],)), y[None])

    single = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    whole = torch.autograd.grad(nn.functional.cross_entropy(network(x), y), list(network.parameters()))
    for (key, _), expected in zip(network.named_parameters(), whole, strict=True):
        torch.testing.assert_close(single[key].mean(0), expected, rtol=1e-3, atol=1e-6)


DIFFERENTIABLE_TWICE = [
    *STACKABLE,
    ("vgg11", {}, (3, 32, 32), 4),
    ("resnet18", {}, (3, 16, 16), 4),
    ("resnet32", {}, (3, 16, 16), 4),
    ("efficientnet-b0", {}, (3, 32, 32), 4),
    ("mnasnet", {}, (3, 32, 32), 4),
    ("shufflenet-v2", {}, (3, 32, 32), 4),
]


@table(DIFFERENTIABLE_TWICE)
def test_gradient_matching_can_be_differentiated(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    network = spec(name, options).build(shape, classes, seed=1).eval()
    x = batch(shape).requires_grad_()
    loss = nn.functional.cross_entropy(network(x), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    second = torch.autograd.grad(torch.stack([gradient.square().sum() for gradient in gradients]).sum(), x)[0]
    assert torch.isfinite(second).all()
    assert second.any()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mlp", {"activation": "swish"}, "activation"),
        ("mlp", {"widths": [8, 0]}, r"'widths'.*\[8, 0\]"),
        ("mlp", {"logits": 0}, "'logits'.*got 0"),
        ("mlp", {"dropout": 1.0}, "'dropout'"),
        ("mlp", {"dropout": -0.1}, "'dropout'"),
        ("mlp", {"width": 3}, "no option of model 'mlp' named 'width'"),
        ("cnn", {"width": 0}, "'width'"),
        ("cnn-decaf", {"blocks": -1}, "'blocks'.*got -1"),
        ("cnn-decaf", {"dense": 0}, "'dense'"),
        ("cnn-decaf", {"width": 0}, "'width'"),
        ("cnn-eavesdrop", {"dropout": 2.0}, "'dropout'"),
        ("lenet5", {"padding": -1}, "'padding'"),
        ("lenet5", {"pool": "median"}, "pool"),
        ("vgg11", {"pool": 0}, "'pool'"),
        ("vgg11", {"hidden": [0]}, "'hidden'"),
        ("resnet18", {"stem": "large"}, "stem"),
        ("resnet32", {"width": 0}, "'width'"),
        ("efficientnet-b0", {"stochastic_depth": 1.0}, "'stochastic_depth'"),
        ("mnasnet", {"width": 0.0}, "'width'"),
        ("vit", {"hidden": 10, "heads": 3}, "multiple of 'heads'"),
        ("vit", {"layers": 0}, "'layers'"),
        ("vit", {"head_std": -1.0}, "'head_std'"),
    ],
)
def test_bad_options_are_refused_by_name(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec(name, options)


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes", "words"),
    [
        ("lenet5", {}, (20,), 10, r"takes images .* shape \(20,\)"),
        ("vgg11", {}, (20,), 10, "takes images"),
        ("resnet18", {}, (3, 32), 10, "takes images"),
        ("cnn", {}, (3, 4, 4), 10, "4 x 4 pixels are too small"),
        ("cnn-decaf", {"blocks": 4}, (3, 8, 8), 10, "8 x 8 pixels are too small"),
        ("cnn-eavesdrop", {}, (1, 12, 12), 10, "too small"),
        ("lenet5", {}, (1, 32, 8), 10, "too small"),
        pytest.param("vit", {}, (3, 30, 30), 10, "multiple of patch_size 4, got 30 x 30", marks=needs_torchvision),
        pytest.param("vit", {}, (3, 32, 28), 10, "square", marks=needs_torchvision),
        ("mlp", {}, (5,), 0, "0 classes"),
        ("mlp", {}, (), 2, r"inputs \(\)"),
        ("mlp", {}, (3, 0, 4), 2, "inputs"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        spec(name, options).build(shape, classes, seed=0)


def test_the_smallest_images_that_fit_are_taken() -> None:
    for name, options, side in (
        ("cnn", {"width": 2}, 5),
        ("cnn-decaf", {"blocks": 3}, 8),
        ("cnn-eavesdrop", {}, 16),
        ("lenet5", {"padding": 0}, 16),
    ):
        network = spec(name, options).build((1, side, side), 3, seed=0)
        assert network(batch((1, side, side))).shape == (2, 3)
        with pytest.raises(UsageError, match="too small"):
            spec(name, options).build((1, side - 1, side), 3, seed=0)
