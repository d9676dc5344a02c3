"""What a server holds of each client's local training: the model it started from, and where it ended up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.federation.update_checks import update_fault
from fedspill.messages import Message
from fedspill.observe.last_layer import last_layer_gradients, schedule_of
from fedspill.observe.lazy_tensors import scaled
from fedspill.observe.path_bases import last_layer_matrix
from fedspill.trace import Origin, View


@dataclass(frozen=True)
class KnownOptimizer:
    """The clients' optimizer, as far as an adversary must know it to turn an update into gradients."""

    name: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    @staticmethod
    def known_to(view: View) -> KnownOptimizer:
        """From the knowledge word "optimizer", a name or a mapping with name, momentum and weight_decay."""
        known = view.knows("optimizer") if view.has("optimizer") else "sgd"
        if isinstance(known, str):
            return KnownOptimizer(known)
        try:
            return KnownOptimizer(
                str(known["name"]), float(known.get("momentum", 0)), float(known.get("weight_decay", 0))
            )
        except (TypeError, KeyError, ValueError, AttributeError):
            raise NotApplicable("Expected the optimizer's name, or name, momentum and weight_decay.") from None

    def unit_steps(self, steps: int) -> float:
        """How many plain steps move as far as `steps` steps with heavy-ball momentum under a constant gradient."""
        if self.momentum == 0:
            return float(steps)
        return sum((1 - self.momentum**left) / (1 - self.momentum) for left in range(1, steps + 1))


@dataclass(frozen=True, eq=False)
class LocalChange:
    """One client's local training as its server sees it."""

    of: Origin
    before: Mapping[str, Tensor]  # the whole model that the client was sent
    change: Mapping[str, Tensor]  # what the client added to it
    start: Tensor  # (outputs, features + 1) the last layer before
    moved: Tensor  # (outputs, features + 1) what was added to it
    steps: int
    batch_size: int
    samples: int

    def mean_gradient(self, lr: float, optimizer: KnownOptimizer) -> Tensor:
        """(outputs, features + 1) the mean step gradient of the loss, momentum and weight decay taken out."""
        mean = -self.moved / (lr * optimizer.unit_steps(self.steps))
        return mean - optimizer.weight_decay * (self.start + self.moved / 2)


@dataclass(frozen=True, eq=False)
class KnownFederation:
    """What an adversary knows of a federation's training, the same for all clients."""

    head: str  # name of the last layer's weight
    bias: str | None  # name of its bias
    classes: int
    lr: float
    optimizer: KnownOptimizer
    model: nn.Module  # the architecture; its parameters are overwritten whenever a state is tried out
    auxiliary: Examples


def read_known_federation(view: View) -> KnownFederation:
    head, bias, classes = (view.public.get(word) for word in ("head_weight", "head_bias", "classes"))
    if not isinstance(head, str):
        raise NotApplicable("The trace names no last layer: the model has none with a row for each class.")
    auxiliary: Examples = view.knows("aux_data")
    if type(classes) is not int or len(torch.bincount(auxiliary.y, minlength=1)) > classes:
        raise NotApplicable(f"Expected auxiliary data of the federation's classes, the trace says {classes!r}.")
    if bool((torch.bincount(auxiliary.y, minlength=classes) == 0).any()):
        raise NotApplicable("The auxiliary data lack some class; its base cannot be measured.")
    model: nn.Module = view.knows("architecture")().to(view.device)
    try:
        layer = model.get_submodule(head.rpartition(".")[0])
    except AttributeError:
        layer = model
    if not isinstance(layer, nn.Linear) or layer.out_features != classes:
        raise NotApplicable(f"The architecture has no last linear layer of {classes} outputs at {head!r}.")
    return KnownFederation(head, bias, classes, view.knows("local_lr"), KnownOptimizer.known_to(view), model, auxiliary)


def read_changes(view: View, federation: KnownFederation) -> tuple[list[LocalChange], list[str]]:
    """Every readable update or gradient beside the model it started from, and a note for each that is left out."""
    before = {message.round: message.tensors for message in view.get("model")}
    messages = [m for kind in ("update", "gradient") if view.sees(kind) for m in view.get(kind)]
    changes, notes = [], []
    for message in messages:
        start = before.get(message.round)
        problem = (
            "starts from a model that was not recorded"
            if start is None
            else _why_unreadable(message, start, federation)
        )
        if problem is None and start is not None:
            try:
                changes.append(_change(message, start, federation, view))
            except NotApplicable as error:
                problem = f"cannot be read. {error}"
        if problem is not None:
            notes.append(f"{message.sender} in round {message.round} was left out: its {message.kind} {problem}")
    if not changes:
        raise NotApplicable(f"No update can be read. {'; '.join(notes[:3])}")
    return changes, notes


def _why_unreadable(message: Message, start: Mapping[str, Tensor], federation: KnownFederation) -> str | None:
    """Why a message cannot be read, or None. Layers other than the last may be missing; all must fit the model."""
    needed = [name for name in (federation.head, federation.bias) if name is not None]
    wanted = {n: t for n, t in start.items() if n in message.tensors or n in needed}
    return update_fault(message.tensors, wanted)


def _change(message: Message, start: Mapping[str, Tensor], federation: KnownFederation, view: View) -> LocalChange:
    batch_size, epochs = view.knows("batch_size"), view.knows("local_epochs") if view.has("local_epochs") else 1
    last_layer_gradients(  # for its checks: it raises where the last layer cannot be read
        [message],
        weight=federation.head,
        bias=federation.bias,
        lr=federation.lr,
        batch_size=batch_size,
        epochs=epochs,
        classes=federation.classes,
    )
    schedule = schedule_of(message, batch_size, epochs)
    scale = 1.0 if message.kind == "update" else -federation.lr
    change = scaled(message.tensors, scale)
    last, moved = (last_layer_matrix(tensors, federation.head, federation.bias) for tensors in (start, change))
    of = Origin(message.round, message.sender)
    return LocalChange(of, start, change, last, moved, schedule.steps, schedule.per_step, schedule.samples)
