"""What a malicious server sees of its planted rounds: one client's gradient at a time, or the sum of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.messages import Kind, Message
from fedspill.observe.last_layer import MOST_SAMPLES
from fedspill.planting.first_layer import PlantedLayer
from fedspill.threat import needs
from fedspill.trace import Origin, View
from fedspill.training import Tensors

# Whoever sees single messages reads those, whoever sees sums reads them.
PLANT_NEEDS = needs(
    sees=["update|gradient|aggregate", "model"], knows=["architecture", "unlabelled_aux"], does=["alter_model"]
)


MOST_SUMMED = 400
_LARGEST = 1e30  # of a gradient's values: what is larger is no gradient, and squares of it overflow


@dataclass(frozen=True, eq=False)
class PlantedBatch:
    """One message of a planted round as a mean gradient, and the models that it may be the answer to."""

    of: Origin
    models: dict[str, Tensors]  # by who received them
    gradients: Tensors  # of the first layer, in float64
    samples: int  # that the mean is taken over
    one_step: bool  # whether each client made one local step, as far as is known

    def of_first(self, layer: PlantedLayer) -> tuple[Tensor, Tensor]:
        """The gradient of the first layer's weights and biases."""
        return self.gradients[layer.weight], self.gradients[layer.bias]


def refuse_large_sums(view: View) -> None:
    """Raises NotApplicable where only sums are seen and these are of so many samples that holding what is read against
    them takes longer than reading; before anything is planted.
    """
    if view.sees("update") or view.sees("gradient") or not (view.has("client_count") and view.has("batch_size")):
        return
    samples = _count(view.knows("client_count"), 1) * _count(view.knows("batch_size"), 1)
    if samples > MOST_SUMMED:
        raise NotApplicable(
            f"A sum of about {samples} samples is not read: {MOST_SUMMED} at most are matched with the truth.",
            remedy="Audit a plan with fewer clients or smaller batches.",
        )


def planted_batches(view: View, rounds: range, layer: PlantedLayer) -> tuple[list[PlantedBatch], list[str]]:
    """What was seen of those rounds, single messages where there are any, else sums; and notes on what was left out."""
    models: dict[int, dict[str, Tensors]] = {}
    for message in view.get("model"):
        if message.round in rounds:
            models.setdefault(message.round, {})[message.receiver] = dict(message.tensors)
    kinds: tuple[Kind, ...] = ("update", "gradient")
    single = [message for kind in kinds if view.sees(kind) for message in view.get(kind)]
    seen = single or (view.get("aggregate") if view.sees("aggregate") else [])
    found: list[PlantedBatch] = []
    notes: list[str] = []
    for message in seen:
        if message.round in rounds and message.round in models:
            mine = models[message.round]
            own = {message.sender: mine[message.sender]} if message.sender in mine else mine
            fault = _fault(message, own, layer)
            if fault:
                notes.append(f"{message.sender} in round {message.round} was left out: {fault}")
            else:
                found.append(_batch(message, own, view, layer))
    if not found:
        raise NotApplicable(f"No message of a planted round can be read. {' '.join(notes[:3])}".strip())
    return found, notes


@dataclass(frozen=True)
class SeveralSteps:
    """What a server knows of clients that make more than one local step."""

    lr: float
    passes: float  # epochs divided by samples a batch: how much one sample counts in all


def several_steps(view: View) -> SeveralSteps | None:
    """Of clients that make several steps, as far as their earlier messages and the protocol tell; None of others."""
    if view.public.get("algorithm") == "fedsgd" or not view.has("local_lr"):
        return None
    lr, batch = view.knows("local_lr"), _count(view.knows("batch_size") if view.has("batch_size") else None, 0)
    epochs = _count(view.knows("local_epochs") if view.has("local_epochs") else None, 1)
    if not isinstance(lr, int | float) or not 1e-12 <= lr <= 1e12 or not batch:
        return None
    kinds: tuple[Kind, ...] = ("update", "aggregate")
    seen = [message for kind in kinds if view.sees(kind) for message in view.get(kind)]
    sizes = [_count(m.info.get("examples", 1), 1) / _count(m.info.get("clients", 1), 1) for m in seen]
    if epochs == 1 and max(sizes, default=0) <= batch:
        return None
    return SeveralSteps(float(lr), epochs / batch)


def _fault(message: Message, models: Mapping[str, Tensors], layer: PlantedLayer) -> str:
    """Why a message is not one of the model that was handed out; nothing where it is."""
    examples = message.info.get("examples", 1)
    if type(examples) is not int or not 1 <= examples <= MOST_SAMPLES:
        return "it says that it comes from no number of examples that can be"
    for name in (layer.weight, layer.bias):
        tensor = message.tensors.get(name)
        if tensor is None or any(name not in state or state[name].shape != tensor.shape for state in models.values()):
            return f"it does not hold {name} as the model does"
        if not tensor.is_floating_point() or not bool(tensor.double().abs().amax() < _LARGEST):
            return f"{name} has values that are no gradient"
    return ""


def _batch(message: Message, models: Mapping[str, Tensors], view: View, layer: PlantedLayer) -> PlantedBatch:
    kind = message.info.get("of", message.kind)
    examples = int(message.info.get("examples", 1))
    clients = _count(message.info.get("clients", 1), 1)
    batch = _count(view.knows("batch_size") if view.has("batch_size") else None, examples)
    epochs = _count(view.knows("local_epochs") if view.has("local_epochs") else None, 1)
    if message.kind == "aggregate" and view.public.get("weighting") == "uniform":
        examples = clients * batch  # each client counts alike, as if all had one full batch
    scale, one_step = 1.0, True
    if kind == "update":
        lr = view.knows("local_lr") if view.has("local_lr") else None
        known = isinstance(lr, int | float) and 1e-12 <= lr <= 1e12
        scale = -1.0 / float(lr) if known else -1.0  # type: ignore[arg-type]
        one_step = known and epochs == 1 and examples <= clients * batch
    names = (layer.weight, layer.bias)
    gradients = {name: scale * message.tensors[name].double() for name in names}
    return PlantedBatch(Origin(message.round, message.sender), dict(models), gradients, examples, one_step)


def _count(value: object, otherwise: int) -> int:
    """A whole number from 1 up, or the other one where it is none."""
    return value if type(value) is int and 1 <= value <= MOST_SAMPLES else otherwise
