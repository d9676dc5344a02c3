"""Factorised Bayes: label counts of a trained model, whose probabilities depend on what is in the image.

With y = -(B / S) * beta, exactly y_i = s_i - l_i: the samples of class i push by s_i = sum of (1 - p_i) over them,
which lies between 0 and their number, and all other samples pull by l_i = sum of p_i over them. From labelled auxiliary
samples come each class's hardness u_i = E[1 - p_i], how it spreads, and where the lost probability goes. Given the
leak, the classes are independent: s_i of k samples is close to a Gamma variable cut off at k, which no least-squares
fit respects. The leak depends on the counts, so that table and posterior take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.posterior import CountGrid, Posterior, posterior


@dataclass(frozen=True, eq=False)
class Hardness:
    """How a model treats samples of each class, per origin."""

    mean: Tensor  # (origins, classes) E[1 - p_own]
    doubt: Tensor  # (origins, classes) variance of that mean's estimate
    spread: Tensor  # (origins, classes) variance of 1 - p_own between samples
    flow: Tensor  # (origins, classes, classes) where the lost probability of a row's class goes; rows sum to 1
    samples: float  # auxiliary samples per class


def hardness(confusion: Tensor, second: Tensor, per_class: float) -> Hardness:
    """Shrinks what few auxiliary samples say towards the mean over classes (empirical Bayes).

    confusion (origins, classes, classes): mean probabilities (columns) on samples of each class (rows);
    second (origins, classes): mean of (1 - p_own)^2.
    """
    classes = confusion.shape[1]
    own = 1 - confusion.diagonal(dim1=1, dim2=2)
    pooled = own.mean(1, keepdim=True)
    within = (second - own.square()).clamp_min(0) * per_class / max(per_class - 1, 1)
    bernoulli = own * (1 - own)
    ratio = (within.sum(1, keepdim=True) / (bernoulli.sum(1, keepdim=True) + 1e-9)).clamp(0.05, 1.0)
    pooled_bernoulli = pooled * (1 - pooled)
    noise = ratio * (0.5 * bernoulli + 0.5 * pooled_bernoulli) / per_class
    between = (own.var(1, keepdim=True) - ratio * pooled_bernoulli / per_class).maximum(0.02 * pooled.square())
    share = between / (between + noise)
    mean = (share * own + (1 - share) * pooled).clamp(0.003, 0.995)
    doubt = between * noise / (between + noise) * (mean / pooled).clamp_max(1)
    off = confusion * (1 - torch.eye(classes, dtype=confusion.dtype))
    common = off.mean(1, keepdim=True)
    common = common / common.sum(2, keepdim=True).clamp_min(1e-12)
    flow = 0.7 * off + 0.3 * off.transpose(1, 2) + 0.1 * pooled[..., None] * common
    flow = flow * (1 - torch.eye(classes, dtype=confusion.dtype))
    flow = flow / flow.sum(2, keepdim=True).clamp_min(1e-12)
    return Hardness(mean, doubt, ratio * mean * (1 - mean), flow, per_class)


def bayes_counts(
    pushed: Tensor,
    model: Hardness,
    samples: int,
    first_guess: Tensor,
    witness: Callable[[Tensor], Tensor] | None = None,
) -> Posterior:
    """Posterior of the counts; pushed (origins, classes) is y; first_guess (origins, classes) starts the leak.

    witness: what else is known, the log-likelihood of counts (origins, classes, points).
    """
    counts = first_guess.double()
    found: Posterior | None = None
    likely: Tensor | None = None
    for turn in range(COUNTS.leak_turns):
        leak, variance = leakage(counts, model)
        grid = _grid(pushed, leak, variance, model, samples)
        table = push_table(pushed, leak, variance, model, grid)
        found = posterior(table if witness is None else table + witness(grid.counts), grid, samples, likely)
        counts = found.mean if turn == 0 else 0.5 * (counts + found.mean)
        likely = (found.weights > 0.01).any(0)
    assert found is not None
    return found


def leakage(counts: Tensor, model: Hardness) -> tuple[Tensor, Tensor]:
    """Mean and variance (origins, classes) of the probability that other classes' samples give each class."""
    square = model.spread + model.mean.square()
    mean = torch.einsum("oc,oci->oi", counts * model.mean, model.flow)
    variance = torch.einsum("oc,oci->oi", (counts + counts.square() / model.samples) * square, model.flow)
    return mean + 1e-3, variance.maximum((0.3 * mean).square()) + 1e-4


def push_table(pushed: Tensor, leak: Tensor, leak_variance: Tensor, model: Hardness, grid: CountGrid) -> Tensor:
    """Log-likelihood (origins, classes, points) of each count on the grid; all inputs (origins, classes)."""
    spread = (1 + leak_variance / leak.square()).log().sqrt()  # the leak as a log-normal variable
    middle = leak.log() - 0.5 * spread.square()
    quantiles = (torch.arange(COUNTS.leak_nodes, dtype=torch.float64) + 0.5) / COUNTS.leak_nodes
    normal = torch.special.ndtri(quantiles)
    leaks = (middle[..., None] + spread[..., None] * normal).exp()
    counts = grid.counts.clamp_min(1)
    mean = counts * model.mean[..., None]
    variance = counts * model.spread[..., None] + counts.square() * model.doubt[..., None] + COUNTS.jitter**2
    shape, scale = mean.square() / variance, variance / mean
    own = pushed[..., None] + leaks  # (origins, classes, nodes): what the class's own samples must have pushed
    log_own = own.clamp_min(1e-9).log()
    # log Gamma density at each node, summed over nodes: (origins, classes, points, nodes)
    density = (
        (shape - 1)[..., None] * log_own[..., None, :]
        - own.clamp_min(1e-9)[..., None, :] / scale[..., None]
        - (torch.lgamma(shape) + shape * scale.log())[..., None]
    )
    possible = (own[..., None, :] > 0) & (own[..., None, :] <= counts[..., None] + COUNTS.jitter)
    present = density.clamp(-700, 50).masked_fill(~possible, -700).logsumexp(3) - math.log(COUNTS.leak_nodes)
    absent = _absent(pushed, middle, spread, leak)
    return torch.where(grid.counts < 0.5, absent[..., None], present).clamp_min(-32.0)


def _absent(pushed: Tensor, middle: Tensor, spread: Tensor, leak: Tensor) -> Tensor:
    """Log-likelihood of no sample at all: the leak alone, known up to the jitter."""
    pulled = (-pushed).clamp_min(1e-6)
    log_normal = -0.5 * ((pulled.log() - middle) / spread).square() - pulled.log() - spread.log() - 0.9189385
    near_zero = -0.5 * ((-pushed - leak).clamp_max(0) / (0.5 * COUNTS.jitter)).square()
    return torch.where(pushed < 0, log_normal, near_zero).clamp(-27.0, 7.0)


def _grid(pushed: Tensor, leak: Tensor, leak_variance: Tensor, model: Hardness, samples: int) -> CountGrid:
    """All counts for small batches; else from the hard lower bound to where the likelihood has long vanished."""
    if samples <= 256:
        return CountGrid.around(torch.zeros_like(pushed), torch.full_like(pushed, samples), samples, samples + 1)
    reach = (pushed + leak + 4 * leak_variance.sqrt()).clamp_min(0)
    relative = (model.doubt.sqrt() / model.mean).clamp_max(1.0)
    high = (reach + 5) / model.mean * (1 + 3 * relative) + 10 * (reach + 1).sqrt()
    return CountGrid.around(pushed.clamp_min(0), high, samples)
