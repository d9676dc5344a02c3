"""Algorithms 1 to 4 of CAFE as published (paper 001), with the constants and optimizers of the authors' released code.

One call of `step` is one protocol round. Where text and code differ, the code is followed and the text is an option:
the code runs all three steps in every round and never switches, and it corrects Adam's bias twice, in the moments and
in the step size. A round never waits for the device, so that a GPU can run it as one recorded graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedspill.leaks.inputs.search.candidate_gradients import soft_cross_entropy
from fedspill.leaks.inputs.total_variation import total_variation
from fedspill.models.vertical import VerticalNet

STEPS = (1, 2, 3)


@dataclass(frozen=True)
class PublishedConstants:
    """As released for MNIST. `xi` is close to the mean total variation of real MNIST tiles, which an attacker lacks."""

    alpha: float = 1e-2  # gradient matching
    beta: float = 1e-4  # total variation, where its mean exceeds xi
    gamma: float = 1e-3  # internal representation
    xi: float = 25.0
    rate_v: float = 5e-3  # of Step I, plain gradient descent
    rate_h: float = 1e-2  # of Step II, Adam
    rate_x: float = 1e-2  # of Step III, Adam
    start_v: float = 8e-4
    start_h: float = 8e-2


@final
class PublishedDescent:
    """The estimates V, H, images and label logits of all samples, and one update of each for a round's gradients."""

    def __init__(
        self,
        net: VerticalNet,
        samples: int,
        classes: int,
        rng: torch.Generator,
        constants: PublishedConstants = PublishedConstants(),  # noqa: B008 - frozen
    ) -> None:
        self._net = net
        self._constants = c = constants
        device = next(net.parameters()).device
        self._parameters = {name: parameter.requires_grad_(True) for name, parameter in net.named_parameters()}

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return (low + (high - low) * torch.rand(*shape, generator=rng)).to(device)

        firsts = [net.tower(party).first for party in range(net.parties)]
        self.v = [uniform(-c.start_v, c.start_v, samples, first.out_features) for first in firsts]
        self.h = [uniform(0, c.start_h, samples, first.in_features) for first in firsts]
        self.x = [uniform(0, 1, samples, *shape) for shape in net.part_shapes]
        self.logits = uniform(0, 1, samples, classes)
        self._adam_h = [_Adam(h, c.rate_h) for h in self.h]
        self._adam_x = [_Adam(x, c.rate_x) for x in self.x]
        self._adam_y = _Adam(self.logits, c.rate_x)

    def tensors(self) -> list[Tensor]:
        """All tensors that a step changes, for callers that must restore them."""
        moments = [moment for adam in (*self._adam_h, *self._adam_x, self._adam_y) for moment in adam.moments]
        return [*self.v, *self.h, *self.x, self.logits, *moments]

    def step(
        self, batch: Tensor, gradients: Mapping[str, Tensor], number: Tensor, steps: Sequence[int] = STEPS
    ) -> tuple[Tensor, Tensor]:
        """One round: indices (K,), the parties' mean gradients by name, its number from 1. Returns F1 and F2."""
        losses = []
        for party in range(self._net.parties):
            bias, weight = (gradients[f"towers.{party}.first.{part}"] for part in ("bias", "weight"))
            v, h = self.v[party][batch], self.h[party][batch]
            left = v.sum(0) - bias
            wrong = h.T @ v - weight.T
            losses.append(torch.stack([left.square().sum(), wrong.square().sum()]))
            if 1 in steps:
                self.v[party][batch] = v - self._constants.rate_v * 2 * left
            if 2 in steps:
                self._adam_h[party].move(batch, 2 * v @ wrong.T, number)
        if 3 in steps:
            self._images(batch, gradients, number)
        total = torch.stack(losses).sum(0)
        return total[0], total[1]

    def _images(self, batch: Tensor, gradients: Mapping[str, Tensor], number: Tensor) -> None:
        """Step III: matched gradients, truncated total variation, internal representation (Eq. 9)."""
        c, net = self._constants, self._net
        with torch.enable_grad():
            parts = [x[batch].requires_grad_(True) for x in self.x]
            logits = self.logits[batch].requires_grad_(True)
            features = [net.tower(party).front(part) for party, part in enumerate(parts)]
            inner = sum(
                ((f - h[batch]).square().sum() for f, h in zip(features, self.h, strict=True)), logits.new_zeros(())
            )
            variation = torch.stack([total_variation(part).mean() for part in parts]).mean()
            smooth = torch.where(variation.detach() > c.xi, variation, 0.0)
            loss = c.gamma * inner + c.beta * smooth
            wanted = [*parts, logits] if c.alpha else parts
            if c.alpha:
                firsts = [net.tower(party).first(f) for party, f in enumerate(features)]
                sent = soft_cross_entropy(net.from_first(firsts), logits.softmax(1))
                names = [name for name in self._parameters if name in gradients]
                made = torch.autograd.grad(sent, [self._parameters[name] for name in names], create_graph=True)
                matched = sum(
                    ((one - gradients[name]).square().sum() for one, name in zip(made, names, strict=True)),
                    logits.new_zeros(()),
                )
                loss = loss + c.alpha * matched
            found = torch.autograd.grad(loss, wanted)
        for party in range(net.parties):
            self._adam_x[party].move(batch, found[party], number)
        if c.alpha:
            self._adam_y.move(
                batch, found[-1] / c.alpha * 100, number
            )  # Adam does not mind the scale, its epsilon does


class _Adam:
    """Adam on rows of a table, moments kept for each row, the round's number as step count, bias corrected twice."""

    def __init__(self, table: Tensor, rate: float) -> None:
        self._table, self._rate = table, rate
        self._mean, self._square = torch.zeros_like(table), torch.zeros_like(table)
        self.moments = (self._mean, self._square)

    def move(self, rows: Tensor, gradient: Tensor, number: Tensor) -> None:
        mean = 0.9 * self._mean[rows] + 0.1 * gradient
        square = 0.999 * self._square[rows] + 0.001 * gradient.square()
        self._mean[rows], self._square[rows] = mean, square
        first, second = 1 - 0.9**number, 1 - 0.999**number
        rate = self._rate * second.sqrt() / first
        self._table[rows] -= rate * (mean / first) / ((square / second).sqrt() + 1e-7)
