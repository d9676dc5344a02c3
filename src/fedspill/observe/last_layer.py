"""The step gradients of the last layer, taken out of updates: the one quantity that every label attack reads.

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
from fedspill.messages import Message
from fedspill.threat import Needs, needs
from fedspill.trace import Origin, View
from fedspill.training import Schedule

MOST_SAMPLES = 1 << 31  # behind one message; more is not believed, since attacks allocate memory for them
LABEL_NEEDS: Needs = needs(sees=["update|gradient|aggregate"], knows=["batch_size", "local_lr"])


@dataclass(frozen=True, eq=False)
class LastLayerGradients:
    """The last layer's step gradients of several origins, summed over one pass, in float64."""

    of: tuple[Origin, ...]
    bias: Tensor | None  # (origins, classes)
    weight_sums: Tensor  # (origins, classes): the weight gradient summed over features
    pulls: Tensor  # (origins, classes): what is negative in it, feature by feature, see class_pulls
    schedules: tuple[Schedule, ...]
    notes: tuple[str, ...] = ()  # messages that could not be read, and why

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


def read_last_layer(view: View) -> LastLayerGradients:
    """From single updates or gradients where the adversary sees them, else from the aggregates."""
    messages: list[Message] = []
    for kind in ("update", "gradient"):
        messages += view.get(kind) if view.sees(kind) else []
    if not messages and view.sees("aggregate"):
        messages = view.get("aggregate")
    if not messages:
        raise NotApplicable("No update, gradient or aggregate was recorded for this adversary.")
    if not isinstance(view.public.get("head_weight"), str):
        raise NotApplicable("The trace names no last layer: the model has none with a row for each class.")
    return last_layer_gradients(
        messages,
        weight=view.public["head_weight"],
        bias=view.public.get("head_bias"),
        lr=view.knows("local_lr"),
        batch_size=view.knows("batch_size"),
        epochs=view.knows("local_epochs") if view.has("local_epochs") else 1,
        classes=view.public.get("classes"),
    )


def last_layer_gradients(
    messages: Sequence[Message],
    *,
    weight: str,
    bias: str | None,
    lr: float,
    batch_size: int,
    epochs: int = 1,
    classes: int | None = None,
) -> LastLayerGradients:
    """Reads the last layer of each message. An update is minus lr times the sum of its step gradients (plain SGD), and
    is divided by the number of passes; a gradient is one step.

    A message whose last layer is missing, misshapen or not finite is left out with a note: one broken client must not
    hide what the others leak.
    """
    _check_settings(lr, batch_size, epochs)
    if bias is not None and not any(bias in message.tensors for message in messages):
        bias = None
    of, biases, sums, pulls, schedules, notes = [], [], [], [], [], []
    for message in messages:
        problem = _why_unreadable(message, weight, bias, classes)
        if problem is not None:
            notes.append(f"{message.sender} in round {message.round} was left out: its {message.kind} {problem}")
            continue
        schedule = schedule_of(message, batch_size, epochs)
        scale = -1.0 / (lr * schedule.epochs) if is_update(message) else 1.0
        of.append(Origin(message.round, message.sender))
        rows = scale * message.tensors[weight].double().flatten(1)
        sums.append(rows.sum(1))
        biases += [] if bias is None else [scale * message.tensors[bias].double()]
        pulls.append(class_pulls(rows, sums[-1] if bias is None else biases[-1]))
        schedules.append(schedule)
        classes = len(sums[0])
    if not of:
        raise NotApplicable(f"No last layer can be read. {'; '.join(notes[:3])}.")
    rows_of_biases = None if bias is None else torch.stack(biases)
    return LastLayerGradients(
        tuple(of), rows_of_biases, torch.stack(sums), torch.stack(pulls), tuple(schedules), tuple(notes)
    )


def class_pulls(weight: Tensor, bias: Tensor) -> Tensor:
    """(classes,) the norm of what is negative in each class's weight gradient, of weight (classes, features).

    Samples pull the bias of their class down and those of the others up, so that even shares cancel there. A feature is
    like a bias that counts only the samples it is large for. Few classes share one, so that there little cancels. The
    sign of a feature is that of its mean: bias (classes,) times the mean is what all classes have in common.
    """
    mean = bias @ weight
    return (weight * mean.sign()).clamp_max(0).square().sum(1).sqrt()


def _check_settings(lr: object, batch_size: object, epochs: object) -> None:
    if not isinstance(lr, int | float) or not 1e-30 <= lr <= 1e30:
        raise NotApplicable(f"Expected a positive learning rate, the trace says {lr!r}.")
    for what, value in (("batch size", batch_size), ("number of local epochs", epochs)):
        if type(value) is not int or not 1 <= value <= MOST_SAMPLES:
            raise NotApplicable(f"Expected a whole {what} from 1 up, the trace says {value!r}.")


def _why_unreadable(message: Message, weight: str, bias: str | None, classes: int | None) -> str | None:
    """Why the last layer of a message cannot be read, or None."""
    for name in (weight, bias):
        if name is not None and name not in message.tensors:
            return f"does not hold the last layer ({name})"
    rows = message.tensors[weight]
    if rows.ndim < 2 or rows.numel() == 0 or len(rows) != (classes or len(rows)):
        return f"has shape {tuple(rows.shape)} at {weight!r}, expected one row for each of {classes} classes"
    if bias is not None and message.tensors[bias].shape != rows.shape[:1]:
        return f"has shape {tuple(message.tensors[bias].shape)} at {bias!r}, expected ({len(rows)},)"
    for name in (weight, bias):
        if name is not None and not message.tensors[name].is_floating_point():
            return f"has whole numbers at {name!r}"
        if name is not None and not bool(torch.isfinite(message.tensors[name].double().sum())):
            return f"has NaN or infinite values at {name!r}"
    for word in ("examples", "clients"):
        value = message.info.get(word, 1)
        if type(value) is not int or not 1 <= value <= MOST_SAMPLES:
            return f"says that it comes from {value!r} {word}"
    return None


def is_update(message: Message) -> bool:
    """Whether a message holds a change of the model and not a gradient; an aggregate states what it is the sum of."""
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
