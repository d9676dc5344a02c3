"""What clients with other data would send: the adversary trains on auxiliary data as the clients train on theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.federation.local import state_of, train
from fedspill.federation.stacked import is_stackable, train_stacked, why_not_stackable
from fedspill.observe.local_changes import KnownFederation, KnownOptimizer
from fedspill.observe.path_bases import last_layer_matrix
from fedspill.trace import View
from fedspill.training import LocalTraining, Tensors

_STACKED_AT_ONCE = 32  # trainings


def known_local_training(view: View, lr: float) -> LocalTraining:
    """The clients' local training, from the knowledge words "optimizer", "batch_size" and "local_epochs"."""
    optimizer, batch = KnownOptimizer.known_to(view), view.knows("batch_size")
    epochs = view.knows("local_epochs") if view.has("local_epochs") else 1
    sound = isinstance(lr, int | float) and lr == lr and 1e-30 <= lr <= 1e30
    if not sound or type(batch) is not int or type(epochs) is not int or not 1 <= batch <= 1 << 31 or epochs < 1:
        raise NotApplicable(f"Expected a learning rate, batch size and epochs, got {lr!r}, {batch!r}, {epochs!r}.")
    return LocalTraining(
        optimizer=optimizer.name,  # type: ignore[arg-type]
        lr=lr,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
        batch_size=batch,
        epochs=epochs,
    )


def rehearsed_head_changes(
    federation: KnownFederation,
    training: LocalTraining,
    before: Mapping[str, Tensor],
    clients: Sequence[Tensor],
    rng: torch.Generator,
) -> Tensor:
    """(clients, outputs, features + 1) the last layer's change after local training from `before`.

    `clients` holds, for each made-up client, the indices of the auxiliary samples that it trains on.
    """
    model = federation.model
    if state_of(model).keys() != before.keys():
        raise NotApplicable("The recorded model does not fill the architecture.", remedy="Record all layers.")
    device = next(model.parameters()).device
    start = {name: tensor.to(device) for name, tensor in before.items()}
    auxiliary = federation.auxiliary if device.type == "cpu" else federation.auxiliary.to(device)
    data = [auxiliary.take(chosen) for chosen in clients]
    rngs = [torch.Generator().manual_seed(int(torch.randint(1 << 62, (1,), generator=rng))) for _ in clients]
    changes = _train_each(model, start, data, training, rngs)
    return torch.stack([last_layer_matrix(moved, federation.head, federation.bias) for moved in changes])


def _train_each(
    model: nn.Module,
    start: Tensors,
    data: Sequence[Examples],
    training: LocalTraining,
    rngs: Sequence[torch.Generator],
) -> Iterator[Tensors]:
    """What each made-up client would send; trained stacked where that is faster and all make equally many steps."""
    if len({len(examples) for examples in data}) == 1 < len(data) and _is_faster_stacked(model, data[0], training):
        for first in range(0, len(data), _STACKED_AT_ONCE):
            part = slice(first, first + _STACKED_AT_ONCE)
            yield from train_stacked(model, start, data[part], training, rngs[part])
        return
    for examples, own in zip(data, rngs, strict=True):
        yield train(model, start, examples, training, own)


def _is_faster_stacked(model: nn.Module, examples: Examples, training: LocalTraining) -> bool:
    """On a GPU everything that can be stacked is: the step of one small client does not fill it."""
    if examples.x.device.type == "cuda":
        return why_not_stackable(model, examples, training) is None
    return is_stackable(model, examples, training)
