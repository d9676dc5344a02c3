"""The last layer of a classifier is found in a gradient alone, whatever its tensors are called."""

import pytest
import torch
from spine import CLASSES, blobs, network
from torch import Tensor

from fedspill.errors import NoHead
from fedspill.observe.find_head import find_head, layer_and_bias_names
from fedspill.training import gradient


def real_gradient() -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in gradient(network(), blobs(20, 1)).items()}


def test_the_head_of_a_real_network_is_found_and_adds_up_to_zero() -> None:
    found = find_head(real_gradient())
    assert (found.name, found.weight_name, found.transposed) == ("head", "head.weight", False)
    assert found.weight.shape[0] == CLASSES
    assert found.zero_sum < 1e-5


def test_a_head_that_is_stored_transposed_under_other_names_is_found() -> None:
    tensors = real_gradient()
    keras = {"dense/kernel:0": tensors["fc1.weight"].T, "dense/bias:0": tensors["fc1.bias"]}
    keras |= {"out/kernel:0": tensors["head.weight"].T, "out/bias:0": tensors["head.bias"]}
    found = find_head(keras)
    assert (found.name, found.transposed) == ("out", True)
    assert torch.equal(found.weight, tensors["head.weight"])


def test_another_layer_is_refused_unless_it_is_taken_unchecked() -> None:
    with pytest.raises(NoHead, match="'fc1' is not the last layer"):
        find_head(real_gradient(), "fc1")
    assert find_head(real_gradient(), "fc1", unchecked=True).name == "fc1"
    with pytest.raises(NoHead, match="no linear layer named 'fc9'"):
        find_head(real_gradient(), "fc9")


@pytest.mark.parametrize(
    ("weight", "layer", "bias"),
    [
        ("fc.weight", "fc", "fc.bias"),
        ("dense/kernel:0", "dense", "dense/bias:0"),
        ("head_w", "head", "head_b"),
        ("W3", "W3", "b3"),
    ],
)
def test_layer_and_bias_are_named_as_the_frameworks_do(weight: str, layer: str, bias: str) -> None:
    assert layer_and_bias_names(weight) == (layer, bias)
