"""Networks that shift, scale or turn their input before the first layer that learns, as those do that normalise inside.

Such a front F(x) = J x + c is as good as none: what the rest of the network is fed is recovered, and x follows from it,
if no two inputs are fed alike.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.errors import NotAChain
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.models.module_chain import split_before_parameters

MOST_VALUES = 4_096  # of an input: J is a square of it
SAME = 1e-9  # relative distance of what F does from J x + c
COMES_BACK = 1e-6  # the same of inputs that are recovered from what the rest is fed
NEARLY = 1e-4  # the same of what the whole network puts out for these and what the rest does


@dataclass(frozen=True, eq=False)
class AffineFront:
    """What comes before the rest of a network, and a message as if clients had trained that alone."""

    attacked: AttackedMessage
    behind: AttackedMessage  # the same for the rest of the network
    shape: tuple[int, ...]  # of what the rest is fed
    shape_before: tuple[int, ...]
    slope: Tensor  # J (d', d)
    shift: Tensor  # c (d',)

    @staticmethod
    def of(attacked: AttackedMessage, shape: tuple[int, ...] | None) -> AffineFront | None:
        """None where there is no front, or it is of another kind."""
        if shape is None or math.prod(shape) > MOST_VALUES:
            return None
        try:
            parts = split_before_parameters(attacked.model)
            trained = None if parts is None else split_before_parameters(copy.deepcopy(attacked.model).train())
        except NotAChain:
            return None
        if parts is None or trained is None:
            return None
        front, rest = parts
        drawn = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        unit = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
        try:
            with torch.no_grad():
                fed, shift, every = (front(x) for x in (drawn, torch.zeros_like(drawn), unit))
                again = [trained[0](drawn) for _ in range(2)]  # as clients run it: dropout, say
        except Exception:  # whatever a user's forward does with inputs that it was not written for
            return None
        if len(fed) != len(drawn) or any(not torch.allclose(one, fed, rtol=SAME, atol=SAME) for one in again):
            return None
        slope, shift = (every - shift[:1]).flatten(1).T, shift[0].flatten()
        made = AffineFront(attacked, replace(attacked, model=rest.eval()), fed.shape[1:], shape, slope, shift)
        missed = drawn.flatten(1) @ slope.T + shift - fed.flatten(1)
        if missed.norm() > SAME * fed.norm() or (made.before(fed) - drawn).norm() > COMES_BACK * drawn.norm():
            return None
        return made

    def before(self, fed: Tensor) -> Tensor:
        """(k, *before) the inputs for which the rest is fed this (k, *shape)."""
        found = torch.linalg.lstsq(self.slope, (fed.flatten(1).double() - self.shift).T).solution
        before: Tensor = found.T.reshape(len(fed), *self.shape_before)
        return before

    def undone(self, answer: RecoveredInputs) -> RecoveredInputs:
        """What was found of the rest, as inputs; vouched for where the whole network makes the same of them."""
        if not len(answer.samples):
            return answer
        x = self.before(answer.samples)
        with torch.no_grad():
            whole, rest = self.attacked.model(x), self.behind.model(answer.samples.double())
        alike = (whole - rest).flatten(1).norm(dim=1) <= NEARLY * rest.flatten(1).norm(dim=1)
        return replace(answer, samples=x, certified=answer.certified & alike)
