"""Features by ridge regression from samples whose features and embeddings are both known: nothing of the tower is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import FedspillError, NotApplicable
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.features.leak import FEATURES
from fedspill.leaks.features.seen.answers import columns_of, read_embeddings
from fedspill.models.vertical import vertical_net
from fedspill.threat import needs
from fedspill.trace import View

PENALTIES = tuple(10.0**power for power in range(-2, 6))  # from none to next to nothing but the mean


@final
@dataclass(frozen=True)
class RidgePairs(Attack):
    """Learns the way back from embeddings to features on known pairs, as a linear map with a penalty.

    The penalty is that under which each pair is told best from the others. What it gets rises with the pairs; a tower
    that throws features away gives nothing of them back.
    """

    name: ClassVar[str] = "ridge-pairs"
    title: ClassVar[str] = "Features by regression from known pairs"
    paper: ClassVar[str] = "fedspill"
    needs = needs(sees=["embedding", "batch", "prediction"], knows=["architecture", "paired_aux"])
    leak = FEATURES

    penalty: float = 0.0  # on standardised embeddings; 0: chosen among PENALTIES

    def run(self, view: View, rng: torch.Generator) -> FeatureRows:
        asked = read_embeddings(view)
        pairs = view.knows("paired_aux")
        try:
            columns = columns_of(vertical_net(view.knows("architecture")()))
        except FedspillError as error:
            raise NotApplicable(str(error)) from None
        there = torch.isin(pairs.indices, asked.indices)
        if int(there.sum()) < 2 or pairs.values.shape[1:] != (len(columns),):
            raise NotApplicable("No two samples are known whose embeddings were seen.")
        where = {index: place for place, index in enumerate(asked.indices.tolist())}
        places = torch.tensor([where[index] for index in pairs.indices[there].tolist()])
        known, features = asked.values[places], pairs.values[there].double()
        rows = ridge(known, features, asked.values, self.penalty or best_penalty(known, features))
        certified = torch.zeros(len(rows), dtype=torch.bool)
        return asked.guess(rows, certified, columns, pairs.indices, f"from {len(places)} pairs")


def best_penalty(known: Tensor, features: Tensor) -> float:
    """The penalty that leaves least of features (k, features) when each pair is left out in turn, in closed form."""
    left, values, _ = torch.linalg.svd((known - known.mean(0)) / known.std(0).clamp_min(1e-6), full_matrices=False)
    centred = features - features.mean(0)
    told = left.T @ centred

    def missed(penalty: float) -> float:
        kept = values.square() / (values.square() + penalty)
        own = 1 / len(known) + (left.square() * kept).sum(1, keepdim=True)  # how far a pair tells itself
        return float(((centred - left @ (kept[:, None] * told)) / (1 - own).clamp_min(1e-6)).square().sum())

    return min(PENALTIES, key=missed)


def ridge(known: Tensor, features: Tensor, every: Tensor, penalty: float) -> Tensor:
    """(n, features) for every (n, width), from known (k, width) beside features (k, features)."""
    mean, spread = known.mean(0), known.std(0).clamp_min(1e-6)
    inside, outside = (known - mean) / spread, (every - mean) / spread
    centre = features.mean(0)
    gram = inside.T @ inside + penalty * torch.eye(inside.shape[1], dtype=inside.dtype)
    found: Tensor = outside @ torch.linalg.solve(gram, inside.T @ (features - centre)) + centre
    return found
