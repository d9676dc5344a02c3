"""Features by linear programs: one layer's embedding, its weights, and the features' ranges; with certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import nn

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.features.leak import FEATURES
from fedspill.leaks.features.seen.answers import VICTIM, columns_of, joint_model, read_embeddings
from fedspill.leaks.features.seen.one_layer import invert_layer
from fedspill.models.vertical import Tower
from fedspill.observe.known_defenses import noise_on_embeddings
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class LinearProgram(Attack):
    """Finds the row in the box that a tower of one layer maps to what was sent.

    A unit that is on is an equality, one that is off an inequality. A row is certified where the possible rows are
    one: by more agreeing equations than unknowns, or because linear programs in random directions find both ends in
    the same place. Without units enough, the row of least values is a guess. Deeper towers are out of its reach.
    """

    name: ClassVar[str] = "linear-program"
    title: ClassVar[str] = "Features by linear programs"
    paper: ClassVar[str] = "fedspill"
    needs = needs(sees=["embedding", "batch", "prediction", "model"], knows=["architecture", "feature_ranges"])
    leak = FEATURES

    most: int = 2000  # rows that are read; the rest is left out

    def run(self, view: View, rng: torch.Generator) -> FeatureRows:
        asked = read_embeddings(view)
        net = joint_model(view)
        tower = net.tower(VICTIM)
        relu = _is_relu(tower)
        if asked.values.shape[1] != tower.first.out_features:
            raise NotApplicable("The embeddings are not as wide as the tower's layer.")
        ranges = view.knows("feature_ranges").double()
        columns = columns_of(net)
        if ranges.shape != (2, len(columns)) or tower.first.in_features != len(columns):
            raise NotApplicable("The features' ranges are not those of the tower.")
        share = noise_on_embeddings(view)
        # What was sent has the noise in it: of its variance, 1 / (1 + share^2) is the embeddings' own.
        noise = share * float(asked.values.std()) / (1 + share**2) ** 0.5
        weight, bias = (t.detach().double().numpy() for t in (tower.first.weight, tower.first.bias))
        low, high = ranges.numpy()
        seed = int(torch.randint(1 << 30, (1,), generator=rng))
        wanted = min(len(asked.values), self.most)
        found = [
            invert_layer(weight, bias, output, low, high, relu=relu, noise=noise, seed=seed)
            for output in asked.values[:wanted].numpy()
        ]
        rows = torch.from_numpy(np.stack([one.row for one in found]))
        certain = torch.tensor([one.certain for one in found])
        return asked.first(wanted).guess(
            rows, certain, columns, None, f"{int(certain.sum())} of {wanted} rows certified"
        )


def _is_relu(tower: Tower) -> bool:
    """Whether the one layer of the tower ends in a ReLU; False if in nothing, and other towers are refused."""
    behind = [layer for layer in tower.back.modules() if not isinstance(layer, nn.Sequential | nn.Identity)]
    if not tower.reads_input or any(not isinstance(layer, nn.ReLU) for layer in behind):
        raise NotApplicable("The tower has more than one layer: linear programs read one.")
    return bool(behind)
