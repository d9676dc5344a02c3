"""Message: what travels cannot be changed by whoever reads it."""

import dataclasses

import pytest
import torch

from fedspill.messages import KINDS, Message, client, role


def message() -> Message:
    return Message(2, "client:7", "server", "update", {"a": torch.ones(3), "b": torch.zeros(2, 2)}, {"examples": 4})


def test_a_copy_has_storage_of_its_own() -> None:
    first = message()
    second = first.copy()
    second.tensors["a"][0] = 9.0
    assert isinstance(second.info, dict)
    second.info["examples"] = 9
    assert first.tensors["a"].tolist() == [1, 1, 1]
    assert first.info["examples"] == 4
    assert (second.round, second.sender, second.receiver, second.kind) == (2, "client:7", "server", "update")


def test_a_copy_of_parameters_is_cut_off_from_their_graph() -> None:
    copied = Message(0, "server", "all", "model", {"a": torch.ones(2, requires_grad=True) * 2}).copy()
    assert not copied.tensors["a"].requires_grad


def test_a_message_is_frozen_and_its_default_info_too() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        message().round = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Message(0, "server", "all", "model", {}).info["examples"] = 1  # type: ignore[index]


def test_its_size_is_that_of_its_tensors() -> None:
    assert message().nbytes == 4 * (3 + 4)
    assert Message(0, "a", "b", "update", {"h": torch.ones(5, dtype=torch.bfloat16)}).nbytes == 10
    assert Message(0, "a", "b", "update", {}).nbytes == 0


def test_addresses() -> None:
    assert client(7) == "client:7"
    assert [role(party) for party in ("client:7", "server", "party:1", "client:a:b")] == [
        "client",
        "server",
        "party",
        "client",
    ]
    vertical = {"batch", "gradient", "embedding", "returned", "prediction"}
    assert set(KINDS) == {"model", "update", "aggregate"} | vertical
