"""How much an audit of a claim may take: as many calls and canaries as about five seconds of one core hold.

Counted, not timed, so that the same plan is tested in the same way on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable

# Numbers that may be sent in all: one takes 7 ns, or 140 with noise from the system's secure source (measured).
_SENT = 35_000_000
_TENSOR = 1_000  # a tensor costs as much as so many numbers, however small it is
_LONGEST = 10_000  # numbers of a message; of larger models a part is sent
# Multiplications over the records of one step: ten steps take 10 ns for each (measured), and 30 for a parameter.
_STEP = 400_000_000
_PARAMETER = 3
_FEWEST_CANARIES = 60  # fewer cannot refute a claim of 8 even where there is no noise
_MOST_CANARIES, _MOST_REAL = 600, 200


def sent_shapes(shapes: Mapping[str, torch.Size]) -> dict[str, torch.Size]:
    """The tensors of a message that a defense is called with: the model's own, or as long a part of each as fits."""
    whole = sum(shape.numel() for shape in shapes.values())
    if whole <= _LONGEST:
        return dict(shapes)
    return {
        name: shape if shape.numel() <= 1 else torch.Size([max(1, math.ceil(shape.numel() * _LONGEST / whole))])
        for name, shape in shapes.items()
    }


def calls(shapes: Mapping[str, torch.Size]) -> int:
    """How often a message of these tensors may be sent."""
    return _SENT // (sum(shape.numel() for shape in shapes.values()) + _TENSOR * len(shapes))


def records_that_fit(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """(canaries, real records) for gradients of single records of such a model; `x` are records of that kind."""
    each = _PARAMETER * sum(p.numel() for p in model.parameters()) + multiplications(model, x[:1])
    together = _STEP // max(each, 1)
    real = min(_MOST_REAL, together // 3, len(x))
    canaries = min(_MOST_CANARIES, 2 * (together - real))  # half of them are in
    if canaries < _FEWEST_CANARIES:
        raise NotApplicable(
            "Gradients of single records of this model take too long for canaries: they are more than "
            f"{each:,} multiplications each."
        )
    return canaries, real


@torch.no_grad()
def multiplications(model: nn.Module, x: Tensor) -> int:
    """Of linear layers and convolutions, for these records."""
    found: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = module.get_parameter("weight")
        found.append(output.numel() * weight[0].numel())

    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        model.eval()(x)
    finally:
        for handle in handles:
            handle.remove()
    return sum(found)
