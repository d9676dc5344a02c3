"""ThreatModel: who sees which messages, and what an adversary lacks for an attack."""

import itertools

import pytest

from fedspill.errors import UnknownName
from fedspill.messages import Message
from fedspill.threat import (
    ADVERSARIES,
    CURIOUS_CLIENT,
    CURIOUS_SERVER,
    CURIOUS_SERVER_SECAGG,
    EAVESDROPPER,
    KNOWLEDGE,
    MALICIOUS_SERVER,
    POWERS,
    VERTICAL_SERVER,
    Channel,
    ThreatModel,
    adversary,
    needs,
)

BROADCAST = Message(0, "server", "all", "model", {})
TO_ONE = Message(0, "server", "client:1", "model", {})
PLAIN = Message(0, "client:1", "server", "update", {})
MASKED = Message(0, "client:1", "aggregator", "update", {})
GRADIENT = Message(0, "client:1", "server", "gradient", {})
SUM = Message(0, "aggregator", "server", "aggregate", {})
PARTY = Message(0, "party:1", "server", "gradient", {})
EMBEDDING = Message(0, "party:1", "server", "embedding", {})


@pytest.mark.parametrize(
    ("threat", "sees"),
    [
        (CURIOUS_SERVER, {"broadcast", "to one", "plain", "gradient", "sum"}),
        (CURIOUS_SERVER_SECAGG, {"broadcast", "to one", "sum"}),
        (CURIOUS_CLIENT, {"broadcast"}),
        (EAVESDROPPER, {"broadcast", "to one", "plain", "gradient"}),
        (MALICIOUS_SERVER, {"broadcast", "to one", "sum"}),
        (VERTICAL_SERVER, {"broadcast", "party", "embedding"}),
    ],
    ids=lambda value: value.name if isinstance(value, ThreatModel) else "",
)
def test_who_sees_what(threat: ThreatModel, sees: set[str]) -> None:
    sent = {
        "broadcast": BROADCAST,
        "to one": TO_ONE,
        "plain": PLAIN,
        "masked": MASKED,
        "gradient": GRADIENT,
        "sum": SUM,
        "party": PARTY,
        "embedding": EMBEDDING,
    }
    assert {name for name, message in sent.items() if threat.sees_message(message, "client:9")} == sees


def test_a_client_sees_what_it_sends_and_receives_and_nothing_of_others() -> None:
    for message in (BROADCAST, TO_ONE, PLAIN, GRADIENT):
        assert CURIOUS_CLIENT.sees_message(message, "client:1")
    for message in (TO_ONE, PLAIN, GRADIENT, SUM):
        assert not CURIOUS_CLIENT.sees_message(message, "client:2")
        assert not CURIOUS_CLIENT.sees_message(message, None)


def test_secure_aggregation_hides_every_single_update_from_every_adversary() -> None:
    assert not any(threat.sees_message(MASKED, "client:2") for threat in ADVERSARIES.values())


def test_one_s_own_updates_are_no_leak() -> None:
    assert CURIOUS_CLIENT.missing(needs(sees=["update|gradient"])) == ["to see gradient messages or update messages"]
    assert CURIOUS_SERVER.missing(needs(sees=["update|gradient"])) == []


def test_everything_that_is_missing_is_named_at_once() -> None:
    lacks = EAVESDROPPER.missing(
        needs(sees=["update", "aggregate"], knows=["architecture", "local_lr", "aux_data"], does=["alter_model"])
    )
    assert lacks == [
        "to see aggregate messages",
        f"to know {KNOWLEDGE['architecture']} (architecture)",
        f"to know {KNOWLEDGE['aux_data']} (aux_data)",
        f"to {POWERS['alter_model']} (alter_model)",
    ]


def test_one_kind_of_a_group_is_enough() -> None:
    group = needs(sees=["update|gradient|aggregate"])
    for kind in ("update", "gradient", "aggregate"):
        assert ThreatModel("one", frozenset({Channel(kind, "client", "server")})).missing(group) == []
    assert ThreatModel("none").missing(group) != []


def test_words_that_nobody_knows_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="architecture"):
        ThreatModel("x", knows=frozenset({"architectur"}))
    with pytest.raises(UnknownName, match="alter_model"):
        ThreatModel("x", does=frozenset({"alter_modell"}))
    with pytest.raises(UnknownName, match="Did you mean 'curious-server'"):
        adversary("curious-serve")


def test_the_named_adversaries_are_told_apart_and_described() -> None:
    assert set(ADVERSARIES) >= {
        "curious-server",
        "curious-server-secagg",
        "curious-client",
        "eavesdropper",
        "malicious-server",
        "malicious-server-updates",
        "vertical-server",
    }
    assert all(adversary(name) is threat and threat.title for name, threat in ADVERSARIES.items())
    assert all(first != second for first, second in itertools.combinations(ADVERSARIES.values(), 2))
    assert {name for name, threat in ADVERSARIES.items() if threat.does} == {
        "malicious-server",
        "malicious-server-updates",
        "vertical-server",
    }
