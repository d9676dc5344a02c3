"""The cone: where gradients of single samples lie, and how to find in which class's part of it each of them is.

Behind a linear head the gradient of a sample's embedding is W^T (p - e_y), p its predicted probabilities. p - e_y adds
up to zero and has one negative entry, at the label. So there is a matrix A of C rows, adding up to zero, that maps
every gradient to numbers of which only the label's is negative. The party does not know it, and takes the one that
fits: the least mean of all negative entries but the largest, minus lambda log det (A^T A) against collapse, plus the
cross-entropy of known labels. Behind hidden layers each sample has a matrix of its own, near to a common one as long
as the head is near to linear.
"""

from __future__ import annotations

import math
import warnings

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from fedspill.leaks.sample_labels.received.gradients import unit_rows

STEPS = 300
BARRIER = (0.1, 0.002)  # lambda from the first step to the last; measured (benchmarks/vertical.py labels)
RATE = 0.02
SHARPNESS = 4.0  # of the cross-entropy of known labels: logits are -4 r
_CORE = 8  # samples nearest to a centre that stand for its class where no label is known


def spanned(rows: Tensor, classes: int) -> Tensor:
    """Rows (n, d) at length 1, in their leading C - 1 directions, whitened, at length 1 again: (n, at most C - 1)."""
    unit = unit_rows(rows)
    values, vectors = torch.linalg.eigh(unit.T @ unit / max(len(unit), 1))
    keep = min(classes - 1, rows.shape[1])
    spread = values[-keep:].clamp_min(1e-12).sqrt()
    return unit_rows(unit @ vectors[:, -keep:] / spread)


def fit_cone(rows: Tensor, anchors: Tensor, labels: Tensor, classes: int, steps: int = STEPS) -> Tensor:
    """(n, classes) how far each sample lies in each class's part, the highest its label; rows (n, k) from `spanned`.

    anchors (m,) are samples whose labels (m,) are known; every class has one.
    """
    means = torch.stack([rows[anchors[labels == label]].mean(0) for label in range(classes)])
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    matrix = (-centred @ torch.linalg.pinv(means.T)).requires_grad_()
    optimizer = torch.optim.Adam([matrix], RATE)
    width = rows.shape[1]
    eye = 1e-9 * torch.eye(width, dtype=torch.float64)

    def normed() -> Tensor:
        free = matrix - matrix.mean(0)
        scaled: Tensor = free / free.norm().clamp_min(1e-12) * math.sqrt(classes)
        return scaled

    for step in range(steps):
        barrier = BARRIER[0] * (BARRIER[1] / BARRIER[0]) ** (step / steps)
        found = normed()
        parts = rows @ found.T
        negative = (-parts).clamp_min(0)
        loss = (negative.sum(1) - negative.max(1).values).mean()
        loss = loss - barrier * torch.logdet(found.T @ found / classes * width + eye) / 2 / width
        loss = loss + torch.nn.functional.cross_entropy(-SHARPNESS * parts[anchors], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return -rows @ normed().T


def cluster_cores(rows: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples (m,) that stand for the classes where no label is known, and the number (m,) of each one's cluster."""
    unit = unit_rows(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different rows than classes: then some class has no sample
        found = KMeans(classes, n_init=8, random_state=seed).fit(unit.numpy())
    cluster, centres = torch.from_numpy(found.labels_).long(), torch.from_numpy(found.cluster_centers_)
    distance = (unit - centres[cluster]).norm(dim=1)
    cores = []
    for label in range(classes):
        members = (cluster == label).nonzero().flatten()
        cores.append(members[distance[members].argsort()[:_CORE]])
    return torch.cat(cores), torch.cat([torch.full((len(core),), n) for n, core in enumerate(cores)])


def side_by_side(visits: Tensor, classes: int) -> Tensor:
    """(n, at most C - 1): what visits (visits, n, d) of the same samples have in common.

    Noise that is drawn anew for every visit averages out, as the leading directions of all visits beside each other are
    those that they share. Each visit counts in units of its own noise, the mean of all but its C - 1 largest variances.
    """
    parts = []
    for rows in visits:
        length = rows.norm(dim=1, keepdim=True)
        usual = length[length > 0].median() if bool((length > 0).any()) else torch.ones(())
        scaled = rows / (length + usual)
        values = torch.linalg.eigvalsh(scaled.T @ scaled / max(len(scaled), 1))
        floor = values[: 1 - classes].mean() if len(values) >= classes else values.mean()
        parts.append(scaled / torch.maximum(floor, 0.02 * values.mean()).clamp_min(1e-30).sqrt())
    beside = torch.cat(parts, 1)
    _, vectors = torch.linalg.eigh(beside.T @ beside)
    shared: Tensor = beside @ vectors[:, -min(classes - 1, beside.shape[1]) :]
    return shared
