"""A loss recorded once, with its slopes, as a CUDA graph: thousands of small kernels are then one launch a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import Function

from fedspill.leaks.inputs.search.objectives import GradientDistance
from fedspill.leaks.inputs.search.priors import Prior


@final
class Recording:
    """Of losses (R,) of tensors (R, ...) on a GPU; row r of each slope belongs to loss r."""

    def __init__(self, loss: Callable[..., Tensor], *like: Tensor) -> None:
        self.loss = loss  # a graph reads the tensors that its loss was made of, and does not keep them alive
        self.held = [one.detach().clone().requires_grad_() for one in like]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries prepare themselves in the first calls, which a graph cannot hold
            for _ in range(2):
                self._evaluate()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses, self.slopes = self._evaluate()

    def _evaluate(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        found = self.loss(*self.held)
        return found.detach(), torch.autograd.grad(found.sum(), self.held)

    def __call__(self, *given: Tensor) -> Tensor:
        found: Tensor = _Replay.apply(self, *given)
        return found


@final
class _Replay(Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, *given: Tensor) -> Tensor:
        for held, now in zip(recording.held, given, strict=True):
            held.data.copy_(now)
        recording.graph.replay()
        ctx.slopes = [slope.clone() for slope in recording.slopes]
        return recording.losses.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(outer.reshape(-1, *[1] * (slope.ndim - 1)) * slope for slope in ctx.slopes)


@final
@dataclass(frozen=True)
class Recorded(GradientDistance):
    """Where a recording took the place of gradients and their distance at once."""

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        return candidate[0]


@final
@dataclass(frozen=True, eq=False)
class RecordedPriors(Prior):
    """The sum of all priors."""

    recording: Recording

    def __call__(self, x: Tensor) -> Tensor:
        return self.recording(x)
