"""Looking at all steps of a client's round at once, in order to change what is sent and not how it is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from fedspill.training import Tensors

_KEPT = 256  # inputs of a layer, of which others are made
_CUTS = 8  # parts that inputs are cut into

Crossed: TypeAlias = Callable[[int], Tensor]  # how many to (inputs, units), whether units fire for made-up inputs


class RoundLook(ABC):
    """What a defense puts on the model for a client's round, or for the one step of a gradient."""

    @abstractmethod
    def sent(self, tensors: Tensors, batches: Sequence[Tensor]) -> Tensors:
        """What is sent instead of `tensors`, the outcome of steps on the samples that `batches` name."""

    @abstractmethod
    def close(self) -> None:
        """Takes everything off the model."""


@final
class SampleSignals:
    """What every sample of a round sends back to each unit of some layers.

    A row of a layer's change is the sum of the client's inputs, each times what it sent back to that row. A sample that
    comes in several steps is one sample, with all that it sent back. `masked` makes of what a layer's first step sends
    back (samples, units) the units that are let through in all steps, where something below the layer learns too; of
    the last layer that samples pass all are.
    """

    def __init__(
        self, layers: Mapping[str, nn.Module], masked: Callable[[Tensor, Crossed], Tensor] | None = None
    ) -> None:
        self._passed: list[_Layer] = []  # in the order in which samples pass them, however the model's code lists them
        handles = []
        for name, layer in layers.items():
            seen = _Layer(name, self._passed, masked)
            handles.append(layer.register_forward_hook(seen.forward))
        self._handles = handles

    def of(self, batches: Sequence[Tensor]) -> dict[str, Tensor | None]:
        """(samples, units) by layer, in the order in which samples pass them; None where it put out no row for each."""
        return {seen.name: _by_sample(seen.caught, batches) if seen.caught else None for seen in self._passed}

    def crossed(self, name: str) -> Crossed:
        """For whom a rectified layer fires, beyond the samples, as the model came."""
        return next(seen.crossed for seen in self._passed if seen.name == name)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


@final
class _Layer:
    def __init__(self, name: str, passed: list[_Layer], masked: Callable[[Tensor, Crossed], Tensor] | None) -> None:
        self.name = name
        self.caught: list[Tensor] = []
        self._passed, self._masked = passed, masked
        self._inputs: list[Tensor] = []
        self._weight: Tensor | None = None  # as the round began, and the bias
        self._bias: Tensor | None = None
        self._open: Tensor | None = None
        self._hook = self.caught.append if masked is None else self._let_through

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._weight is None:
            self._passed.append(self)
            # By name: a weight that is normalised is none of the layer's parameters.
            self._weight = torch.as_tensor(module.weight).detach().clone()
            self._bias = None if module.bias is None else torch.as_tensor(module.bias).detach().clone()
        if output.requires_grad and output.ndim == 2:
            output.register_hook(self._hook)  # type: ignore[no-untyped-call]
            if sum(map(len, self._inputs)) < _KEPT:
                self._inputs.append(inputs[0].detach())

    def crossed(self, many: int) -> Tensor:
        """(many, units) whether units fire for inputs whose first columns are one sample's and whose last another's.

        Columns keep their kinds so, and neighbours mostly what they have to do with each other: pixels, and columns of
        which one is 1. What both parts add to a unit is reckoned once for each sample.
        """
        assert self._weight is not None
        x, weight = torch.cat(self._inputs), self._weight
        width = -(-x.shape[1] // _CUTS)
        parts = zip(torch.split(x, width, 1), torch.split(weight, width, 1), strict=True)
        first = torch.stack([part @ rows.T for part, rows in parts]).cumsum(0)
        rng = torch.Generator().manual_seed(many)
        one, other, cut = (torch.randint(below, (many,), generator=rng) for below in (len(x), len(x), len(first)))
        heights = first[cut, one] + first[-1, other] - first[cut, other]
        return (heights if self._bias is None else heights + self._bias).gt(0).to(x)

    def _let_through(self, signals: Tensor) -> Tensor:
        if self._open is None:
            assert self._masked is not None
            last = self._passed[-1] is self
            kept = torch.ones_like(signals[0]) if last else self._masked(signals, self.crossed).to(signals.dtype)
            self._open = kept
        signals = signals * self._open
        self.caught.append(signals)
        return signals


def _by_sample(caught: Sequence[Tensor], batches: Sequence[Tensor]) -> Tensor:
    """Rows stay apart where there are more or fewer than samples, as in a layer that looks at places of them."""
    rows = caught[0] if len(caught) == 1 else torch.cat(list(caught))
    if [len(part) for part in caught] != [len(batch) for batch in batches]:
        return rows
    steps = torch.cat(list(batches))
    if int(torch.bincount(steps).amax()) <= 1:
        return rows
    samples, number = torch.unique(steps, return_inverse=True)
    return rows.new_zeros(len(samples), rows.shape[1]).index_add_(0, number.to(rows.device), rows)
