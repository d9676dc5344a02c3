"""What can be returned for inputs without any access: a grey image, the mean of the class, a random other sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.leaks.inputs.scoring.similarity import Range
from fedspill.trace import Origin, Truth

ENOUGH = 2_000  # samples that class means and other samples are taken from


def baselines(of: Sequence[Origin], real: Sequence[Tensor], truth: Truth) -> dict[str, list[Tensor]]:
    """What can be returned without access, for each origin as many samples as it has."""
    span = Range.of(list(real))
    result = {"grey": [torch.full_like(own, (span.low + span.high) / 2) for own in real]}
    pool = _some_of(truth.clients) if truth.clients else None
    every = torch.cat(list(real)) if pool is None else pool.x
    rng = torch.Generator().manual_seed(0)
    if len(every) > 1:
        result["random"] = [_others(own, every, rng) for own in real]
    if pool is not None and all(truth.has(origin, "input_labels") for origin in of):
        labels = [truth.get(origin, "input_labels") for origin in of]
        result["class mean"] = [_class_means(own, y, pool) for own, y in zip(real, labels, strict=True)]
    return result


def _some_of(clients: Sequence[Examples]) -> Examples:
    """All samples of the clients, or enough of them to know means by."""
    pool = Examples.join(list(clients)).to("cpu")
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))
    return pool.take(order[:ENOUGH])


def _not_in(own: Tensor, every: Tensor) -> Tensor:
    """(len(every),) which samples are none of the origin's own."""
    return ~(torch.cdist(every.flatten(1).double(), own.flatten(1).double()) < 1e-6).any(1)


def _others(own: Tensor, every: Tensor, rng: torch.Generator) -> Tensor:
    """(n, *shape) random samples of `every` other than the origin's own; their mean where there are none."""
    free = every[_not_in(own, every)]
    if not len(free):
        return every.mean(0, keepdim=True).expand_as(own)
    return free[torch.randint(len(free), (len(own),), generator=rng)]


def _class_means(own: Tensor, labels: Tensor, pool: Examples) -> Tensor:
    """(n, *shape) the mean of all samples of the class but the origin's own; grey if there are no others."""
    free = _not_in(own, pool.x)
    means = []
    for label in labels.tolist():
        others = pool.x[free & (pool.y == label)]
        means.append(others.mean(0) if len(others) else torch.full_like(own[0], 0.5))
    return torch.stack(means)
