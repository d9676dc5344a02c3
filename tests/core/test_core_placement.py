"""Placement: what is moved is the same afterwards."""

import torch

from fedspill.placement import brought_back, in_one_piece, sent_to

MANY = {
    "weight": torch.randn(3, 4),
    "steps": torch.tensor(7),
    "scalar": torch.tensor(0.5),
    "turned": torch.randn(2, 5).T,
    "empty": torch.empty(0, 3),
    "half": torch.randn(4).half(),
}


def test_tensors_that_travel_in_one_piece_keep_names_order_types_shapes_and_values() -> None:
    there = in_one_piece(MANY, "cpu")
    assert list(there) == list(MANY)
    for name, tensor in MANY.items():
        assert there[name].dtype == tensor.dtype
        assert torch.equal(there[name], tensor), name


def test_what_is_brought_back_is_a_copy() -> None:
    own = {"weight": torch.zeros(3)}
    back = brought_back(own)
    own["weight"].fill_(1)
    assert not back["weight"].any()


def test_a_tensor_sent_to_the_cpu_stays_what_it_is() -> None:
    assert torch.equal(sent_to(MANY["weight"], torch.device("cpu")), MANY["weight"])
