"""Defense: what a client does to the messages it sends and receives, and to its training."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.messages import Message
from fedspill.training import LocalTraining


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a client makes of a model it received."""

    action: Literal["accept", "repair", "refuse"]
    why: str = ""
    model: Message | None = None  # what to train on instead, when repaired
    memory: Mapping[str, Tensor] | None = None  # what to remember for the next model; None: what was known before


ACCEPT = Verdict("accept")


@dataclass(frozen=True, eq=False)
class Site:
    """What a client has at hand when it looks at a model: what this defense remembers, and its own code and data.

    The memory is a few named tensors that the engine keeps for the defense, from round to round and over restarts.
    """

    memory: Mapping[str, Tensor] = field(default_factory=dict)
    architecture: Callable[[], nn.Module] | None = None
    examples: Examples | None = None


@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy claim and the accountant it rests on."""

    epsilon: float
    delta: float
    accountant: str
    holds: bool = True  # False: what the mechanism would give with noise that nobody can repeat


@dataclass(frozen=True)
class Exposure:
    """How often what a client holds is used: what an accountant counts, at most over clients."""

    rounds: int  # that a client takes part in
    steps: int  # local ones in a round
    epochs: int  # passes over its data in a round
    sampling: float  # share of its samples in one step
    parameters: int  # numbers in a message
    samples: int  # that it holds, at least


@dataclass(frozen=True, eq=False)
class Wire:
    """What a recording shows of the clients' messages, for asking a defense whether it is on."""

    sent: tuple[Message, ...]  # updates and gradients, at most one round's worth of each client
    head: tuple[str, ...] = ()  # names of the last layer's tensors, weight first


@dataclass(frozen=True)
class Check:
    """Whether a defense is really on. `on` is None where nothing on the wire can show it."""

    defense: str
    on: bool | None
    why: str


class Defense(ABC):
    """One defense. Concrete: a frozen dataclass, its fields are its options. Each hook does nothing by default."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ()  # options an audit tries, weakest first
    sums_only: ClassVar[bool] = False  # whether the server sees sums and no single update

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        """What leaves the client instead of `message`: clipped, noised, compressed, ..."""
        return message

    def incoming(self, message: Message, previous: Message | None, site: Site) -> Verdict:
        """Inspects a received model against the one last trained on."""
        return ACCEPT

    def local(self, training: LocalTraining) -> LocalTraining:
        """The local training that clients do instead."""
        return training

    def data(self, own: Examples, public: Examples | None, rng: torch.Generator) -> Examples:
        """What a client trains on instead of `own`, its own samples first; `public` is what everybody has."""
        return own

    def claims(self, exposure: Exposure) -> Guarantee | None:
        """The guarantee this defense gives after that much use, if it gives one."""
        return None

    def verify(self, wire: Wire) -> Check:
        """Whether what was sent looks as if this defense were on; noise is estimated, nothing is believed."""
        return Check(self.name, None, "nothing on the wire shows whether this defense is on")
