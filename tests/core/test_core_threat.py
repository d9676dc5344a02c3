"""ThreatModel: who sees which messages, and what an adversary lacks for an attack."""

import itertools

import pytest

from fedspill.errors import UnknownName
from fedspill.messages import Message
from fedspill.threat import (
    ACTIVE_PARTY,
    ADVERSARIES,
    CURIOUS_CLIENT,
    CURIOUS_PARTY,
    CURIOUS_SERVER,
    CURIOUS_SERVER_SECAGG,
    EAVESDROPPER,
    KNOWLEDGE,
    MALICIOUS_PARTY,
    MALICIOUS_SERVER,
    POWERS,
    VERTICAL_SERVER,
    Channel,
    ThreatModel,
    adversary,
    made_for,
    needs,
    stands_in,
)

BROADCAST = Message(0, "server", "all", "model", {})
TO_ONE = Message(0, "server", "client:1", "model", {})
PLAIN = Message(0, "client:1", "server", "update", {})
MASKED = Message(0, "client:1", "aggregator", "update", {})
GRADIENT = Message(0, "client:1", "server", "gradient", {})
SUM = Message(0, "aggregator", "server", "aggregate", {})
PARTY = Message(0, "party:1", "server", "gradient", {})
EMBEDDING = Message(0, "party:1", "server", "embedding", {})
RETURNED = Message(0, "server", "party:1", "returned", {})
OWN_TOWER = Message(0, "party:1", "party:1", "model", {})
HANDED_OVER = Message(0, "party:1", "server", "model", {})
HEAD = Message(0, "server", "server", "model", {})
PREDICTION = Message(0, "aggregator", "server", "prediction", {})


@pytest.mark.parametrize(
    ("threat", "sees"),
    [
        (CURIOUS_SERVER, {"broadcast", "to one", "plain", "gradient", "sum"}),
        (CURIOUS_SERVER_SECAGG, {"broadcast", "to one", "sum"}),
        (CURIOUS_CLIENT, {"broadcast"}),
        (EAVESDROPPER, {"broadcast", "to one", "plain", "gradient"}),
        (MALICIOUS_SERVER, {"broadcast", "to one", "sum"}),
        (VERTICAL_SERVER, {"broadcast", "party", "embedding"}),
        (CURIOUS_PARTY, set()),
        (MALICIOUS_PARTY, set()),
        (ACTIVE_PARTY, {"broadcast", "embedding", "handed over", "head", "prediction"}),
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
        "returned": RETURNED,
        "own tower": OWN_TOWER,
        "handed over": HANDED_OVER,
        "head": HEAD,
        "prediction": PREDICTION,
    }
    assert {name for name, message in sent.items() if threat.sees_message(message, "client:9")} == sees


def test_a_client_sees_what_it_sends_and_receives_and_nothing_of_others() -> None:
    for message in (BROADCAST, TO_ONE, PLAIN, GRADIENT):
        assert CURIOUS_CLIENT.sees_message(message, "client:1")
    for message in (TO_ONE, PLAIN, GRADIENT, SUM):
        assert not CURIOUS_CLIENT.sees_message(message, "client:2")
        assert not CURIOUS_CLIENT.sees_message(message, None)


def test_a_party_sees_what_comes_back_to_it_and_its_own_tower_and_nothing_of_other_parties() -> None:
    for message in (RETURNED, OWN_TOWER, EMBEDDING):
        for threat in (CURIOUS_PARTY, MALICIOUS_PARTY):
            assert threat.sees_message(message, "party:1")
            assert not threat.sees_message(message, "party:2")
    assert not CURIOUS_PARTY.sees_message(HANDED_OVER, "party:2")
    assert not any(threat.sees_message(RETURNED, threat.me) for threat in ADVERSARIES.values())


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
        "curious-party",
        "malicious-party",
        "active-party",
        "malicious-active-party",
    }
    assert all(adversary(name) is threat and threat.title for name, threat in ADVERSARIES.items())
    assert all(first != second for first, second in itertools.combinations(ADVERSARIES.values(), 2))
    acting = {"malicious-server", "malicious-server-updates", "vertical-server", "malicious-party"}
    acting |= {"malicious-active-party"}
    assert {name for name, threat in ADVERSARIES.items() if threat.does} == acting


def test_every_adversary_stands_in_one_kind_of_federation() -> None:
    kinds = {name: stands_in(threat) for name, threat in ADVERSARIES.items()}
    private = {"curious-party", "malicious-party", "active-party", "malicious-active-party"}
    assert {name for name, kind in kinds.items() if kind == "private towers"} == private
    assert {name for name, kind in kinds.items() if kind == "shared towers"} == {"vertical-server"}
    assert made_for(needs(sees=["returned", "batch"])) == "private towers"
    assert made_for(needs(sees=["batch", "gradient", "model"])) == "shared towers"
    assert made_for(needs(sees=["update|gradient"])) == "horizontal"
