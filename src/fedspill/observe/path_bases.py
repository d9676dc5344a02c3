"""Per-class mean gradients of the last layer on auxiliary data, averaged along the path from model before to after.

With features h, softmax p and one-hot e the gradient of one sample is (p - e) [h; 1]', and a local training of T plain
SGD steps moves the last layer by minus lr times the sum of its batch gradients. An adversary that has both models
can average the class gradients along the segment between the two, so that, for class shares r,

    -change / (lr T)  =  sum_c r_c G_c + noise,     G_c = sum_k w_k g_c(theta_0 + s_k (theta_T - theta_0)),

which is linear in r. Decaf, quantity and confidence estimates are linear solves on this one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable

# Weights of the closed Newton-Cotes rules for 1, 2, 3 and 5 even points: the start alone, trapezoid, Simpson, Boole.
QUADRATURE: dict[int, tuple[float, ...]] = {
    1: (1.0,),
    2: (1 / 2, 1 / 2),
    3: (1 / 6, 4 / 6, 1 / 6),
    5: (7 / 90, 32 / 90, 12 / 90, 32 / 90, 7 / 90),
}


@dataclass(frozen=True, eq=False)
class HeadProbe:
    """Inputs and errors of the last layer on labelled samples, at one point of the path."""

    features: Tensor  # (n, features + 1), the last column 1 for the bias
    errors: Tensor  # (n, outputs) probability minus one-hot label
    labels: Tensor  # (n,)

    def class_gradients(self, classes: int) -> Tensor:
        """(classes, outputs, features + 1) mean gradient of the weight and, as last column, of the bias."""
        number = torch.bincount(self.labels, minlength=classes).tolist()
        order = self.labels.argsort(stable=True)
        parts = zip(torch.split(self.errors[order], number), torch.split(self.features[order], number), strict=True)
        return torch.stack([errors.T @ features / len(errors) for errors, features in parts])


@dataclass(frozen=True, eq=False)
class PathBases:
    """Class gradients averaged along the segment, and one probe half-way that tells how single samples scatter."""

    gradients: Tensor  # (classes, outputs, features + 1), float64
    middle: HeadProbe
    bias_power: Tensor  # (classes, outputs) mean square of a sample's bias gradient, averaged along the segment
    least_feature: float  # the smallest last-layer input seen: below zero the sign theorem does not hold


@torch.no_grad()
def path_bases(
    model: nn.Module,
    before: Mapping[str, Tensor],
    change: Mapping[str, Tensor],
    head: str,
    auxiliary: Examples,
    classes: int,
    *,
    points: int = 5,
) -> PathBases:
    """Bases along `before` to `before + change`, by a rule of `points` points; `head` names the last layer's weight.

    The parameters of `model` are overwritten. It is left in evaluation mode, except for its batch normalisation.
    """
    weights = QUADRATURE[points]
    gradients, power, least, middle = torch.zeros(()), torch.zeros(()), torch.inf, None
    for index, weight in enumerate(weights):
        load_between(model, before, change, index / max(points - 1, 1))
        probe = probe_head(model, head, auxiliary)
        least = min(least, float(probe.features.min()))
        gradients = gradients + weight * probe.class_gradients(classes)
        power = power + weight * (class_mean_weights(probe.labels, classes) @ probe.errors**2)
        middle = probe if index == len(weights) // 2 else middle
    assert middle is not None
    return PathBases(gradients, middle, power, least)


def load_between(model: nn.Module, before: Mapping[str, Tensor], change: Mapping[str, Tensor], position: float) -> None:
    """Puts `before + position * change` into the model; tensors without a change stay as they were before."""
    state = {
        name: tensor + position * change[name].to(tensor) if name in change else tensor
        for name, tensor in before.items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise NotApplicable(
            f"The recorded model does not fill the architecture: {', '.join((*missing, *unexpected)[:4])}.",
            remedy="Record all layers of the model, and name the architecture that made them.",
        )
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            # Clients normalise by their batch; an untrained model's running statistics say nothing about it.
            module.train()
            module.momentum = 0.0


@torch.no_grad()
def probe_head(model: nn.Module, head: str, examples: Examples, batch: int = 500) -> HeadProbe:
    """Runs the model on labelled samples and notes the inputs and errors of its last layer, in float64 on the CPU."""
    layer = model.get_submodule(head.rpartition(".")[0])
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double().cpu()))
    device = next(model.parameters()).device
    try:
        parts = [model(part.to(device)).double().softmax(1).cpu() for part in torch.split(examples.x, batch)]
    finally:
        handle.remove()
    errors, labels = torch.cat(parts), examples.y.cpu()
    errors[torch.arange(len(labels)), labels] -= 1
    features = torch.cat([torch.cat(seen), torch.ones(len(labels), 1, dtype=torch.float64)], 1)
    return HeadProbe(features, errors, labels)


def class_mean_weights(labels: Tensor, classes: int) -> Tensor:
    """(classes, n) weights that average over the samples of each class: one over its size for its members, else 0."""
    member = torch.nn.functional.one_hot(labels, classes).T.double()
    return member / member.sum(1, keepdim=True)


def whitened_products(columns: Tensor, probe: HeadProbe, shares: Tensor, ridge: float) -> Tensor:
    """(m, m) the inner products x' C^-1 y of columns (m, outputs, features + 1), whitened by sample noise C.

    C is the covariance of one sample's gradient within its class, classes in proportion to `shares` (classes,), plus
    `ridge` times its mean variance. It has as many directions as there are samples, so it is inverted among those
    (Woodbury): the cost does not grow with the square of the layer's width.
    """
    classes = len(shares)
    member = class_mean_weights(probe.labels, classes)
    weight = (shares[:, None] * member).sum(0).clamp_min(0).sqrt()  # (n,)
    gram = (probe.errors @ probe.errors.T) * (probe.features @ probe.features.T)
    seen = torch.stack([((probe.errors @ column) * probe.features).sum(1) for column in columns], 1)  # (n, m)
    one_hot = (member > 0).double()
    gram = gram - one_hot.T @ (member @ gram)
    gram = gram - (gram @ member.T) @ one_hot
    seen = seen - one_hot.T @ (member @ seen)
    gram, seen = weight[:, None] * gram * weight, weight[:, None] * seen
    flat = columns.flatten(1)
    floor = ridge * float(gram.trace()) / flat.shape[1]
    if not floor > 0:
        return flat @ flat.T
    root, failed = torch.linalg.cholesky_ex(gram + floor * torch.eye(len(gram), dtype=gram.dtype))
    if bool(failed):  # samples that differ too much in size have a covariance that is singular in float64
        return flat @ flat.T
    part = torch.linalg.solve_triangular(root, seen, upper=False)
    whitened: Tensor = (flat @ flat.T - part.T @ part) / floor
    return whitened


def last_layer_matrix(tensors: Mapping[str, Tensor], weight: str, bias: str | None) -> Tensor:
    """(outputs, features + 1) the last layer's weight and, as last column, its bias; 0 where it has none."""
    rows = tensors[weight].double().cpu().flatten(1)
    column = torch.zeros(len(rows)) if bias is None else tensors[bias].double().cpu()
    return torch.cat([rows, column[:, None]], 1)
