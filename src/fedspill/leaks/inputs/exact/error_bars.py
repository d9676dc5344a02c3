"""How far off samples may be, by what they leave unexplained: a certificate where an update is read as a whole.

Samples that explain an update need not be right. One that the network knows by heart sends back next to nothing,
whatever it is, and of two that send back nearly the same only the mean is told. How much the gradient changes when
samples are moved says both: what is left unexplained, spread over all values of the gradient, moves a sample by its
standard error. Gradients of the layers from the first linear one on are compared, at the weights that the sample was
used at, and samples are moved within their span, which is where gradients tell them apart least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.leading_layers import module_chain
from fedspill.leaks.inputs.exact.slopes import slopes
from fedspill.leaks.inputs.search.search import one_hot

MOST_OFF = 0.01  # standard error of a sample, relative to its norm, from which on nobody vouches for it: 40 dB and less
BUCKETS = 16  # sums of gradient values for each unknown, which hold the changes as well as all values do
INDEPENDENT = 1e-14  # eigenvalue, relative to the largest, from which on nothing tells a direction
NO_PART = 1e-12  # squared share of a value in such a direction that is but the rounding of eigenvectors


@dataclass(frozen=True, eq=False)
class UsedAt:
    """What the first linear layer was fed (k, f), labels (k,), and the network at the weights that these met."""

    model: nn.Module
    first: str  # name of the first linear layer
    fed: Tensor
    labels: Tensor
    share: float  # what the gradient of one of them counts in what was sent


def error_bars(used: Sequence[UsedAt], unexplained: float, rng: torch.Generator) -> Tensor:
    """(k,) the standard error of each sample, relative to its norm, where `unexplained` is the norm of what is left."""
    fed = torch.cat([step.fed for step in used])
    basis = torch.linalg.qr(fed.T)[0]  # (f, k)
    unknowns, values, blocks = basis.shape[1], 0, list[Tensor]()
    signs = buckets = torch.zeros(0)
    for step in used:
        for one, label in zip(step.fed, step.labels, strict=True):
            block = step.share * _change(step, one, label, basis)
            if not blocks:
                values = len(block)
                buckets = torch.randint(BUCKETS * unknowns * len(fed), (values,), generator=rng)
                signs = 2.0 * torch.randint(2, (values, 1), generator=rng, dtype=torch.float64) - 1
            # Summed with random signs, all values of the gradient take no more room than a few for each unknown.
            summed = block.new_zeros(BUCKETS * unknowns * len(fed), unknowns)
            blocks.append(summed.index_add_(0, buckets, signs * block))
    change = torch.cat(blocks, 1)
    sizes, directions = torch.linalg.eigh(change.T @ change)
    told, part = sizes > INDEPENDENT * sizes[-1], directions.square()
    spread = torch.where(told, part / sizes.clamp_min(1e-300), torch.where(part > NO_PART, torch.inf, 0.0)).sum(1)
    moved = spread.reshape(len(fed), unknowns).sum(1).sqrt() * (unexplained / math.sqrt(max(values, 1)))
    relative: Tensor = moved / fed.norm(dim=1).clamp_min(1e-300)
    return relative


def _change(step: UsedAt, fed: Tensor, label: Tensor, basis: Tensor) -> Tensor:
    """(values, r) how the gradient of one sample changes when what was fed moves along the columns of `basis`."""
    chain = module_chain(step.model)
    start = [name for name, _ in chain].index(step.first)
    upper = nn.Sequential(*(module for _, module in chain[start:]))
    weights = [parameter for parameter in upper.parameters() if parameter.requires_grad]

    def gradient(q: Tensor) -> Tensor:
        logits = upper((fed + basis @ q)[None])
        if logits.shape[1] == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], label[None].to(logits))
        else:
            loss = nn.functional.cross_entropy(logits, one_hot(label[None], logits.shape[1]).to(logits))
        found = torch.autograd.grad(loss, weights, create_graph=True)
        # Of the first layer's gradient only what it holds along the samples is compared: all of it lies there.
        first = found[0] @ basis if weights[0] is step.model.get_submodule(step.first).weight else found[0]
        return torch.cat([first.flatten(), *(part.flatten() for part in found[1:])])

    return slopes(gradient, torch.zeros(basis.shape[1], dtype=torch.float64))
