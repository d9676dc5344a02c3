"""FedAvg, exactly: a client's local steps are walked one by one, so that drift is followed and not approximated.

Under one pass of plain SGD every sample is used once, at weights that all earlier steps determine. The update still has
one direction for each sample (rank B), and the samples of the first step are exact roots at the weights that were sent.
They give that step's gradient, hence the next weights, and what is left of the update is a federation of one step less.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import Certificate, certify
from fedspill.leaks.inputs.exact.leading_layers import Pair, at_weights
from fedspill.leaks.inputs.exact.two_linear_layers import Effort, Observed, Recovered, recover
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot

LADDER = (0.01, 0.05, 0.15)  # tolerances in turn, when too few roots are found for a step


@dataclass(frozen=True, eq=False)
class Walked:
    """The samples in the order in which they were used."""

    x: Tensor  # (k, d)
    labels: Tensor  # (k,)
    residual: Tensor  # (k,)
    error: Tensor  # (k,) of the certificate
    batch: int


def walk(
    model: nn.Module,
    pair: Pair,
    summed: Mapping[str, Tensor],
    sizes: Sequence[int],
    lr: float,
    shape: Sequence[int],
    classes: int,
    rng: torch.Generator,
    effort: Effort | None = None,
) -> Walked:
    """`summed` is the sum of the step gradients by name (minus the update over lr), `sizes` the samples of each step.

    `model` is the one that was sent, in float64. Raises CannotRecover where not even the first step is found.
    """
    model, rest = copy.deepcopy(model), {name: tensor.clone() for name, tensor in summed.items()}
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for number, size in enumerate(sizes):
        left = sum(sizes[number:])
        now = at_weights(pair, {name: value.detach().clone() for name, value in model.named_parameters()})
        found = _roots(now, seen_in(rest, pair), left, size, rng, effort)
        if len(found.x) < size:
            break
        certificate = _check(model, now, found)
        # The samples of this step are roots, and send back what was peeled; those of later steps nearly so.
        order = (found.residual + certificate.error).argsort()
        chosen = order[:size]
        x, labels = found.x[chosen], certificate.labels[chosen]
        steps.append((x, labels, found.residual[chosen], certificate.error[chosen]))
        targets = one_hot(labels, classes).to(x)
        step = [g[0].detach() for g in gradients_of(model)(x.reshape(1, size, *shape), targets[None])]
        with torch.no_grad():
            for name, gradient in zip(names, step, strict=True):
                model.get_parameter(name).sub_(lr * gradient)
                rest[name] = rest[name] - gradient
    if not steps:
        raise CannotRecover(f"no sample of the first of {len(sizes)} local steps was found")
    x, labels, residual, error = (torch.cat(parts) for parts in zip(*steps, strict=True))
    return Walked(x, labels, residual, error, sum(sizes))


def seen_in(gradients: Mapping[str, Tensor], pair: Pair) -> Observed:
    """The gradients of the first two layers among all."""
    bias = None if pair.first.bias_name is None else gradients[pair.first.bias_name].double()
    return Observed(gradients[pair.first.weight_name].double(), bias, gradients[pair.second.weight_name].double())


def _roots(pair: Pair, seen: Observed, left: int, size: int, rng: torch.Generator, effort: Effort | None) -> Recovered:
    """Enough roots for a step, at the smallest tolerance that gives them."""
    found = recover(pair, seen, rng, left, effort, enough=size)
    for tolerance in LADDER:
        if len(found.x) >= size:
            break
        found = recover(pair, seen, rng, left, effort, tolerance, enough=size)
    return found


def _check(model: nn.Module, pair: Pair, found: Recovered) -> Certificate:
    z = found.x @ pair.first.weight.T + (0 if pair.first.bias is None else pair.first.bias)
    return certify(model, pair.first.weight_name.rpartition(".")[0], z, found.delta)
