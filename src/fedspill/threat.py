"""ThreatModel: what an adversary sees, knows and does; the same type says what an attack needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedspill.errors import UnknownName

if TYPE_CHECKING:
    from fedspill.messages import Message

# What an adversary may know, in words for reports and for errors.
KNOWLEDGE: dict[str, str] = {
    "architecture": "the model's code, so that it can run forward passes",
    "batch_size": "samples per local step",
    "samples": "samples a client trains on in a round",
    "local_lr": "the clients' learning rate",
    "local_epochs": "passes over its data that a client makes in a round",
    "optimizer": "the clients' optimizer and its constants",
    "client_count": "how many clients take part in a round",
    "labels_per_client": "how many labels a client holds",
    "unlabelled_aux": "inputs of the same kind, without labels",
    "aux_data": "a small labelled set of the same kind, disjoint from every client",
    "shadow_data": "a larger set of the same distribution, disjoint from every client",
    "table_schema": "the table's columns: which there are, their categories, and how numbers are scaled",
    "targets": "the records it looks for",
    "asked_records": "whole records, to ask whether anybody trained on them",
    "defense": "the public parameters of the defenses in place",
    "own_data": "its own training data",
    "few_labels": "the labels of a few samples of a vertical federation",
    "class_prior": "how common each class is",
    "party_features": "the features that it holds itself, as a party of a vertical federation",
    "active_features": "the features that the active party of a vertical federation holds itself",
    "paired_aux": "what another party holds of a few samples of a vertical federation",
    "feature_ranges": "the smallest and the largest value of each feature of another party",
}
ALTER_TRAINING = "alter_training"
ALTER_RETURNED = "alter_returned"
# What is done while a federation runs, so that an attack that does it has a federation of its own.
ALTERING = frozenset({ALTER_TRAINING, ALTER_RETURNED})
POWERS: dict[str, str] = {
    "alter_model": "send a model other than the honest one",
    "choose_batch": "choose which samples a round uses",
    ALTER_TRAINING: "train its own tower other than agreed",
    ALTER_RETURNED: "send back gradients that are not those of the loss",
}


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """Messages of one kind from one role to another; "self" stands for the adversary's own address."""

    kind: str
    sender: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.kind} from {self.sender} to {self.receiver}"

    def includes(self, other: Channel) -> bool:
        """Whether everything that passes there passes here: one client's own messages are among all clients'."""
        ends = ((self.sender, other.sender), (self.receiver, other.receiver))
        return self.kind == other.kind and all(mine == its or (mine, its) == ("client", "self") for mine, its in ends)

    def carries(self, message: Message, me: str | None) -> bool:
        return (
            message.kind == self.kind
            and _is(message.sender, self.sender, me)
            and (message.receiver == "all" or _is(message.receiver, self.receiver, me))
        )


def _is(address: str, pattern: str, me: str | None) -> bool:
    return address == me if pattern == "self" else address.partition(":")[0] == pattern


@dataclass(frozen=True)
class ThreatModel:
    """An adversary, or (for an attack) the least that an adversary must be."""

    name: str
    sees: frozenset[Channel] = frozenset()
    knows: frozenset[str] = frozenset()
    does: frozenset[str] = frozenset()  # empty: passive
    title: str = field(default="", compare=False)
    who: str = field(default="", compare=False)  # in the middle of a sentence: "the server"
    short: str = field(default="", compare=False)  # what it is, in a few words: "follows the protocol"
    me: str = field(default="client:0", compare=False)  # its own address, where it is one of several

    def __post_init__(self) -> None:
        for word in self.knows:
            if word not in KNOWLEDGE:
                raise UnknownName("knowledge", word, KNOWLEDGE)
        for word in self.does:
            if word not in POWERS:
                raise UnknownName("power", word, POWERS)

    def has_all_of(self, other: ThreatModel) -> bool:
        """Whether this adversary sees, knows and may do at least what the other does."""
        sees = all(any(own.includes(channel) for own in self.sees) for channel in other.sees)
        return sees and other.knows <= self.knows and other.does <= self.does

    def sees_kind(self, kind: str) -> bool:
        return any(channel.kind == kind for channel in self.sees)

    def sees_message(self, message: Message, me: str | None = None) -> bool:
        return any(channel.carries(message, me) for channel in self.sees)

    def sees_of_others(self, kind: str) -> bool:
        """One's own messages are no leak."""
        return any(channel.kind == kind and channel.sender != "self" for channel in self.sees)

    def missing(self, needs: Needs) -> list[str]:
        """What this adversary lacks for `needs`, one phrase each; empty when the attack fits."""
        lacks = []
        for kinds in needs.sees:
            if not any(self.sees_of_others(kind) for kind in kinds):
                lacks.append(f"to see {' or '.join(f'{kind} messages' for kind in sorted(kinds))}")
        lacks += [f"to know {KNOWLEDGE[word]} ({word})" for word in sorted(needs.knows - self.knows)]
        lacks += [f"to {POWERS[word]} ({word})" for word in sorted(needs.does - self.does)]
        return lacks


