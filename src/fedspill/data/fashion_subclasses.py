"""Fashion-MNIST cut into 100 classes: each of its ten is split into ten clusters of look-alike images (k-means)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedspill.data.fashion_mnist import CLASSES
from fedspill.data.idx import read_idx_dataset
from fedspill.dataset import Dataset, DataSource, Examples
from fedspill.errors import UsageError


@dataclass(frozen=True)
class FashionSubclasses(DataSource):
    """A real data set of many classes that trains in a minute: stands in for CIFAR-100 where that is only partly here.

    The clusters are found on the training images alone, always the same ones; a test image joins the nearest cluster
    of its own class.
    """

    name = "fashion-subclasses"
    title = "Fashion-MNIST in 100 sub-classes"
    paper = "after Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017"
    folder = "fashion_mnist"
    source = "github.com/zalandoresearch/fashion-mnist"

    per_class: int = 10
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.per_class < 1:
            raise UsageError(f"per_class must be at least 1, got {self.per_class}.")

    def read(self, folder: Path) -> Dataset:
        whole = read_idx_dataset(self, folder, CLASSES, self.normalize)
        train, test = whole.train.y.clone(), whole.test.y.clone()
        for label in range(len(CLASSES)):
            in_train, in_test = whole.train.y == label, whole.test.y == label
            centres = cluster_centres(whole.train.x[in_train].flatten(1), self.per_class)
            train[in_train] = label * self.per_class + nearest(whole.train.x[in_train].flatten(1), centres)
            test[in_test] = label * self.per_class + nearest(whole.test.x[in_test].flatten(1), centres)
        names = tuple(f"{name} {number}" for name in CLASSES for number in range(self.per_class))
        parts = Examples(whole.train.x, train), Examples(whole.test.x, test)
        return Dataset(self.name, names, *parts, note=f"{whole.note} Classes are clusters of the original ten.".strip())


def cluster_centres(points: Tensor, clusters: int, rounds: int = 15) -> Tensor:
    """Centres (clusters, d) of k-means on points (n, d), started from random points; an empty one stays put."""
    if len(points) < clusters:
        raise UsageError(f"{clusters} clusters were asked for, there are {len(points)} points.")
    rng = torch.Generator().manual_seed(0)
    centres = points[torch.randperm(len(points), generator=rng)[:clusters]].clone()
    for _ in range(rounds):
        member = nearest(points, centres)
        sizes = torch.bincount(member, minlength=clusters)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, member, points)
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
    return centres


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """(n,) the nearest of centres (k, d) to each of points (n, d)."""
    return (centres.square().sum(1)[None] - 2 * points @ centres.T).argmin(1)
