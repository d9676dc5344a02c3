"""Per-class mean gradients of the last layer on auxiliary data, averaged along the path from model before to after.

With features h, softmax p and one-hot e the gradient of one sample is (p - e) [h; 1]', and a local training of T plain
SGD steps moves the last layer by minus lr times the sum of its batch gradients. An adversary that has both models
can average the class gradients along the segment between the two, so that, for class shares r,

    -change / (lr T)  =  sum_c r_c G_c + noise,     G_c = sum_k w_k g_c(theta_0 + s_k (theta_T - theta_0)),

which is linear in r. Decaf, quantity and confidence estimates are linear solves on this one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable

# Places on the segment and their weights: the start alone, the trapezoid, Gauss and Legendre's three points, Boole's
# five. The last two are exact for polynomials of degree five, and three points are three fifths of the work.
_GAUSS = 0.15**0.5
QUADRATURE: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    1: ((0.0,), (1.0,)),
    2: ((0.0, 1.0), (1 / 2, 1 / 2)),
    3: ((0.5 - _GAUSS, 0.5, 0.5 + _GAUSS), (5 / 18, 8 / 18, 5 / 18)),
    5: ((0.0, 0.25, 0.5, 0.75, 1.0), (7 / 90, 32 / 90, 12 / 90, 32 / 90, 7 / 90)),
}


@dataclass(frozen=True, eq=False)
class HeadProbe:
    """Inputs and errors of the last layer on labelled samples, at one point of the path."""

    features: Tensor  # (n, features + 1), the last column 1 for the bias, or 0 where the layer has none
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
    """What the last layer sees at some points of the segment; class gradients are averages over these by weight."""

    classes: int
    probes: tuple[HeadProbe, ...]
    weights: tuple[float, ...]  # of the probes, adding up to 1

    @property
    def middle(self) -> HeadProbe:
        """The probe half-way, which tells how single samples scatter."""
        return self.probes[len(self.probes) // 2]

    @property
    def least_feature(self) -> float:
        """The smallest last-layer input seen: below zero the sign theorem does not hold."""
        return min(float(probe.features.min()) for probe in self.probes)

    @property
    def gradients(self) -> Tensor:
        """(classes, outputs, features + 1) float64, averaged along the segment."""
        return self._averaged(lambda probe: probe.class_gradients(self.classes))

    @property
    def bias_gradients(self) -> Tensor:
        """(classes, outputs) the last column of `gradients`."""
        return self._averaged(lambda probe: class_mean_weights(probe.labels, self.classes) @ probe.errors)

    @property
    def bias_power(self) -> Tensor:
        """(classes, outputs) mean square of a sample's bias gradient, averaged along the segment."""
        return self._averaged(lambda probe: class_mean_weights(probe.labels, self.classes) @ probe.errors**2)

    def is_finite(self) -> bool:
        return all(bool(p.features.isfinite().all()) and bool(p.errors.isfinite().all()) for p in self.probes)

    def _averaged(self, of: Callable[[HeadProbe], Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for weight, probe in zip(self.weights, self.probes, strict=True):
            total = total + weight * of(probe)
        return total


@torch.no_grad()
def path_bases(
    model: nn.Module,
    before: Mapping[str, Tensor],
    change: Mapping[str, Tensor],
    head: str,
    auxiliary: Examples,
    classes: int,
    *,
    points: int = 3,
) -> PathBases:
    """Bases along `before` to `before + change`, by a rule of `points` points; `head` names the last layer's weight.

    The parameters of `model` are overwritten. It is left in evaluation mode, except for its batch normalisation.
    """
    positions, weights = QUADRATURE[points]
    probes = []
    for position in positions:
        load_between(model, before, change, position)
        probes.append(probe_head(model, head, auxiliary))
    return PathBases(classes, tuple(probes), weights)


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
    constant = torch.full((len(labels), 1), float(layer.bias is not None), dtype=torch.float64)
    features = torch.cat([torch.cat(seen), constant], 1)
    return HeadProbe(features, errors, labels)


def class_mean_weights(labels: Tensor, classes: int) -> Tensor:
    """(classes, n) weights that average over the samples of each class: one over its size for its members, else 0."""
    member = torch.nn.functional.one_hot(labels, classes).T.double()
    return member / member.sum(1, keepdim=True)


def last_layer_matrix(tensors: Mapping[str, Tensor], weight: str, bias: str | None) -> Tensor:
    """(outputs, features + 1) the last layer's weight and, as last column, its bias; 0 where it has none."""
    rows = tensors[weight].double().cpu().flatten(1)
    column = torch.zeros(len(rows)) if bias is None else tensors[bias].double().cpu()
    return torch.cat([rows, column[:, None]], 1)
