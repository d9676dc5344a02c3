"""FedAvg, exactly: local steps are recovered one by one, each at the weights that the steps before it led to.

Under one pass of plain SGD every sample is used once, at weights that all earlier steps determine. The update still has
one direction for each sample (rank B), and the samples of the first step are exact roots at the weights that were sent.
They give that step's gradient, hence the next weights; what remains of the update has one step less.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import WHOLE_SHARE, Certificate, certify, found_again
from fedspill.leaks.inputs.exact.error_bars import MOST_OFF, UsedAt, error_bars
from fedspill.leaks.inputs.exact.leading_layers import LayerPair, pair_at_weights
from fedspill.leaks.inputs.exact.two_linear_layers import PairGradients, RecoveredBatch, RootSearchEffort, recover_batch
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot

TOLERANCES = (0.01, 0.05, 0.15)  # tried in turn, when too few roots are found for a step


@dataclass(frozen=True, eq=False)
class LocalStepSamples:
    """The samples in the order in which they were used."""

    x: Tensor  # (k, d)
    labels: Tensor  # (k,)
    residual: Tensor  # (k,)
    error: Tensor  # (k,) of the certificate
    sure: Tensor  # (k,) whether each is what it must be, beside what it sends back
    batch: int


def follow_local_steps(
    model: nn.Module,
    pair: LayerPair,
    summed: Mapping[str, Tensor],
    sizes: Sequence[int],
    lr: float,
    shape: Sequence[int],
    classes: int,
    rng: torch.Generator,
    effort: RootSearchEffort | None = None,
    rounding: float = 0.0,
) -> LocalStepSamples:
    """`summed` is the sum of the step gradients by name (minus the update over lr), `sizes` the samples of each step,
    and `rounding` the norm of what float32 may have changed of the sum.

    `model` is the one that was sent, in float64. Raises CannotRecover where not even the first step is found.
    """
    model, rest = copy.deepcopy(model), {name: tensor.clone() for name, tensor in summed.items()}
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
    used: list[UsedAt] = []
    for number, size in enumerate(sizes):
        left = sum(sizes[number:])
        now = pair_at_weights(pair, {name: value.detach().clone() for name, value in model.named_parameters()})
        try:
            found = enough_roots(now, pair_gradients_in(rest, pair), left, size, rng, effort)
        except CannotRecover:
            if not steps:
                raise
            break
        if len(found.x) < size:
            break
        certificate = _certify(model, now, found)
        # Samples of this step fulfil both conditions exactly; those of later steps only nearly, so they rank behind.
        order = (found.residual + certificate.error).argsort()
        chosen = order[:size]
        x, labels = found.x[chosen], certificate.labels[chosen]
        once = (certificate.share[chosen] * size - 1).abs() < WHOLE_SHARE
        once &= ~found_again(x, found.residual[chosen])
        steps.append((x, labels, found.residual[chosen], certificate.error[chosen], once))
        used.append(UsedAt(copy.deepcopy(model), pair.first.weight_name.rpartition(".")[0], x, labels, 1 / size))
        targets = one_hot(labels, classes).to(x)
        step = [g[0].detach() for g in gradients_of(model)(x.reshape(1, size, *shape), targets[None])]
        with torch.no_grad():
            for name, gradient in zip(names, step, strict=True):
                model.get_parameter(name).sub_(lr * gradient)
                rest[name] = rest[name] - gradient
    if not steps:
        raise CannotRecover(f"no sample of the first of {len(sizes)} local steps was found")
    x, labels, residual, error, once = (torch.cat(parts) for parts in zip(*steps, strict=True))
    if len(steps) == len(sizes):
        missed = float(torch.stack([rest[name].square().sum() for name in names]).sum().sqrt())
        sure = error_bars(used, max(missed, rounding), rng) < MOST_OFF
    else:  # What proves a step is that the next one, read at the weights that it led to, sends what it must.
        sound = torch.tensor([bool(step[-1].all()) for step in steps]).cumprod(0).bool()
        proven = torch.cat([sound[1:], torch.tensor([False])])
        sure = once & proven.repeat_interleave(torch.tensor(sizes[: len(steps)]))
    return LocalStepSamples(x, labels, residual, error, sure, sum(sizes))


def pair_gradients_in(gradients: Mapping[str, Tensor], pair: LayerPair) -> PairGradients:
    """The gradients of the first two layers among all; raises CannotRecover where the client froze one of them."""
    for name in (pair.first.weight_name, pair.first.bias_name, pair.second.weight_name):
        if name is not None and name not in gradients:
            raise CannotRecover(f"the update holds no {name!r}, as where a layer is frozen")
    bias = None if pair.first.bias_name is None else gradients[pair.first.bias_name].double()
    return PairGradients(gradients[pair.first.weight_name].double(), bias, gradients[pair.second.weight_name].double())


def enough_roots(
    pair: LayerPair,
    gradients: PairGradients,
    left: int,
    size: int,
    rng: torch.Generator,
    effort: RootSearchEffort | None,
) -> RecoveredBatch:
    """Enough roots for a step, at the smallest tolerance that gives them."""
    found = recover_batch(pair, gradients, rng, left, effort, enough=size)
    for tolerance in TOLERANCES:
        if len(found.x) >= size:
            break
        found = recover_batch(pair, gradients, rng, left, effort, tolerance, enough=size)
    return found


def _certify(model: nn.Module, pair: LayerPair, found: RecoveredBatch) -> Certificate:
    z = found.x @ pair.first.weight.T + (0 if pair.first.bias is None else pair.first.bias)
    return certify(model, pair.first.weight_name.rpartition(".")[0], z, found.delta)
