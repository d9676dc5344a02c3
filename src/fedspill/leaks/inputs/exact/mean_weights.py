"""Several steps over the same samples, read as one step at the mean of the weights that they ran through.

What is sent is a sum of gradients along a way through the weights. Taken at the mean of the way, what the gradients
before and after it add cancels to first order, so that the sum is nearly that of one step there. The first guess of the
mean needs nothing but the update, since the way is nearly straight. What still differs is known as soon as samples are:
training on them gives the way, hence its mean, and the difference, which is taken out of what was sent. So a solver for
one step, and training again, in turns, lead to samples that explain the update.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.explained_update import labels_by_last_layer
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.training import Schedule

TURNS = 8  # of solving and training again
GAIN = 0.7  # of the least that was missed before: what a turn may leave and count as a gain
IDLE = 2  # turns in a row without a gain, to give up after

# A message of one step and samples (B, *shape) that nearly explain it, to samples that do.
OneStepSolver: TypeAlias = Callable[[AttackedMessage, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Samples (B, *shape), their labels, and the share of the update that training on them leaves unexplained."""

    x: Tensor
    labels: Tensor
    missed: float


def mean_share(attacked: AttackedMessage) -> float:
    """How far along the change of the weights the mean of the way lies, if each step's gradient is the same."""
    counts = _counts(attacked)
    velocities = counts[::-1]  # with the same gradient, the last step is what the first gradient counts
    before = [sum(velocities[:step]) / sum(velocities) for step in range(attacked.steps)]
    return sum(count * share for count, share in zip(counts, before, strict=True)) / sum(counts)


def one_step_at(attacked: AttackedMessage, share: float) -> AttackedMessage:
    """The message as if of one step at that share of the way from the weights before to those after."""
    assert attacked.lr is not None
    change = {name: attacked.lr * gradient for name, gradient in attacked.gradients.items()}
    own = copy.deepcopy(attacked.model)
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if name in change:
                parameter.sub_(share * change[name])
    return _one_step(attacked, own, mean_gradient(attacked))


def mean_gradient(attacked: AttackedMessage) -> dict[str, Tensor]:
    return {name: tensor / attacked.step_weight for name, tensor in attacked.gradients.items()}


def one_step_after(attacked: AttackedMessage, x: Tensor, labels: Tensor, classes: int) -> tuple[AttackedMessage, float]:
    """The message as if of one step at the mean of the way that training on x leads, and the share that x misses."""
    assert attacked.lr is not None
    model, targets = copy.deepcopy(attacked.model), one_hot(labels, classes).double()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    counts = _counts(attacked)
    sent = {name: torch.zeros_like(p) for name, p in trained.items()}
    mean = {name: torch.zeros_like(p) for name, p in trained.items()}
    for count, step in zip(counts, trained_on(attacked, model, x, targets), strict=True):
        with torch.no_grad():
            for name, parameter in trained.items():
                sent[name] += count / sum(counts) * step[name]
                mean[name] += count / sum(counts) * parameter
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(mean[name])
    there, seen = _gradient(attacked, model, x, targets), mean_gradient(attacked)
    missed = _norm({name: sent[name] - seen[name] for name in trained}) / _norm({name: seen[name] for name in trained})
    corrected = {name: seen[name] - (sent[name] - there[name]) for name in trained}
    return _one_step(attacked, model, corrected), missed if math.isfinite(missed) else math.inf


def trained_on(attacked: AttackedMessage, model: nn.Module, x: Tensor, targets: Tensor) -> Iterator[dict[str, Tensor]]:
    """The gradient of each step of training on x, while `model` is at the weights that it is taken at."""
    assert attacked.lr is not None
    velocity = dict[str, Tensor]()
    for _ in range(attacked.steps):
        step = _gradient(attacked, model, x, targets)
        yield step
        with torch.no_grad():
            for name, gradient in step.items():
                velocity[name] = gradient + attacked.momentum * velocity.get(name, torch.zeros_like(gradient))
                model.get_parameter(name).sub_(attacked.lr * velocity[name])


def explanation(
    attacked: AttackedMessage, x: Tensor, labels: Tensor, classes: int, solve: OneStepSolver, enough: float
) -> Explanation:
    """The samples that come nearest to explaining the update, from x (B, *shape), by solving and training in turns."""
    best, idle = Explanation(x, labels, math.inf), 0
    for turn in range(TURNS + 1):
        message, missed = one_step_after(attacked, x, labels, classes)
        idle = 0 if missed < GAIN * best.missed else idle + 1
        if missed < best.missed:
            best = Explanation(x, labels, missed)
        if missed < enough or idle == IDLE or turn == TURNS:
            break
        try:
            x = solve(message, x)
        except CannotRecover:  # training on these led where the pair does not hold so many samples
            break
        labels = labels_by_last_layer(message, x)
    return best


def _counts(attacked: AttackedMessage) -> list[float]:
    """How often the gradient of each step counts in what is sent: once, and with momentum in all later steps too."""
    left = range(attacked.steps, 0, -1)
    return [float(sum(attacked.momentum**past for past in range(steps))) for steps in left]


def _one_step(attacked: AttackedMessage, model: nn.Module, gradients: dict[str, Tensor]) -> AttackedMessage:
    once = Schedule(attacked.samples, attacked.samples)
    return replace(attacked, model=model, gradients=gradients, schedule=once, lr=None, plain=True, momentum=0.0)


def _gradient(attacked: AttackedMessage, model: nn.Module, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    found = gradients_of(attacked.norms.as_client_ran(model))(x[None], targets[None])
    return {name: g[0].detach() for name, g in zip(names, found, strict=True)}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors.values()))
