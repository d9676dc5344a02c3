"""Clients that compare digests see a server that hands out several models, and none where it hands out one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from inprocess import InProcess

from fedspill.defenses.model_checks.digests import digest_of, disagreement
from fedspill.flower import FolderBoard, SameModel

MODEL = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.zeros(2)}


def context(node: int) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def asked(mod: SameModel, own: Context, number: int, model: dict[str, torch.Tensor], kind: str = "train") -> Message:
    content = RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"server-round": number})})
    InProcess(ClientApp(), 1)  # messages can be made inside a run only
    msg = Message(content, own.node_id, kind)
    msg.metadata.__dict__["_message_id"] = "m"
    return mod(msg, own, lambda message, _: Message(message.content, reply_to=message))


def test_a_digest_is_of_names_types_shapes_and_values() -> None:
    others = (
        {**MODEL, "a.bias": torch.tensor([0.0, 1e-30])},
        {"b.weight": MODEL["a.weight"], "a.bias": MODEL["a.bias"]},
        {**MODEL, "a.weight": MODEL["a.weight"].reshape(3, 2)},
        {**MODEL, "a.weight": MODEL["a.weight"].double()},
    )
    assert digest_of(MODEL) == digest_of(dict(reversed(MODEL.items())))
    assert len({digest_of(MODEL), *map(digest_of, others)}) == 5
    assert disagreement("x", ["x", "x"]) == disagreement("x", []) == ""
    assert "1 of 2 other clients" in disagreement("x", ["y", "x"])


def test_clients_that_get_the_same_model_train_and_others_do_not(tmp_path: Path) -> None:
    mod, clients = SameModel(FolderBoard(tmp_path)), [context(node) for node in range(3)]
    for number in (1, 2):
        assert not any(asked(mod, own, number, MODEL).has_error() for own in clients)
    other = {**MODEL, "a.bias": torch.ones(2)}
    assert not asked(mod, clients[0], 3, MODEL).has_error(), "the first to be asked has nobody to compare with"
    late = asked(mod, clients[1], 3, other)
    assert late.has_error()
    assert "another model" in str(late.error.reason)
    first = asked(mod, clients[0], 4, MODEL)
    assert first.has_error(), "it learns in its next round"
    assert "of round 3" in str(first.error.reason)


def test_a_digest_that_is_still_being_written_and_other_messages_are_left_alone(tmp_path: Path) -> None:
    mod, own = SameModel(FolderBoard(tmp_path)), context(1)
    (tmp_path / "round-1").mkdir()
    (tmp_path / "round-1" / "7").write_text("abc")
    assert not asked(mod, own, 1, MODEL).has_error()
    assert not asked(mod, own, 1, {**MODEL, "a.bias": torch.ones(2)}, kind="evaluate").has_error()
    assert len(list((tmp_path / "round-1").iterdir())) == 2


@pytest.mark.parametrize("bad", [{}, {"a": torch.zeros(0)}])
def test_an_empty_model_has_a_digest_too(bad: dict[str, torch.Tensor]) -> None:
    assert len(digest_of(bad)) == 64
