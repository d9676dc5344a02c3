"""What honest training makes of a network on a client's own samples: a rehearsal, in which nobody can have planted.

Where a table has few columns or few classes, honest training turns neurons towards each other until they fire for
nearly the same samples, as bins do. How far that goes depends on the network and the samples, so no bar on what a model
shows holds for all of them. A model that looks like a plant is therefore held against some of the same code that the
client draws anew and trains by itself, at several stages. That costs a few epochs, once: it is asked for only then, and
what it shows is remembered.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fedspill.defense import ClientContext
from fedspill.defenses.model_checks.isolating_units import LayerLook, look_at
from fedspill.training import batch_loss

_STAGES = (0, 25, 75, 150, 300)  # steps after which a rehearsed model is looked at
_BATCH = 20
# How clients train is not known here. The two ways between them reached what federations of tables do (convention).
_MOMENTUM_RATE, _MOMENTUM, _ADAM_RATE = 0.1, 0.9, 0.03
_DRAWS = 4  # models, two by each way
_LARGEST = 1 << 20  # parameters: larger networks are not trained for this, only drawn


@final
class Rehearsed(NamedTuple):
    """The most that any rehearsed model shows, of each hidden layer (layers,)."""

    alone: Tensor  # shares of units and samples, as in LayerLook
    pairs: Tensor
    silenced: Tensor
    readable: Tensor  # of batches of all sizes
    by_size: Tensor  # (layers, SIZES) of those of each size

    def kept(self) -> Tensor:
        """(layers, 4 + SIZES) to be remembered."""
        return torch.cat([torch.stack(self[:4], 1), self.by_size], 1)

    @staticmethod
    def recalled(kept: Tensor) -> Rehearsed:
        alone, pairs, silenced, readable = kept[:, :4].T
        return Rehearsed(alone, pairs, silenced, readable, kept[:, 4:])


def rehearsed(client: ClientContext) -> Rehearsed | None:
    """What models of this client's code show that were trained on its samples alone; None where none can be."""
    if client.architecture is None or client.examples is None:
        return None
    runs = [_run(client, draw) for draw in range(_DRAWS)]
    found = [_most(run) for run in runs if run[0]]
    return Rehearsed(*(torch.stack(part).amax(0) for part in zip(*found, strict=True))) if found else None


@torch.enable_grad()
def _run(client: ClientContext, draw: int) -> list[list[LayerLook]]:
    """What one model shows at all stages of its training, by one way or the other in turn."""
    assert client.architecture is not None
    assert client.examples is not None
    own, looks = client.examples, []
    model = copy.deepcopy(client.architecture()).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw)
        draw_anew(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        small = sum(parameter.numel() for parameter in trained) <= _LARGEST
        optimizer: torch.optim.Optimizer = torch.optim.SGD(trained, lr=_MOMENTUM_RATE, momentum=_MOMENTUM)
        if draw % 2:
            optimizer = torch.optim.Adam(trained, lr=_ADAM_RATE)
        for step in range(_STAGES[-1] + 1 if small else 1):
            if step in _STAGES:
                looks.append(look_at(model, own))
            batch = own.take(torch.randint(len(own), (min(_BATCH, len(own)),)).to(own.y.device))
            optimizer.zero_grad()
            batch_loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return looks


def draw_anew(model: nn.Module) -> None:
    """Draws the parameters of all parts that know how to, as PyTorch's own do, from the global generator."""
    for module in model.modules():
        draw = getattr(module, "reset_parameters", None)
        if callable(draw):
            draw()


def _most(run: Sequence[Sequence[LayerLook]]) -> Iterator[Tensor]:
    """The fields of Rehearsed, of one model at all its stages."""
    for name in ("alone", "pairs", "silenced"):
        yield torch.tensor([[getattr(look, name) for look in looks] for looks in run]).amax(0)
    shares = torch.tensor([[look.readable for look in looks] for looks in run])  # (stages, layers, SIZES)
    yield shares.nanmean(2).nan_to_num().amax(0)
    yield shares.nan_to_num().amax(0)
