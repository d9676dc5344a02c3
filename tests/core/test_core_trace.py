"""Trace, View, Keep and Truth in memory: who is shown what, and that nobody can change it for others."""

import pytest
import torch
from spine import knowledge, recorded

from fedspill.errors import NotKnown, NotVisible
from fedspill.messages import KINDS, Kind, Message
from fedspill.threat import ADVERSARIES, CURIOUS_CLIENT, CURIOUS_SERVER, CURIOUS_SERVER_SECAGG, Channel, ThreatModel
from fedspill.trace import PUBLIC, Event, Keep, MemoryTrace, NoRecorder, Origin, Truth


def said() -> list[Message]:
    one = torch.ones(2)
    return [
        Message(0, "server", "all", "model", {"a": one, "b": one}),
        Message(0, "client:0", "server", "update", {"a": one * 2, "b": one}, {"examples": 3}),
        Message(0, "client:1", "server", "update", {"a": one * 3, "b": one}, {"examples": 4}),
        Message(0, "aggregator", "server", "aggregate", {"a": one * 4, "b": one}),
        Message(1, "server", "all", "model", {"a": one * 5, "b": one}),
    ]


def test_messages_come_in_order_by_kind_and_round() -> None:
    trace = MemoryTrace.of(said())
    assert [message.kind for message in trace.messages()] == ["model", "update", "update", "aggregate", "model"]
    assert [message.sender for message in trace.messages("update")] == ["client:0", "client:1"]
    assert [message.round for message in trace.messages("model", round=1)] == [1]
    assert list(trace.messages("gradient")) == []


def test_what_a_reader_does_to_a_message_nobody_else_sees() -> None:
    trace = MemoryTrace.of(said())
    view = trace.view(CURIOUS_SERVER)
    got = view.get("update")[0]
    got.tensors["a"].fill_(torch.nan)
    got.info["examples"] = 99  # type: ignore[index]
    again = trace.view(CURIOUS_SERVER).get("update")[0]
    assert again.tensors["a"].tolist() == [2, 2]
    assert again.info["examples"] == 3


def test_what_the_speaker_does_later_is_not_in_the_recording() -> None:
    tensor = torch.ones(2)
    trace = MemoryTrace.of([Message(0, "client:0", "server", "update", {"a": tensor})])
    tensor.fill_(7)
    assert next(trace.messages()).tensors["a"].tolist() == [1, 1]


@pytest.mark.parametrize("threat", ADVERSARIES.values(), ids=list(ADVERSARIES))
@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_a_kind_that_is_not_seen_raises(threat: ThreatModel, kind: Kind) -> None:
    view = MemoryTrace.of(said()).view(threat, me="client:0")
    assert view.sees(kind) == threat.sees_kind(kind)
    if view.sees(kind):
        assert all(threat.sees_message(message, "client:0") for message in view.get(kind))
    else:
        with pytest.raises(NotVisible, match=f"{threat.name} does not see {kind}"):
            view.get(kind)


def test_of_a_kind_that_is_seen_only_one_s_own_are_handed_over() -> None:
    view = MemoryTrace.of(said()).view(CURIOUS_CLIENT, me="client:1")
    assert [message.sender for message in view.get("update")] == ["client:1"]
    assert [message.sender for message in MemoryTrace.of(said()).view(CURIOUS_CLIENT).get("update")] == []


def test_secure_aggregation_shows_the_sum_only() -> None:
    view = MemoryTrace.of(said()).view(CURIOUS_SERVER_SECAGG)
    assert [message.sender for message in view.get("aggregate")] == ["aggregator"]
    with pytest.raises(NotVisible, match="it sees: aggregate, model"):
        view.get("update")


def test_an_adversary_that_sees_nothing_is_told_so() -> None:
    with pytest.raises(NotVisible, match="it sees: nothing"):
        MemoryTrace().view(ThreatModel("blind")).get("model")


def test_knowledge_is_what_the_adversary_may_know_and_the_trace_or_caller_offers() -> None:
    trace = MemoryTrace({"batch_size": 4, "local_lr": 0.1, "optimizer": None, "plan": {"secret": 1}, "classes": 3})
    view = trace.view(CURIOUS_SERVER, knowledge={"aux_data": "aux", "own_data": "not its own"})
    assert view.knows("batch_size") == 4
    assert view.knows("aux_data") == "aux"
    assert not view.has("own_data")
    assert not view.has("optimizer")
    assert not view.has("plan")
    with pytest.raises(NotKnown, match="curious-server does not know its own training data"):
        view.knows("own_data")
    with pytest.raises(NotKnown, match="this trace does not say it"):
        view.knows("optimizer")
    with pytest.raises(NotKnown):
        view.knows("plan")
    assert view.public["classes"] == 3
    assert set(view.public) == set(PUBLIC)


def test_the_caller_s_knowledge_goes_before_the_protocol_s() -> None:
    trace = MemoryTrace({"batch_size": 4})
    assert trace.view(CURIOUS_SERVER, knowledge={"batch_size": 5}).knows("batch_size") == 5


def test_a_view_has_no_way_to_the_truth_in_its_public_names() -> None:
    trace, _ = recorded()
    view = trace.view(CURIOUS_SERVER, knowledge=knowledge())
    reachable = [getattr(view, name) for name in dir(view) if not name.startswith("_")]
    assert not any(isinstance(thing, Truth | MemoryTrace) for thing in reachable)


def test_keep_chooses_kinds_rounds_clients_and_tensors() -> None:
    def kept(**options: object) -> list[tuple[int, str, str]]:
        trace = MemoryTrace(keep=Keep(**options))  # type: ignore[arg-type]
        for message in said():
            trace.say(message)
        return [(message.round, message.kind, message.sender) for message in trace.messages()]

    everything = [(message.round, message.kind, message.sender) for message in said()]
    assert kept() == everything
    assert kept(kinds=frozenset({"model"})) == [(0, "model", "server"), (1, "model", "server")]
    assert kept(rounds=frozenset({1})) == [(1, "model", "server")]
    assert kept(clients=frozenset({"client:1"})) == [entry for entry in everything if entry[2] != "client:0"]
    assert kept(rounds=frozenset()) == []

    trace = MemoryTrace(keep=Keep(tensors=("b*",)))
    trace.say(said()[1])
    assert list(next(trace.messages()).tensors) == ["b"]


def test_facts_are_copies_by_origin_and_name() -> None:
    trace, value = MemoryTrace(), torch.tensor([1, 2])
    trace.note_truth(Origin(0, "client:0"), "label_counts", value)
    value.zero_()
    truth = trace.truth()
    assert truth.get(Origin(0, "client:0"), "label_counts").tolist() == [1, 2]
    assert truth.has(Origin(0, "client:0"), "label_counts")
    assert not truth.has(Origin(1, "client:0"), "label_counts")
    with pytest.raises(KeyError):
        truth.get(Origin(1, "client:0"), "label_counts")


def test_events_are_kept_and_no_recorder_keeps_nothing() -> None:
    trace = MemoryTrace()
    for recorder in (trace, NoRecorder()):
        recorder.note_event(Event(0, "client:0", "did not answer"))
        recorder.note_truth(Origin(0, "client:0"), "label_counts", torch.ones(1))
        recorder.say(said()[0])
        recorder.end_round(0)
        recorder.finish()
    assert trace.events == [Event(0, "client:0", "did not answer")]


def test_a_channel_says_itself_in_words() -> None:
    assert str(Channel("update", "client", "server")) == "update from client to server"
