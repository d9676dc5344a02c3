"""The gradients that the known network gives for recovered features and assumed labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.first_layer import FirstLayer, with_gradients
from fedspill.leaks.inputs.vertical.server_observations import ServerObservations
from fedspill.models.vertical import VerticalNet

_SETTLED = 1e-6  # residual of Step II that float32 gradients leave
_LOOKS = 4
_TRUSTED = 0.5  # relative error of h beyond which a party has no say in a label


def predicted(net: VerticalNet, features: Sequence[Tensor], labels: Tensor) -> list[Tensor]:
    """The gradients v (n, d2) of each party for inputs (n, d1) of their first layers and labels (n,)."""
    with torch.enable_grad():
        firsts = [net.tower(party).first(h.float()).detach().requires_grad_(True) for party, h in enumerate(features)]
        loss = torch.nn.functional.cross_entropy(net.from_first(firsts), labels, reduction="sum")
        return [v.detach().double() for v in torch.autograd.grad(loss, firsts)]


def nearest_labels(net: VerticalNet, layers: Sequence[FirstLayer], classes: int) -> Tensor:
    """For each sample the class whose predicted gradients point as the recovered ones do, over all parties (n,)."""
    n = len(layers[0].h)
    trusted = [torch.where((layer.error < _TRUSTED)[:, None], layer.h, 0) for layer in layers]
    distances = []
    for label in range(classes):
        guessed = predicted(net, trusted, torch.full((n,), label, device=layers[0].h.device))
        distance = torch.zeros(n, dtype=torch.float64, device=guessed[0].device)
        for v, layer in zip(guessed, layers, strict=True):
            sizes = v.norm(dim=1) * layer.v.norm(dim=1)
            away = 1 - (v * layer.v).sum(1) / sizes.clamp_min(
                1e-300
            )  # compares directions, since parties may clip what they send
            distance += torch.where(
                layer.error < _TRUSTED, away.clamp_max(1), 0
            )  # at most 1, so that one bad party cannot outweigh the others
        distances.append(distance)
    return torch.stack(distances, 1).argmin(1)


def replace_doubtful_gradients(
    observed: ServerObservations, net: VerticalNet, layers: Sequence[FirstLayer]
) -> list[FirstLayer]:
    """The layers, with doubtful v replaced by what the network predicts where that lowers a party's residual.

    Samples whose v are parallel, or too weak to be seen, disturb the batches that they are in. The other samples and
    parties are enough to predict those v.
    """
    layers = list(layers)
    for _ in range(_LOOKS):
        improved = False
        labels = nearest_labels(net, layers, observed.classes)
        expected = predicted(net, [layer.h for layer in layers], labels)
        for party, layer in enumerate(layers):
            if layer.residual <= _SETTLED or not layer.route.endswith("spaces") or not bool(layer.doubtful.any()):
                continue
            v = torch.where(layer.doubtful[:, None], expected[party], layer.v)
            again = with_gradients(observed.uploads[party], observed, v, layer.doubtful, layer.route)
            if again.residual < 0.9 * layer.residual:
                layers[party], improved = again, True
        if not improved:
            break
    return layers