@dataclass(frozen=True)
class Needs:
    """What an attack cannot do without: of each group of message kinds at least one, all knowledge, all powers."""

    sees: tuple[frozenset[str], ...] = ()
    knows: frozenset[str] = frozenset()
    does: frozenset[str] = frozenset()


def needs(*, sees: Iterable[str] = (), knows: Iterable[str] = (), does: Iterable[str] = ()) -> Needs:
    """Needs in short: `needs(sees=["update|gradient", "model"], knows=["batch_size"])`."""
    return Needs(tuple(frozenset(group.split("|")) for group in sees), frozenset(knows), frozenset(does))


_PROTOCOL = {"architecture", "batch_size", "samples", "local_lr", "local_epochs", "optimizer", "client_count"}
_SERVER_DATA = {"unlabelled_aux", "aux_data", "asked_records", "defense", "table_schema"}

CURIOUS_SERVER = ThreatModel(
    "curious-server",
    frozenset(
        {
            Channel("model", "server", "client"),
            Channel("update", "client", "server"),
            Channel("gradient", "client", "server"),
            Channel("aggregate", "aggregator", "server"),
        }
    ),
    frozenset(_PROTOCOL | _SERVER_DATA),
    title="follows the protocol and reads every client's update",
    who="the server",
    short="follows the protocol, reads updates",
)
CURIOUS_SERVER_SECAGG = ThreatModel(
    "curious-server-secagg",
    frozenset({Channel("model", "server", "client"), Channel("aggregate", "aggregator", "server")}),
    frozenset(_PROTOCOL | _SERVER_DATA),
    title="follows the protocol; secure aggregation shows it the sum only",
    who="the server",
    short="follows the protocol, sees sums only",
)
CURIOUS_CLIENT = ThreatModel(
    "curious-client",
    frozenset(
        {
            Channel("model", "server", "self"),
            Channel("update", "self", "server"),
            Channel("gradient", "self", "server"),
        }
    ),
    frozenset(_PROTOCOL | _SERVER_DATA | {"labels_per_client", "own_data"}),
    title="takes part, and reads the models it receives; nothing of single clients",
    who="another client",
    short="takes part, sees global models",
)
EAVESDROPPER = ThreatModel(
    "eavesdropper",
    frozenset(
        {
            Channel("model", "server", "client"),
            Channel("update", "client", "server"),
            Channel("gradient", "client", "server"),
        }
    ),
    frozenset({"batch_size", "samples", "local_lr", "local_epochs"}),
    title="reads an unencrypted wire and the published training settings, and nothing else",
    who="anyone on the wire",
    short="reads unencrypted traffic",
)
MALICIOUS_SERVER = ThreatModel(
    "malicious-server",
    CURIOUS_SERVER_SECAGG.sees,
    frozenset(_PROTOCOL | _SERVER_DATA | {"shadow_data", "targets"}),
    frozenset({"alter_model"}),
    title="sees the sum only, and may hand out a model of its own making",
    who="a malicious server",
    short="alters the model, sees sums only",
)
MALICIOUS_SERVER_UPDATES = ThreatModel(
    "malicious-server-updates",
    CURIOUS_SERVER.sees,
    MALICIOUS_SERVER.knows,
    MALICIOUS_SERVER.does,
    title="reads every client's update, and may hand out a model of its own making",
    who="a malicious server",
    short="alters the model, reads updates",
)
VERTICAL_SERVER = ThreatModel(
    "vertical-server",
    frozenset(
        {
            Channel("model", "server", "party"),
            Channel("batch", "server", "party"),
            Channel("gradient", "party", "server"),
            Channel("embedding", "party", "server"),
        }
    ),
    frozenset(_PROTOCOL | {"unlabelled_aux", "defense"}),
    frozenset({"choose_batch"}),
    title="coordinates a vertical federation, picks the batch indices and reads the parties' gradients",
    who="the server",
    short="picks batches, reads parties' gradients",
)

