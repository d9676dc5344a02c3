"""What the known network would have told, had the recovered features and some labels been the real ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.first_layer import FirstLayer, with_gradients
from fedspill.leaks.inputs.vertical.server_observations import Observed
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
            away = 1 - (v * layer.v).sum(1) / sizes.clamp_min(1e-300)  # of directions: parties may clip what they send
            distance += torch.where(layer.error < _TRUSTED, away.clamp_max(1), 0)  # one bad party has one vote
        distances.append(distance)
    return torch.stack(distances, 1).argmin(1)


def settled(observed: Observed, net: VerticalNet, layers: Sequence[FirstLayer]) -> list[FirstLayer]:
    """A second look at parties whose system does not close: their doubtful v are replaced by what the network predicts.

    Samples whose v were parallel, or too weak to see, spoil the batches they are in. The other samples and parties
    tell enough to predict those v; kept is what lowers the residual.
    """
    layers = list(layers)
    for _ in range(_LOOKS):
        improved = False
        labels = nearest_labels(net, layers, observed.classes)
        told = predicted(net, [layer.h for layer in layers], labels)
        for party, layer in enumerate(layers):
            if layer.residual <= _SETTLED or not layer.route.endswith("spaces") or not bool(layer.doubtful.any()):
                continue
            v = torch.where(layer.doubtful[:, None], told[party], layer.v)
            again = with_gradients(observed.heard[party], observed, v, layer.doubtful, layer.route)
            if again.residual < 0.9 * layer.residual:
                layers[party], improved = again, True
        if not improved:
            break
    return layers
