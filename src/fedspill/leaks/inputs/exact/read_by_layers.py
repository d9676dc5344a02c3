"""What linear layers are fed, found by running a network: which of them read the input, and how it follows from that.

A layer may read the whole input, a part of it, or an affine map of it, once or several times. Its gradient is a sum
over all of these, and its row space holds each. Layers that together read all of an input tell it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.leading_layers import LinearLayer, linear_layer

MOST_INPUTS = 4_096  # values of a sample, where what layers read has to be solved for them (convention)
WORST_CONDITION = 1e3  # of the map from a sample to what layers read: how much rounding may grow (convention)
SAME = 1e-9  # relative, of float64 values that are equal but for rounding
MIXED = 0.03  # share of what a layer is fed for a mixture of two inputs that these do not give (convention)


@dataclass(frozen=True)
class Call:
    """One of the times that a layer runs."""

    layer: str
    number: int

    @property
    def weight(self) -> str:
        return f"{self.layer}.weight"

    @property
    def bias(self) -> str:
        return f"{self.layer}.bias"


@dataclass(frozen=True, eq=False)
class Readings:
    """Calls of layers that read a sample, and how it follows from what they are fed: (n, features), side by side.

    Without calls, the features are the sample itself, of which no gradient tells anything at once.
    """

    calls: tuple[Call, ...]
    shape: tuple[int, ...]
    matrix: Tensor | None  # (features, inputs) of the affine map; None: the features are the sample as it is
    inverse: Tensor | None  # (inputs, features)
    offset: Tensor  # (features,) or (1,)

    def samples(self, fed: Tensor) -> Tensor:
        if self.inverse is not None:
            fed = (fed - self.offset) @ self.inverse.T
        return fed.reshape(len(fed), *self.shape)

    def features(self, x: Tensor) -> Tensor:
        """(n, features) that the layers are fed for samples x (n, *shape)."""
        return x.flatten(1) if self.matrix is None else x.flatten(1) @ self.matrix.T + self.offset

    def swapped(self, x: Tensor) -> list[Tensor]:
        """Samples x with two of the parts exchanged that the same layer reads, for each such two."""
        if self.inverse is None or self.matrix is None:
            return []
        fed = self.features(x)
        width = fed.shape[1] // len(self.calls) if len({call.layer for call in self.calls}) == 1 else 0
        places = range(len(self.calls) if width else 0)
        exchanged = []
        for one, other in ((i, j) for i in places for j in places if i < j):
            parts = [fed[:, place * width : (place + 1) * width] for place in places]
            parts[one], parts[other] = parts[other], parts[one]
            exchanged.append(self.samples(torch.cat(parts, 1)))
        return exchanged


def fed_by_call(model: nn.Module, x: Tensor) -> Mapping[Call, Tensor]:
    """What each linear layer is fed for samples x, in running order: where it is always one row for each sample."""
    caught: dict[Call, Tensor] = {}  # filled in the order in which layers run
    times: dict[str, int] = {}

    def catch(name: str, fed: Tensor) -> None:
        times[name] = times.get(name, 0) + 1
        caught[Call(name, times[name] - 1)] = fed

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_pre_hook(lambda _, fed, name=name: catch(name, fed[0])))
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    others = {call.layer for call, fed in caught.items() if fed.ndim != 2 or len(fed) != len(x)}
    return {call: fed for call, fed in caught.items() if call.layer not in others}


def sound_calls(model: nn.Module, probe: Tensor) -> Mapping[Call, Tensor]:
    """What layers are fed for the probe (n, *shape); raises CannotRecover where samples mix or the network draws."""
    try:
        with torch.no_grad():
            seen = fed_by_call(model, probe)
            alone = fed_by_call(model, probe[:1])
            trained = [fed_by_call(_in_training(model), probe) for _ in range(2)]
    except Exception as error:  # whatever the user's forward does with an input of another kind
        raise CannotRecover(f"the network does not run on numbers of shape {tuple(probe.shape[1:])}") from error
    for call, fed in seen.items():
        if call not in alone or not torch.allclose(fed[:1], alone[call], rtol=SAME, atol=SAME):
            raise CannotRecover("the network mixes the samples of a step")
        if any(call not in one or not torch.allclose(fed, one[call], rtol=SAME, atol=SAME) for one in trained):
            raise CannotRecover("the network draws at random while it trains, or works otherwise then")
    return seen


def layer_that_reads_inputs(model: nn.Module, columns: int) -> LinearLayer:
    """The widest linear layer that is fed the input itself, once, whatever else the network does with it; found by
    running it. Raises CannotRecover where there is none.
    """
    probe = torch.randn(3, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        with torch.no_grad():
            fed = fed_by_call(_in_training(model), probe)
    except Exception as error:  # whatever the user's forward does with an input of another kind
        raise CannotRecover(f"the network does not run on numbers of shape ({columns},)") from error
    reads = [call for call, one in fed.items() if torch.equal(one, probe)]
    once = [call.layer for call in reads if not any(other.layer == call.layer and other != call for other in fed)]
    if not once:
        raise CannotRecover("the network has no linear layer that reads the input itself")
    layers = [linear_layer(name, model.get_submodule(name)) for name in once]
    return max(layers, key=lambda layer: len(layer.weight))


def readings_of(model: nn.Module, calls: Sequence[Call], probe: Tensor, seen: Mapping[Call, Tensor]) -> Readings | None:
    """The first of these calls, in running order, that together read all of an input; None where they do not."""
    shape, inputs = tuple(probe.shape[1:]), math.prod(probe.shape[1:])
    for call in calls:
        if seen[call].shape == (len(probe), inputs) and torch.equal(seen[call], probe.flatten(1)):
            return Readings((call,), shape, None, None, torch.zeros(1, dtype=probe.dtype))
    if inputs > MOST_INPUTS or not calls:
        return None
    with torch.no_grad():
        at_zero = fed_by_call(model, torch.zeros_like(probe[:1]))
        at_units = fed_by_call(model, torch.eye(inputs, dtype=probe.dtype).reshape(inputs, *shape))
    affine = dict[Call, tuple[Tensor, Tensor]]()  # matrix and offset
    for call in calls:
        if call in at_zero and call in at_units:
            offset = at_zero[call][0]
            matrix = (at_units[call] - offset).T
            if torch.allclose(probe.flatten(1) @ matrix.T + offset, seen[call], rtol=1e-6, atol=1e-6):
                affine[call] = matrix, offset
    # One that reads all of it leaves fewer unknowns than several that read parts.
    chosen = next(([call] for call, (matrix, _) in affine.items() if _tells(matrix) == inputs), list[Call]())
    for call in affine if not chosen else ():
        if _tells(_stacked(affine, [*chosen, call])) > _tells(_stacked(affine, chosen)):
            chosen.append(call)
    matrix = _stacked(affine, chosen)
    if _tells(matrix) < inputs:
        return None
    offset = torch.cat([affine[call][1] for call in chosen])
    return Readings(tuple(chosen), shape, matrix, torch.linalg.pinv(matrix), offset)


def _stacked(affine: Mapping[Call, tuple[Tensor, Tensor]], chosen: Sequence[Call]) -> Tensor:
    """(features, inputs) the matrices of these calls, one above the other."""
    return torch.cat([affine[call][0] for call in chosen]) if chosen else torch.zeros(0, 1)


def sample_itself(shape: tuple[int, ...]) -> Readings:
    """The coordinates of a sample where no linear layers read it."""
    return Readings((), shape, None, None, torch.zeros(1, dtype=torch.float64))


def is_determined(model: nn.Module, calls: Sequence[Call], x: Tensor) -> Tensor:
    """(n,) whether no small change of a sample x (n, *shape) leaves what these calls are fed as it is."""
    flat = x.flatten(1).detach().requires_grad_()
    with torch.enable_grad():
        fed = fed_by_call(model, flat.reshape(x.shape))
        put = torch.cat([fed[call] for call in calls], 1)
        along = torch.eye(put.shape[1], dtype=x.dtype)[:, None].expand(-1, len(x), -1)
        (jacobian,) = torch.autograd.grad(put, [flat], along, is_grads_batched=True)
    sizes = torch.linalg.svdvals(jacobian.transpose(0, 1))
    told: Tensor = (sizes[:, -1] * WORST_CONDITION > sizes[:, 0]) & (put.shape[1] >= flat.shape[1])
    return told


def _tells(matrix: Tensor) -> int:
    """In how many directions a map tells inputs apart so well that rounding does not hide them."""
    return int(torch.linalg.matrix_rank(matrix, rtol=1 / WORST_CONDITION)) if len(matrix) else 0


def tells_mixtures(model: nn.Module, call: Call, shape: tuple[int, ...], rng: torch.Generator) -> bool:
    """Whether what the layer is fed for a mixture of inputs lies outside of the span of what it is fed for these."""
    inputs = torch.randn(2, *shape, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        apart, mixed = (fed_by_call(model, x)[call] for x in (inputs, inputs.mean(0, keepdim=True)))
    basis = torch.linalg.qr(apart.T)[0]
    outside = mixed[0] - basis @ (basis.T @ mixed[0])
    return float(outside.norm()) > MIXED * float(mixed.norm())


def _in_training(model: nn.Module) -> nn.Module:
    """A copy as clients run it, with batch norms that keep to their running statistics."""
    own = copy.deepcopy(model).train()
    for module in own.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    return own
