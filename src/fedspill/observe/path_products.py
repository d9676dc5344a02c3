"""Inner products of path bases and of what a client sent, whitened by how samples of one class differ.

Whitened products are x' C^-1 y, where C is the covariance of one sample's gradient within its class, classes mixed by
some shares, plus a small multiple of the identity. All that depends on the model and the samples is computed once;
other shares only weigh it anew. Nothing is as wide as the layer squared: C has as many directions as samples lie beside
their class's mean, so it is inverted among those (Woodbury). With many classes the bases themselves are not formed
either: a sample's gradient is an outer product, and two of these meet in two short inner products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.observe.path_bases import HeadProbe, PathBases


@dataclass(frozen=True, eq=False)
class WhitenedProducts:
    """Of m columns, each as large as the last layer, and q contrasts between samples of one class."""

    plain: Tensor  # (m, m) inner products of the columns
    among: Tensor  # (q, q) of the contrasts
    seen: Tensor  # (q, m) of either
    label: Tensor  # (q,) the class of a contrast
    held: Tensor  # (classes,) samples of each class
    width: int  # numbers in a column

    def at(self, shares: Tensor, ridge: float) -> Tensor:
        """(m, m) whitened, classes in proportion to `shares` (classes,), plus `ridge` times the mean variance."""
        weight = (shares / self.held).clamp_min(0).sqrt()[self.label]
        gram, seen = weight[:, None] * self.among * weight, weight[:, None] * self.seen
        floor = ridge * float(gram.trace()) / self.width
        if not floor > 0:
            return self.plain
        gram.diagonal().add_(floor)
        root, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed):  # samples that differ too much in size have a covariance that is singular in float64
            return self.plain
        part = torch.linalg.solve_triangular(root, seen, upper=False)
        whitened: Tensor = (self.plain - part.T @ part) / floor
        return whitened


def path_products(bases: PathBases, sent: Tensor) -> WhitenedProducts:
    """Of the classes' bases and, last, of what was `sent` (outputs, features + 1)."""
    samples, (outputs, features) = len(bases.middle.labels), sent.shape
    pairs = len(bases.probes) * (len(bases.probes) + 1) // 2
    # Multiplications, of outer products with each other, and of bases with each other and with the samples.
    if pairs * samples**2 * (outputs + features) < bases.classes * (bases.classes + samples) * outputs * features:
        return products_by_samples(bases, sent)
    return products_of(torch.cat([bases.gradients, sent[None]]), bases.middle, bases.classes)


def whitened_products(columns: Tensor, probe: HeadProbe, shares: Tensor, ridge: float) -> Tensor:
    """(m, m) whitened inner products of columns (m, outputs, features + 1) for one mixture `shares` (classes,)."""
    return products_of(columns, probe, len(shares)).at(shares, ridge)


def products_of(columns: Tensor, probe: HeadProbe, classes: int) -> WhitenedProducts:
    """Of any columns (m, outputs, features + 1); `probe` has the samples that tell how gradients scatter."""
    beside = _Contrasts.of(probe.labels, classes)
    flat = columns.flatten(1)
    seen = torch.stack([_samples_with(probe, column) for column in columns], 1)  # (n, m)
    among = beside.of_both(_samples_among(probe, probe))
    return WhitenedProducts(flat @ flat.T, among, beside.of_rows(seen), beside.label, beside.held, flat.shape[1])


def products_by_samples(bases: PathBases, sent: Tensor) -> WhitenedProducts:
    """The same as `products_of` of the bases and what was sent, from outer products of single samples."""
    classes, middle = bases.classes, bases.middle
    beside = _Contrasts.of(middle.labels, classes)
    size = classes + 1
    plain, seen = (torch.zeros(rows, size, dtype=torch.float64) for rows in (size, len(middle.labels)))
    among = torch.zeros(0)
    each = list(zip(bases.weights, bases.probes, strict=True))
    for index, (weight, one) in enumerate(each):
        toward = _samples_with(one, sent)
        plain[:classes, classes] += weight * beside.means(toward[:, None])[:, 0]
        for other_weight, other in each[index:]:
            table = _samples_among(one, other)  # (samples of one, samples of the other)
            rows = beside.means(table)
            own = weight * other_weight * beside.means(rows.T.contiguous()).T
            plain[:classes, :classes] += own if other is one else own + own.T
            if one is middle:
                seen[:, :classes] += other_weight * beside.means(table.T.contiguous()).T
            elif other is middle:
                seen[:, :classes] += weight * rows.T
            if one is middle and other is middle:
                among, seen[:, classes] = beside.of_both(table), toward
    plain[classes, :classes] = plain[:classes, classes]
    plain[classes, classes] = sent.square().sum()
    return WhitenedProducts(plain, among, beside.of_rows(seen), beside.label, beside.held, sent.numel())


def _samples_among(one: HeadProbe, other: HeadProbe) -> Tensor:
    """(n, n') inner products of the samples' gradients, which are outer products of an error and the features."""
    if one is other:  # numpy knows that a matrix times its own transpose is symmetric, and computes half of it
        errors, features = one.errors.numpy(), one.features.numpy()
        return torch.from_numpy(errors @ errors.T).mul_(torch.from_numpy(features @ features.T))
    return (one.errors @ other.errors.T).mul_(one.features @ other.features.T)


def _samples_with(probe: HeadProbe, column: Tensor) -> Tensor:
    """(n,) inner products of the samples' gradients with a column (outputs, features + 1)."""
    return ((probe.errors @ column) * probe.features).sum(1)


@dataclass(frozen=True, eq=False)
class _Contrasts:
    """An orthonormal basis of what samples of one class have beside their mean: one direction fewer than samples.

    A reflection that maps the first sample of each class to the class's mean direction maps the others to such a basis.
    """

    labels: Tensor  # (n,)
    held: Tensor  # (classes,)
    mirror: Tensor  # (n,) the reflections' unit vectors, all classes' in one
    others: Tensor  # (q,) samples that are not the first of their class

    @staticmethod
    def of(labels: Tensor, classes: int) -> _Contrasts:
        held = torch.bincount(labels, minlength=classes)
        order = labels.argsort(stable=True)
        is_first = torch.zeros(len(labels), dtype=torch.bool)
        starts = held.cumsum(0) - held
        is_first[order[starts[held > 0]]] = True
        mirror = held.double().rsqrt()[labels] - is_first.double()
        length = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, mirror.square()).sqrt()
        alone = (held == 1)[labels]  # nothing lies beside the mean of one sample
        mirror = torch.where(alone, torch.zeros_like(mirror), mirror / length[labels].clamp_min(1e-300))
        return _Contrasts(labels, held, mirror, torch.nonzero(~is_first).flatten())

    @property
    def label(self) -> Tensor:
        return self.labels[self.others]

    def means(self, table: Tensor) -> Tensor:
        """(classes, m) of the rows of a table (n, m)."""
        total = torch.zeros(len(self.held), table.shape[1], dtype=table.dtype).index_add_(0, self.labels, table)
        return total / self.held[:, None]

    def of_rows(self, table: Tensor) -> Tensor:
        """(q, m) the contrasts of the rows of a table (n, m)."""
        along = torch.zeros(len(self.held), table.shape[1], dtype=table.dtype)
        along.index_add_(0, self.labels, self.mirror[:, None] * table)
        kept = self.others
        return table[kept] - 2 * self.mirror[kept][:, None] * along[self.labels[kept]]

    def of_both(self, table: Tensor) -> Tensor:
        """(q, q) the contrasts of the rows and columns of a symmetric table (n, n)."""
        return self.of_rows(self.of_rows(table).T.contiguous())
