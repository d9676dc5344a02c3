"""Decaf's four steps as printed (paper 000, Algorithms 1 to 3), as pure functions.

"Gradient change" is the change of the last layer over the learning rate: minus a gradient. Where the text leaves a
choice it is an argument: what a base is (one step on the auxiliary class, or an epoch of steps), and how a class's
factor and the calibrator's are added up.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.federation.local import state_of, train
from fedspill.observe.local_changes import KnownFederation, LocalChange
from fedspill.observe.path_bases import last_layer_matrix, load_between
from fedspill.training import LocalTraining

Bases: TypeAlias = Literal["step", "epoch"]
ReadOut: TypeAlias = Literal["sum", "share"]


def null_classes(weight_change: Tensor, threshold: float) -> Tensor:
    """(classes,) bool, Algorithm 1: no input weight (classes, features) of the class rose above the threshold."""
    return (weight_change <= threshold).all(1)


def gradient_bases(
    change: LocalChange, federation: KnownFederation, null: Tensor, unified: Bases, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Algorithm 2: bases (k, outputs, features) of the k classes that are not null, and the unified base.

    One step is a gradient step on all auxiliary samples of the class. The unified base is such a step on their union,
    which makes it exactly the mean of the others when classes have equally many samples, or an epoch of the clients'
    batch size, which makes it about their sum times the steps of an epoch.
    """
    auxiliary, present = federation.auxiliary, torch.nonzero(~null).flatten()
    load_between(federation.model, change.before, change.change, 0.0)
    parts = [auxiliary.take(torch.nonzero(auxiliary.y == label).flatten()) for label in present]
    single = torch.stack([_one_step(federation, part) for part in parts])
    union = Examples.join(parts)
    if unified == "step":
        return single, _one_step(federation, union)
    training = LocalTraining(lr=federation.lr, batch_size=change.batch_size, batch_norm="eval")
    start = {name: tensor.clone() for name, tensor in state_of(federation.model).items()}
    moved = train(federation.model, start, union.to(next(federation.model.parameters()).device), training, rng)
    return single, last_layer_matrix(moved, federation.head, federation.bias)[:, :-1] / federation.lr


def _one_step(federation: KnownFederation, part: Examples) -> Tensor:
    """(outputs, features) minus the mean gradient of the last weight at the model's present state."""
    parameter: nn.Parameter = federation.model.get_parameter(federation.head)
    x, y = part.x.to(parameter.device), part.y.to(parameter.device)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(federation.model(x), y), [parameter])
    return -gradient.double().cpu()


def descent(bases: Tensor, target: Tensor, epochs: int, rate: float) -> Tensor:
    """Factors (m,) >= 0 of bases (m, d) for target (d,), Algorithm 3: projected gradient descent on the squared error.

    `rate` is in units of one over the curvature, since the printed rate has no value; every factor starts at 1/m.
    """
    products, wanted = bases @ bases.T, bases @ target  # all that the descent needs, whatever the layer's width
    curvature = float(torch.linalg.eigvalsh(products)[-1])
    factors = torch.full((len(bases),), 1 / len(bases), dtype=bases.dtype)
    if not curvature > 0:
        return factors
    for _ in range(epochs):
        factors = (factors - rate / curvature * (products @ factors - wanted)).clamp_min(0)
    return factors


def read_out(factors: Tensor, calibrator: Tensor | None, how: ReadOut) -> Tensor:
    """(k,) Equation 21, eta_c + eta_u, normalised; "share" is eta_c + eta_u / k, which is right when g_u is a mean."""
    if calibrator is not None:
        factors = factors + (calibrator if how == "sum" else calibrator / len(factors))
    total = factors.sum()
    return factors / total if total > 0 else torch.full_like(factors, 1 / len(factors))
