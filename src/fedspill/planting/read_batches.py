"""What a malicious server sees of its planted rounds: one client's gradient at a time, or the sum of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.messages import EVERYONE, Kind, Message
from fedspill.threat import needs
from fedspill.trace import Origin, View
from fedspill.training import Tensors

# Whoever sees single messages reads those, whoever sees sums reads them.
PLANT_NEEDS = needs(
    sees=["update|gradient|aggregate", "model"], knows=["architecture", "unlabelled_aux"], does=["alter_model"]
)


@dataclass(frozen=True, eq=False)
class PlantedBatch:
    """One message of a planted round as a mean gradient, and the models that it may be the answer to."""

    of: Origin
    models: dict[str, Tensors]  # by who received them
    gradients: Tensors  # by parameter, in float64
    samples: int  # that the mean is taken over
    one_step: bool  # whether each client made one local step, as far as is known

    def of_first(self, weight: str, bias: str) -> tuple[Tensor, Tensor] | None:
        """The gradient of one layer, where the message has it and it is sound."""
        w, b = self.gradients.get(weight), self.gradients.get(bias)
        if w is None or b is None or w.ndim != 2 or b.shape != w.shape[:1]:
            return None
        return (w, b) if bool(torch.isfinite(w).all() and torch.isfinite(b).all() and (b != 0).any()) else None


def planted_batches(view: View, rounds: range) -> list[PlantedBatch]:
    """What was seen of those rounds: single messages where there are any, else sums."""
    models: dict[int, dict[str, Tensors]] = {}
    for message in view.get("model"):
        if message.round in rounds:
            models.setdefault(message.round, {})[message.receiver] = dict(message.tensors)
    kinds: tuple[Kind, ...] = ("update", "gradient")
    single = [message for kind in kinds if view.sees(kind) for message in view.get(kind)]
    seen = single or (view.get("aggregate") if view.sees("aggregate") else [])
    found = []
    for message in seen:
        if message.round in rounds and message.round in models:
            mine = models[message.round]
            own = {message.sender: mine[message.sender]} if message.sender in mine else mine
            found.append(_batch(message, own, view))
    if not found:
        raise NotApplicable("No message of a planted round was seen.")
    return found


def _batch(message: Message, models: Mapping[str, Tensors], view: View) -> PlantedBatch:
    kind = message.info.get("of", message.kind)
    examples, clients = int(message.info.get("examples", 1)), int(message.info.get("clients", 1))
    batch = int(view.knows("batch_size")) if view.has("batch_size") else examples
    epochs = int(view.knows("local_epochs")) if view.has("local_epochs") else 1
    if message.kind == "aggregate" and view.public.get("weighting") == "uniform":
        examples = clients * batch  # each client counts alike, as if all had one full batch
    scale, one_step = 1.0, True
    if kind == "update":
        scale = -1.0 / float(view.knows("local_lr")) if view.has("local_lr") else -1.0
        one_step = epochs == 1 and examples <= clients * batch
    gradients = {name: scale * tensor.double() for name, tensor in message.tensors.items()}
    return PlantedBatch(Origin(message.round, message.sender), dict(models), gradients, max(examples, 1), one_step)


def is_for_all(models: Mapping[str, Tensors]) -> bool:
    """Whether all clients got the same model."""
    return set(models) == {EVERYONE}
