"""The way to torchvision: with its compiled part, without it, and without torchvision."""

import importlib
import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from fedspill import registry
from fedspill.errors import UsageError
from fedspill.models import torchvision_shim

needs_torchvision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torchvision had not been imported yet; what was imported is put back afterwards."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", ["efficientnet-b0", "mnasnet", "shufflenet-v2", "vit"])
def test_without_torchvision_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError, match=r"fedspill\[vision\]"):
        registry.make("models", name).build((3, 32, 32), 10, seed=0)


def test_models_of_our_own_do_not_import_torchvision() -> None:
    program = (
        "import sys; from fedspill import registry\n"
        "for name in ('vgg11', 'resnet18', 'mlp', 'vit', 'mnasnet'): registry.make('models', name)\n"
        "registry.make('models', 'resnet32').build((3, 32, 32), 10, seed=0)\n"
        "sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.usefixtures("forgotten")
def test_a_torchvision_that_imports_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    working = ModuleType("torchvision")
    working.models = ModuleType("torchvision.models")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", working)

    def declared() -> None:
        raise AssertionError("operators were declared without need")

    monkeypatch.setattr(torchvision_shim, "_declare_operators", declared)
    assert torchvision_shim.torchvision_models() is working.models


@pytest.mark.usefixtures("forgotten")
def test_a_missing_compiled_part_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    working = ModuleType("torchvision")
    working.models = ModuleType("torchvision.models")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("half of torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.extension", ModuleType("half of torchvision"))
    steps: list[str] = []

    def import_module(name: str) -> ModuleType:
        if "declared" not in steps:
            raise RuntimeError("operator torchvision::nms does not exist")
        assert "torchvision" not in sys.modules
        assert "torchvision.extension" not in sys.modules
        return working

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(torchvision_shim, "_declare_operators", lambda: steps.append("declared"))
    assert torchvision_shim.torchvision_models() is working.models


@pytest.mark.usefixtures("forgotten")
def test_other_failures_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> ModuleType:
        raise RuntimeError("something else")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_shim.torchvision_models()


@needs_torchvision
def test_torchvision_is_imported_once() -> None:
    assert torchvision_shim.torchvision_models() is torchvision_shim.torchvision_models()
    assert torchvision_shim.torchvision_models() is sys.modules["torchvision.models"]


@needs_torchvision
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_first_convolution_is_fitted_to_the_channels(channels: int) -> None:
    network = registry.make("models", "shufflenet-v2").build((channels, 32, 32), 10, seed=0)
    conv = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    assert (conv.in_channels, conv.out_channels, conv.stride, conv.padding) == (channels, 24, (2, 2), (1, 1))
    assert conv.bias is None
    assert network(torch.zeros(2, channels, 32, 32)).shape == (2, 10)
