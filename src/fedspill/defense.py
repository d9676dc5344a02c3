"""Defense: what a client does to the messages it sends and receives, and to its training."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import UsageError
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
class ClientContext:
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
class DataUse:
    """How often what a client holds is used in training: what an accountant counts, at most over clients."""

    rounds: int  # that a client takes part in
    steps: int  # local ones in a round
    epochs: int  # passes over its data in a round
    sampling: float  # share of its samples in one step
    parameters: int  # numbers in a message
    samples: int  # that it holds, at least


@dataclass(frozen=True, eq=False)
class SentMessages:
    """What a recording shows of the clients' messages, for asking a defense whether it is on."""

    messages: tuple[Message, ...]  # updates and gradients, at most one round's worth of each client
    last_layer: tuple[str, ...] = ()  # names of its tensors, weight first


@dataclass(frozen=True)
class Check:
    """Whether a defense is really on. `on` is None where nothing on the wire can show it."""

    defense: str
    on: bool | None
    why: str


@dataclass(frozen=True)
class Rounding:
    """How coarse the numbers of a message are: the distance between neighbouring values that can be sent."""

    name: str  # "int8"
    of_value: float = 0.0  # that distance as a share of the value, for floating point
    of_largest: float = 0.0  # as a share of the largest value of the tensor, for an even grid

    def step(self, tensor: Tensor) -> Tensor:
        """(of the tensor's shape) how far rounding may have moved each coordinate, in all."""
        steps = tensor.abs() * self.of_value if self.of_value else torch.zeros_like(tensor)
        if not self.of_largest or not tensor.numel():
            return steps
        return steps + torch.full_like(tensor, float(tensor.abs().max()) * self.of_largest)