_PARTY_SEES = frozenset(
    {
        Channel("batch", "server", "party"),
        Channel("embedding", "self", "server"),
        Channel("returned", "server", "self"),
        Channel("model", "party", "self"),  # its own tower, which nobody else is sent
    }
)
_PARTY_KNOWS = frozenset(_PROTOCOL - {"samples"} | {"few_labels", "class_prior", "party_features", "defense"})
CURIOUS_PARTY = ThreatModel(
    "curious-party",
    _PARTY_SEES,
    _PARTY_KNOWS,
    title="a party without labels that follows the protocol and reads the gradients it gets back",
    who="a party without labels",
    short="follows the protocol, reads what comes back",
    me="party:0",
)
MALICIOUS_PARTY = ThreatModel(
    "malicious-party",
    _PARTY_SEES,
    _PARTY_KNOWS,
    frozenset({ALTER_TRAINING}),
    title="a party without labels that trains its own tower so that the joint model comes to rely on it",
    who="a malicious party",
    short="trains its tower other than agreed",
    me="party:0",
)
ACTIVE_PARTY = ThreatModel(
    "active-party",
    frozenset(
        {
            Channel("batch", "server", "party"),
            Channel("embedding", "party", "server"),
            Channel("prediction", "aggregator", "server"),
            Channel("model", "server", "server"),
            Channel("model", "party", "server"),
        }
    ),
    frozenset(_PROTOCOL - {"samples"} | {"active_features", "paired_aux", "feature_ranges", "defense"}),
    title="the party with the labels and the head, which follows the protocol and reads the others' embeddings",
    who="the party with the labels",
    short="follows the protocol, reads embeddings",
    me="server",
)
MALICIOUS_ACTIVE_PARTY = ThreatModel(
    "malicious-active-party",
    ACTIVE_PARTY.sees,
    frozenset(ACTIVE_PARTY.knows | {"shadow_data"}),
    frozenset({ALTER_RETURNED}),
    title="the server of split learning, which sends back gradients of its own making, to read the embeddings",
    who="a malicious server",
    short="sends back gradients of its own making",
    me="server",
)

ADVERSARIES: dict[str, ThreatModel] = {
    threat.name: threat
    for threat in (
        CURIOUS_SERVER,
        CURIOUS_SERVER_SECAGG,
        CURIOUS_CLIENT,
        EAVESDROPPER,
        MALICIOUS_SERVER,
        MALICIOUS_SERVER_UPDATES,
        VERTICAL_SERVER,
        CURIOUS_PARTY,
        MALICIOUS_PARTY,
        ACTIVE_PARTY,
        MALICIOUS_ACTIVE_PARTY,
    )
}

# Who stands in which kind of federation; all others stand in horizontal ones.
OF_PRIVATE_TOWERS = (CURIOUS_PARTY, MALICIOUS_PARTY, ACTIVE_PARTY, MALICIOUS_ACTIVE_PARTY)
FederationKind: TypeAlias = Literal["horizontal", "shared towers", "private towers"]
# What nobody sees, and nobody knows, but in a vertical federation with private towers.
_PRIVATE_KINDS = frozenset({"returned", "prediction"})
_PRIVATE_KNOWLEDGE = frozenset(
    {"few_labels", "class_prior", "party_features", "active_features", "paired_aux", "feature_ranges"}
)


def stands_in(threat: ThreatModel) -> FederationKind:
    """The kind of federation that an adversary is of."""
    if threat in OF_PRIVATE_TOWERS:
        return "private towers"
    return "shared towers" if threat == VERTICAL_SERVER else "horizontal"


def made_for(wanted: Needs) -> FederationKind:
    """The kind of federation that an attack with such needs is for."""
    private = wanted.knows & _PRIVATE_KNOWLEDGE or wanted.does & ALTERING
    if private or any(group & _PRIVATE_KINDS for group in wanted.sees):
        return "private towers"
    return "shared towers" if any("batch" in group for group in wanted.sees) else "horizontal"


def adversary(name: str) -> ThreatModel:
    """The named adversary; an unknown name is answered with the nearest one."""
    if name not in ADVERSARIES:
        raise UnknownName("adversary", name, ADVERSARIES)
    return ADVERSARIES[name]
