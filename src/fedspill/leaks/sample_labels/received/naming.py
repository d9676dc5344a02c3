"""Which cluster is which class, by known labels and by how common the classes are; and how far two readings agree."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspill.leaks.sample_labels.received.sample_rounds import KnownLabels

SHARES_COUNT = 50  # samples that the shares of clusters count as: they are near to those of the classes, and no more
_DECIDES = 1e6  # more than shares can weigh


def named(scores: Tensor, known: KnownLabels, prior: Tensor | None) -> Tensor:
    """Scores (samples, classes) with columns in the order of the classes: the assignment that fits best.

    Where all known labels fit one assignment, they decide, and how common classes are only among clusters that no label
    tells apart. Where they contradict each other, labels were redrawn or gradients noisy: then a label counts by how
    often known labels agree at all, and how common the classes are counts as well.
    """
    classes, said = scores.shape[1], scores.argmax(1)
    agreed = torch.zeros(classes, classes, dtype=torch.float64)
    agreed.index_put_((said[known.samples], known.labels), torch.ones(len(known.labels)).double(), accumulate=True)
    wrong = len(known.labels) - float(agreed[linear_sum_assignment(-agreed.numpy())].sum())
    unlikely = (wrong + 1) / (len(known.labels) + 2)
    odds = max(math.log((1 - unlikely) * (classes - 1) / unlikely), 1e-6)
    fit = agreed * (odds if wrong else _DECIDES)
    if prior is not None and prior.shape == (classes,):
        share = torch.bincount(said, minlength=classes).double() / max(len(said), 1)
        fit += SHARES_COUNT * share[:, None] * prior[None].double().clamp_min(1e-6).log()
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