@dataclass(frozen=True)
class WireEffect:
    """What a defense does to a message, in numbers that an attacker may know.

    The default is a defense that changes no reading of a message. Noise is given as the standard deviation of one
    coordinate, clipping as the largest norm that is let through.
    """

    sample_clip: float | None = None  # of each sample's gradient
    sample_sum_noise: float = 0.0  # on the sum of the samples' gradients of a step, which is divided by the batch size
    step_clip: float | None = None  # of each step's gradient
    step_noise: float = 0.0
    update_clip: float | None = None  # of what is sent as a whole
    update_noise: float = 0.0
    rescaled: bool = False  # by a factor that nobody says, other than by clipping
    dropped: float = 0.0  # share of each tensor that is set to zero, the smallest values first
    last_rows_dropped: float = 0.0  # the same of each row of the last layer's weights alone
    features_dropped: float = 0.0  # share of what the last layer reads that is set to zero in each step
    smoothed: float = 0.0  # share of a sample's target that is spread over all classes
    rounding: Rounding | None = None
    topped_up: float = 0.0  # how far rare classes are filled with public samples, as a share of the commonest class
    no_last_bias: bool = False  # the last layer's bias does not move
    no_last_layer: bool = False  # its weights do not move
    only_order: bool = False  # values are random; of the true ones, their order within a tensor is kept
    returned_noise: bool = False  # what goes back to a vertical party has noise on it that is drawn anew each time
    returned_coarse: bool = False  # and takes few values
    embedding_noise: float = 0.0  # on an embedding, as a share of the embeddings' own deviation in a batch
    labels_redrawn: float = 0.0  # share of the labels of a vertical federation that are drawn anew, once

    def __post_init__(self) -> None:
        for name in ("sample_clip", "step_clip", "update_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise UsageError(f"Expected a norm above 0 as {name}, got {clip}.")
        for name in ("sample_sum_noise", "step_noise", "update_noise", "embedding_noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"Expected a standard deviation as {name}, got {getattr(self, name)}.")
        for name in ("dropped", "last_rows_dropped", "features_dropped", "smoothed", "topped_up", "labels_redrawn"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"Expected a share from 0 to 1 as {name}, got {getattr(self, name)}.")

    @property
    def scale_unknown(self) -> bool:
        """Whether a message may be smaller than what was trained, by a factor that nobody says."""
        return self.rescaled or any(c is not None for c in (self.sample_clip, self.step_clip, self.update_clip))

    def then(self, after: WireEffect) -> WireEffect:
        """This defense followed by another: noises add up, the larger share counts, the later clip and rounding do."""
        return WireEffect(
            sample_clip=_smaller(self.sample_clip, after.sample_clip),
            sample_sum_noise=math.hypot(self.sample_sum_noise, after.sample_sum_noise),
            step_clip=self.step_clip if after.step_clip is None else after.step_clip,
            step_noise=math.hypot(self.step_noise, after.step_noise),
            update_clip=self.update_clip if after.update_clip is None else after.update_clip,
            update_noise=math.hypot(self.update_noise, after.update_noise),
            rescaled=self.rescaled or after.rescaled,
            dropped=max(self.dropped, after.dropped),
            last_rows_dropped=max(self.last_rows_dropped, after.last_rows_dropped),
            features_dropped=max(self.features_dropped, after.features_dropped),
            smoothed=after.smoothed or self.smoothed,
            rounding=after.rounding or self.rounding,
            topped_up=max(self.topped_up, after.topped_up),
            no_last_bias=self.no_last_bias or after.no_last_bias,
            no_last_layer=self.no_last_layer or after.no_last_layer,
            only_order=self.only_order or after.only_order,
            returned_noise=self.returned_noise or after.returned_noise,
            returned_coarse=self.returned_coarse or after.returned_coarse,
            embedding_noise=math.hypot(self.embedding_noise, after.embedding_noise),
            labels_redrawn=self.labels_redrawn + after.labels_redrawn - self.labels_redrawn * after.labels_redrawn,
        )


def _smaller(first: float | None, second: float | None) -> float | None:
    return min((clip for clip in (first, second) if clip is not None), default=None)


class Defense(ABC):
    """One defense. Concrete: a frozen dataclass, its fields are its options. Each hook does nothing by default."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ()  # options an audit tries, weakest first
    sums_only: ClassVar[bool] = False  # whether the server sees sums and no single update
    of_private_towers: ClassVar[bool] = False  # whether it is for embeddings and what goes back to parties alone

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        """What leaves the client instead of `message`: clipped, noised, compressed, ..."""
        return message

    @property
    def takes_tensors_apart(self) -> bool:
        """Whether `outgoing` changes each tensor without a look at the others; who wants one then needs no other."""
        return type(self).outgoing is Defense.outgoing

    def returned(self, message: Message, labels: Tensor, rng: torch.Generator) -> Message:
        """What goes back to a party of a vertical federation; `labels` are those of the batch, which the sender has."""
        return self.outgoing(message, rng)

    def labels(self, labels: Tensor, classes: int, rng: torch.Generator) -> Tensor:
        """The labels that the head of a vertical federation is trained on instead, drawn once."""
        return labels

    def effect(self) -> WireEffect:
        """What all of this does to a message, in numbers; attackers who know of the defense reckon with them."""
        return WireEffect()

    def incoming(self, message: Message, previous: Message | None, client: ClientContext) -> Verdict:
        """Inspects a received model against the one last trained on."""
        return ACCEPT

    def local(self, training: LocalTraining) -> LocalTraining:
        """The local training that clients do instead."""
        return training

    def data(self, own: Examples, public: Examples | None, rng: torch.Generator) -> Examples:
        """What a client trains on instead of `own`, its own samples first; `public` is what everybody has."""
        return own

    def claims(self, use: DataUse) -> Guarantee | None:
        """The guarantee this defense gives after that much use, if it gives one."""
        return None

    def verify(self, sent: SentMessages) -> Check:
        """Whether what was sent looks as if this defense were on; noise is estimated, nothing is believed."""
        return Check(self.name, None, "nothing on the wire shows whether this defense is on")
