"""Every class is dealt out in Dirichlet shares: label skew with one knob (Yurochkin et al. 2019, Hsu et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least, class_counts, draw, numpy_generator

TRIES = 1000


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class's shares are one draw of Dirichlet(alpha, ..., alpha): small alpha, few clients hold a class.

    All examples are used, none twice. The shares are drawn anew until every client has `min_examples`.
    """

    name = "dirichlet"
    title = "Label skew by Dirichlet shares of each class"
    paper = "Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019"

    alpha: float = 0.5
    min_examples: int = 1

    def __post_init__(self) -> None:
        at_least(self.name, 1, min_examples=self.min_examples)
        if not 0 < self.alpha < math.inf:
            raise UsageError(f"Partition {self.name!r}: alpha must be positive and finite, got {self.alpha}.")

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        available, numbers = class_counts(examples), numpy_generator(rng)
        feasible = clients * self.min_examples <= len(examples)
        for _ in range(TRIES if feasible else 0):
            counts = dirichlet_counts(available, clients, self.alpha, numbers)
            if counts.sum(1).min() >= self.min_examples:
                return draw(examples, counts, rng)
        tried = f"alpha {self.alpha:g} gave that in none of {TRIES} draws, with" if feasible else "but there are"
        raise NotEnoughExamples(
            f"Partition {self.name!r} lacks examples. All classes: wanted at least {self.min_examples} for each of "
            f"{clients} clients, {tried} {len(examples)} available.",
            remedy="Use fewer clients, a larger alpha, a smaller min_examples, or more data.",
        )


def dirichlet_counts(available: Tensor, clients: int, alpha: float, numbers: np.random.Generator) -> Tensor:
    """(clients, classes) Each class's available (classes,) examples cut at the cumulated shares; columns sum to it."""
    shares = torch.from_numpy(numbers.dirichlet(np.full(clients, alpha), size=len(available)))
    cuts = (shares.cumsum(1) * available[:, None]).round().long().minimum(available[:, None])
    cuts[:, -1] = available
    return cuts.diff(dim=1, prepend=torch.zeros_like(cuts[:, :1])).T
