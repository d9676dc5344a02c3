"""Equality solving: features behind a logistic regression from the probabilities it gives (Luo et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.features.leak import FEATURES
from fedspill.leaks.features.seen.answers import VICTIM, columns_of, joint_model, read_predictions, unknown_parties
from fedspill.models.vertical import VerticalNet
from fedspill.threat import needs
from fedspill.trace import View

LARGEST = 1e30  # of a value that is solved for: what is larger comes of weights that are zero but for rounding

# Of the control: four in the middle of a digit are unknown, fewer than the nine equations of ten classes.
PIXELS = [26, 27, 28, 35]
OTHER_PIXELS = [pixel for pixel in range(64) if pixel not in PIXELS]


@final
@dataclass(frozen=True)
class EqualitySolving(Attack):
    """The differences of the logarithms of the probabilities are linear in the unknown features: solves for these.

    As published, by the pseudo-inverse: exact with up to classes - 1 unknown features, the shortest solution with more.
    For federations whose joint model is linear, and whose embeddings nobody sees.
    """

    name: ClassVar[str] = "equality-solving"
    title: ClassVar[str] = "Features by solving for probabilities"
    paper: ClassVar[str] = (
        "Luo et al. 2021, Feature Inference Attack on Model Predictions in Vertical Federated Learning"
    )
    needs = needs(sees=["prediction", "batch", "model"], knows=["architecture", "active_features"])
    leak = FEATURES
    control: ClassVar[Mapping[str, Any]] = {
        **FEATURES.control,
        "data": "digits",
        "model": {"name": "vertical-mlp", "widths": [10], "top": "sum", "columns": [PIXELS, OTHER_PIXELS]},
        "federation": {**FEATURES.control["federation"], "secure_sum": True},
    }

    def run(self, view: View, rng: torch.Generator) -> FeatureRows:
        asked, net = read_predictions(view), joint_model(view)
        own = view.knows("active_features")
        parts = known_parts(net, own, asked.indices)
        weight, constant = linear_logits(net, parts)
        logs = asked.values.clamp_min(1e-300).log()
        if logs.shape[1] != weight.shape[0]:
            raise NotApplicable("The probabilities are not of as many classes as the model has.")
        steps = weight[1:] - weight[:-1]
        target = (logs - constant)[:, 1:] - (logs - constant)[:, :-1]
        unknown = target @ torch.linalg.pinv(steps).T
        rows = unknown[:, : len(columns_of(net))]  # those of party 0 come first
        if not bool((rows.abs() < LARGEST).all()):
            raise NotApplicable("The probabilities do not depend on the unknown features.")
        return asked.guess(rows, torch.zeros(len(rows), dtype=torch.bool), columns_of(net))


def known_parts(net: VerticalNet, own: Tensor, indices: Tensor) -> list[Tensor]:
    """Every party's part of the samples: the active party's own where it has one, zeros where it is unknown."""
    parts = [torch.zeros(len(indices), *shape, dtype=torch.float64) for shape in net.part_shapes]
    if net.parties > len(unknown_parties(net)):
        if own.ndim != 2 or int(indices.max()) >= len(own) or own.shape[1] != parts[-1].flatten(1).shape[1]:
            raise NotApplicable("The active party's own features are not those of the samples.")
        parts[-1] = own[indices].double().reshape(parts[-1].shape)
    return parts


def linear_logits(net: VerticalNet, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Weights (classes, unknown) of all unknown features in a row, and constants (samples, classes)."""
    if any(not isinstance(layer, nn.Linear | nn.Flatten | nn.Identity | nn.Sequential) for layer in _leaves(net)):
        raise NotApplicable("The joint model is not linear: there is no equation to solve.")
    net = net.double()

    def logits(these: list[Tensor]) -> Tensor:
        return net.top([tower(part) for tower, part in zip(net.towers, these, strict=True)])

    constant = logits(parts)
    columns = []
    for party in unknown_parties(net):
        size = parts[party][:1].numel()
        probes = [torch.zeros(size + 1, *shape, dtype=torch.float64) for shape in net.part_shapes]
        probes[party][1:] = torch.eye(size, dtype=torch.float64).reshape(size, *net.part_shapes[party])
        said = logits(probes)
        columns.append((said[1:] - said[0]).T)
    assert VICTIM == 0
    return torch.cat(columns, 1), constant


def _leaves(net: VerticalNet) -> list[nn.Module]:
    parts = [*net.towers, net.neck, net.head]
    return [layer for part in parts for layer in part.modules() if not list(layer.children())]
