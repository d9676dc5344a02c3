"""What a server lets into the sum, and the sum."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedspill.federation.update_checks import envelope_fault, is_recordable, update_fault
from fedspill.federation.weighted_sum import weighted_sum
from fedspill.messages import Message

EXPECTED = {"w": torch.zeros(3, 2), "b": torch.zeros(3)}
SOUND = {"w": torch.ones(3, 2), "b": torch.ones(3)}


def with_b(value: Any) -> dict[str, Any]:
    return {**SOUND, "b": value}


def test_a_sound_update_has_no_fault() -> None:
    assert update_fault(SOUND, EXPECTED) is None
    assert update_fault(dict(reversed(SOUND.items())), EXPECTED) is None, "the order of tensors does not matter"
    assert update_fault(with_b(torch.zeros(3)), EXPECTED) is None, "a tensor may be zero if not all are"
    assert update_fault(with_b(torch.full((3,), 1e-40)), EXPECTED) is None, "subnormal numbers are numbers"
    assert update_fault({"w": torch.ones(2, 3).T, "b": SOUND["b"]}, EXPECTED) is None, "strides do not matter"


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (with_b(torch.tensor([1.0, torch.nan, 1.0])), "has NaN at 'b'"),
        (with_b(torch.tensor([1.0, torch.inf, torch.nan])), "has NaN at 'b'"),
        (with_b(torch.tensor([1.0, torch.inf, 1.0])), "has an infinite value at 'b'"),
        (with_b(torch.tensor([1.0, -torch.inf, 1.0])), "has an infinite value at 'b'"),
        (with_b(torch.full((3,), 3e38)), "overflows at 'b'"),
        ({name: torch.zeros_like(tensor) for name, tensor in SOUND.items()}, "is all zero"),
        ({}, "is empty"),
        (with_b(torch.ones(3, dtype=torch.float64)), "has type torch.float64 at 'b', expected torch.float32"),
        (with_b(torch.ones(3, dtype=torch.int8)), "has type torch.int8 at 'b', expected torch.float32"),
        (with_b(torch.ones(3, dtype=torch.bfloat16)), "has type torch.bfloat16 at 'b', expected torch.float32"),
        (with_b(torch.ones(1)), "has shape (1,) at 'b', expected (3,)"),
        (with_b(torch.ones(3, 1)), "has shape (3, 1) at 'b', expected (3,)"),
        (with_b(torch.tensor(1.0)), "has shape () at 'b', expected (3,)"),
        ({"w": torch.ones(2, 3), "b": SOUND["b"]}, "has shape (2, 3) at 'w', expected (3, 2)"),
        ({"w": SOUND["w"]}, "lacks tensor 'b'"),
        ({**SOUND, "c": torch.ones(1)}, "has an unknown tensor 'c'"),
        ({"w": SOUND["w"], "B": SOUND["b"]}, "lacks tensor 'b'"),
        (with_b([1.0, 1.0, 1.0]), "has something other than a plain tensor at 'b'"),
        (with_b(None), "has something other than a plain tensor at 'b'"),
        (with_b(torch.ones(3).to_sparse()), "has something other than a plain tensor at 'b'"),
        (with_b(torch.ones(3, device="meta")), "has something other than a plain tensor at 'b'"),
        (with_b(torch.ones(3, dtype=torch.complex64)), "has something other than a plain tensor at 'b'"),
    ],
)
def test_a_fault_is_named_with_its_tensor(update: dict[str, Any], says: str) -> None:
    assert update_fault(update, EXPECTED) == says


def test_what_a_client_makes_up_does_not_fill_the_log() -> None:
    said = update_fault({**SOUND, "x" * 10_000: torch.ones(1)}, EXPECTED)
    assert said is not None
    assert len(said) < 150


HONEST = Message(4, "client:1", "server", "update", {}, {"examples": 7})


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (HONEST, None),
        (Message(4, "client:1", "server", "update", {}, {"examples": 9, "loss": 0.5, "note": "x", "ok": True}), None),
        (Message(3, "client:1", "server", "update", {}, {"examples": 7}), "claims round 3, which is 4"),
        (Message(4, "client:2", "server", "update", {}, {"examples": 7}), "claims sender 'client:2', which"),
        (Message(4, "client:1", "client:3", "update", {}, {"examples": 7}), "claims receiver"),
        (Message(4, "client:1", "server", "gradient", {}, {"examples": 7}), "claims kind 'gradient', which"),
        (Message(4, "client:1", "server", "update", {}, {}), "comes from None examples"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 0}), "comes from 0 examples"),
        (Message(4, "client:1", "server", "update", {}, {"examples": -1}), "comes from -1 examples"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 2.5}), "comes from 2.5 examples"),
        (Message(4, "client:1", "server", "update", {}, {"examples": float("nan")}), "comes from nan examples"),
        (Message(4, "client:1", "server", "update", {}, {"examples": True}), "comes from True examples"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 10**400}), "comes from 1000"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, "loss": float("inf")}), "says inf of 'loss'"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, "note": "\ud800"}), "of 'note'"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, "\udfff": 1}), "says 1 of"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, "loss": float("nan")}), "says nan of 'loss'"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, "n": 10**400}), "of 'n'"),
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, "x": [1]}), "says [1] of 'x'"),  # type: ignore[dict-item]
        (Message(4, "client:1", "server", "update", {}, {"examples": 7, 3: 1}), "says 1 of 3"),  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_what_a_message_wrongly_says_about_itself_is_named(message: Message, says: str | None) -> None:
    found = envelope_fault(message, HONEST)
    assert found is None if says is None else says in (found or "")
    assert len(found or "") < 150


def test_only_plain_tensors_are_recordable() -> None:
    assert is_recordable({})
    assert is_recordable(with_b(torch.full((9,), torch.nan)))
    assert is_recordable(with_b(torch.ones(3, dtype=torch.int8)))
    for value in (None, [1.0], torch.ones(3).to_sparse(), torch.ones(3, device="meta"), torch.ones(1) * 1j):
        assert not is_recordable(with_b(value))
    assert not is_recordable({3: torch.ones(1)})  # type: ignore[dict-item]
    assert not is_recordable({"\ud800": torch.ones(1)})


def test_the_weighted_sum_is_right_and_leaves_the_updates_alone() -> None:
    updates: list[dict[str, Tensor]] = [{"a": torch.full((2,), float(value))} for value in (1, 2, 4)]
    assert weighted_sum(updates, [0.5, 0.25, 0.25])["a"].tolist() == [2.0, 2.0]
    assert [update["a"].tolist() for update in updates] == [[1, 1], [2, 2], [4, 4]]
    assert weighted_sum(updates[:1], [1.0])["a"].data_ptr() != updates[0]["a"].data_ptr()
