"""Under secure aggregation the record proves that it holds the sum, and holds nothing where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array

from fedspill.errors import FedspillError
from fedspill.flower.round_messages import Reply, Seen
from fedspill.flower.secure_sums import tell_sum


def arrays(value: float) -> dict[str, Array]:
    return {"w": Array(np.full((2, 3), value, np.float32))}


def seen(*replies: Reply) -> Seen:
    return Seen(0, (arrays(1.0),), {1: 0, 2: 0, 3: 0}, replies)


def test_the_same_reply_from_all_is_the_sum() -> None:
    told = tell_sum(seen(*(Reply(node, arrays(1.5), 10) for node in (1, 2))))
    assert [message.kind for message in told.messages] == ["model", "aggregate"]
    assert torch.equal(told.messages[1].tensors["w"], torch.full((2, 3), 0.5))
    assert told.messages[1].info == {"clients": 2, "examples": 20, "of": "update"}
    assert [(event.party, event.what) for event in told.events] == [("client:3", "not in the sum")]


def test_replies_that_differ_are_single_updates_and_not_recorded() -> None:
    with pytest.raises(FedspillError, match="updates of single clients"):
        tell_sum(seen(Reply(1, arrays(1.5), 10), Reply(2, arrays(1.6), 10)))


def test_the_sum_of_one_client_is_not_recorded() -> None:
    with pytest.raises(FedspillError, match="only one client"):
        tell_sum(seen(Reply(1, arrays(1.5), 10)))


def test_a_sum_that_is_not_finite_is_an_event() -> None:
    told = tell_sum(seen(*(Reply(node, arrays(float("nan")), 10) for node in (1, 2))))
    assert [message.kind for message in told.messages] == ["model"]
    assert "has NaN" in told.events[-1].what


def test_a_round_that_nobody_answered() -> None:
    told = tell_sum(seen(Reply(1, error="failed: gone")))
    assert [message.kind for message in told.messages] == ["model"]
    assert len(told.events) == 3
