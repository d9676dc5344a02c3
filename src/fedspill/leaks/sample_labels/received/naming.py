"""Which cluster is which class, by known labels and by how common the classes are; and how far two readings agree."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspill.leaks.sample_labels.received.sample_rounds import KnownLabels


def named(scores: Tensor, known: KnownLabels, prior: Tensor | None) -> Tensor:
    """Scores (samples, classes) with columns in the order of the classes: the assignment that fits best.

    A known label that agrees counts 1. How far the share of a cluster is from that of a class counts less than any
    label, so that it decides only among clusters that no known label tells apart.
    """
    classes, said = scores.shape[1], scores.argmax(1)
    fit = torch.zeros(classes, classes, dtype=torch.float64)
    fit.index_put_((said[known.samples], known.labels), torch.ones(len(known.labels), dtype=fit.dtype), accumulate=True)
    if prior is not None and prior.shape == (classes,):
        share = torch.bincount(said, minlength=classes).double() / max(len(said), 1)
        fit -= (share[:, None] - prior[None].double()).abs() / (2 * classes)
    clusters, labels = linear_sum_assignment(-fit.numpy())
    order = torch.empty(classes, dtype=torch.int64)
    order[torch.from_numpy(labels)] = torch.from_numpy(clusters)
    return scores[:, order]


def agreement(first: Tensor, second: Tensor) -> float:
    """Cohen's kappa of the labels that two tables of scores (samples, classes) say: 1 is the same, 0 is chance."""
    classes = first.shape[1]
    one, other = first.argmax(1), second.argmax(1)
    same = float((one == other).double().mean())
    shares = [torch.bincount(said, minlength=classes).double() / len(said) for said in (one, other)]
    chance = float((shares[0] * shares[1]).sum())
    return (same - chance) / (1 - chance) if chance < 1 else 0.0
