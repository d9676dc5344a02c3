"""What the last layer of an update says about labels: the one quantity that every label attack reads.

For softmax cross-entropy the gradient of the last bias is, summed over the local steps t with batches of size b_t,

    beta_i  =  sum_t [ -lambda_i^t / b_t + mean probability of class i at step t ],

where lambda_i^t counts the samples of class i. The weight gradient is the same with each sample's features as a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.federation.schedule import Schedule
from fedspill.messages import Message
from fedspill.threat import Needs, needs
from fedspill.trace import Origin, View

LABEL_NEEDS: Needs = needs(sees=["update|gradient|aggregate"], knows=["batch_size", "local_lr"])


@dataclass(frozen=True, eq=False)
class LastLayer:
    """The last layer's step gradients of several origins, summed over one pass, in float64."""

    of: tuple[Origin, ...]
    bias: Tensor | None  # (origins, classes)
    weight_sums: Tensor  # (origins, classes): the weight gradient summed over features
    schedules: tuple[Schedule, ...]

    @property
    def classes(self) -> int:
        return self.weight_sums.shape[1]

    @property
    def samples(self) -> Tensor:
        """(origins,) samples in all, repeated epochs counted once."""
        return torch.tensor([schedule.samples for schedule in self.schedules])

    def require_bias(self, attack: str) -> Tensor:
        if self.bias is None:
            raise NotApplicable(f"{attack} reads the last bias, and this model has none.", remedy="LLG reads weights.")
        return self.bias


def read_last_layer(view: View) -> LastLayer:
    """Single updates or gradients where the adversary sees them, else the aggregates."""
    messages: list[Message] = []
    for kind in ("update", "gradient"):
        messages += view.get(kind) if view.sees(kind) else []
    if not messages and view.sees("aggregate"):
        messages = view.get("aggregate")
    if not messages:
        raise NotApplicable("No update, gradient or aggregate was recorded for this adversary.")
    return from_messages(
        messages,
        weight=view.public["head_weight"],
        bias=view.public["head_bias"],
        lr=view.knows("local_lr"),
        batch_size=view.knows("batch_size"),
        epochs=view.knows("local_epochs") if view.has("local_epochs") else 1,
    )


def from_messages(
    messages: Sequence[Message], *, weight: str, bias: str | None, lr: float, batch_size: int, epochs: int = 1
) -> LastLayer:
    """An update is minus lr times the sum of step gradients (plain SGD), here per pass; a gradient is one step."""
    biases, sums, schedules = [], [], []
    for message in messages:
        if weight not in message.tensors:
            raise NotApplicable(f"The {message.kind} of {message.sender} does not hold the last layer ({weight}).")
        schedule = schedule_of(message, batch_size, epochs)
        scale = -1.0 / (lr * schedule.epochs) if is_update(message) else 1.0
        sums.append(scale * message.tensors[weight].double().flatten(1).sum(1))
        if bias is not None and bias in message.tensors:
            biases.append(scale * message.tensors[bias].double())
        schedules.append(schedule)
    return LastLayer(
        tuple(Origin(message.round, message.sender) for message in messages),
        torch.stack(biases) if len(biases) == len(messages) else None,
        torch.stack(sums),
        tuple(schedules),
    )


def is_update(message: Message) -> bool:
    """An aggregate says what it is the sum of; an update is one; a gradient is not."""
    return message.kind == "update" or (message.kind == "aggregate" and message.info.get("of", "update") == "update")


def schedule_of(message: Message, batch_size: int, epochs: int) -> Schedule:
    """How the samples behind a message were cut into steps.

    The mean of k clients' updates is, to first order, the update of one client with k times the batch size.
    """
    samples = int(message.info.get("examples", batch_size))
    clients = int(message.info.get("clients", 1))
    if not is_update(message):
        return Schedule(samples, samples, 1)
    return Schedule(samples, batch_size * clients, epochs)
