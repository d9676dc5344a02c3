"""Under secure aggregation the record proves that it holds the sum, and holds nothing where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array

from fedspill.errors import FedspillError
from fedspill.flower.round_messages import NodeReply, ServerRound
from fedspill.flower.secure_sums import messages_of_summed_round


def arrays(value: float) -> dict[str, Array]:
    return {"w": Array(np.full((2, 3), value, np.float32))}


def round_with(*replies: NodeReply) -> ServerRound:
    return ServerRound(0, (arrays(1.0),), {1: 0, 2: 0, 3: 0}, replies)


def test_the_same_reply_from_all_is_the_sum() -> None:
    found = messages_of_summed_round(round_with(*(NodeReply(node, arrays(1.5), 10) for node in (1, 2))))
    assert [message.kind for message in found.messages] == ["model", "aggregate"]
    assert torch.equal(found.messages[1].tensors["w"], torch.full((2, 3), 0.5))
    assert found.messages[1].info == {"clients": 2, "examples": 20, "of": "update"}
    assert [(event.party, event.what) for event in found.events] == [("client:3", "not in the sum")]


def test_replies_that_differ_are_single_updates_and_not_recorded() -> None:
    with pytest.raises(FedspillError, match="updates of single clients"):
        messages_of_summed_round(round_with(NodeReply(1, arrays(1.5), 10), NodeReply(2, arrays(1.6), 10)))


def test_the_sum_of_one_client_is_not_recorded() -> None:
    with pytest.raises(FedspillError, match="only one client"):
        messages_of_summed_round(round_with(NodeReply(1, arrays(1.5), 10)))


def test_a_sum_that_is_not_finite_is_an_event() -> None:
    found = messages_of_summed_round(round_with(*(NodeReply(node, arrays(float("nan")), 10) for node in (1, 2))))
    assert [message.kind for message in found.messages] == ["model"]
    assert "has NaN" in found.events[-1].what


def test_a_round_that_nobody_answered_holds_the_model_and_one_event_per_client() -> None:
    found = messages_of_summed_round(round_with(NodeReply(1, error="failed: gone")))
    assert [message.kind for message in found.messages] == ["model"]
    assert len(found.events) == 3
