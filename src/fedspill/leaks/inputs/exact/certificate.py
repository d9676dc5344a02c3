"""Labels of recovered samples, and a certificate for each: what they would send is what was seen. No truth is used.

The root condition knows nothing of labels, loss or upper layers. So a sample is checked against them: with some label,
the network must send back to the first layer just the delta1 that was peeled off for it. A false root does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.leading_layers import Pair, chain_of
from fedspill.leaks.inputs.search.candidate_gradients import Gradients

SHORTLIST = 4  # labels that are tried before all are
FITS = 0.02  # distance at which a label of the shortlist needs no rival


@dataclass(frozen=True, eq=False)
class Certificate:
    """For each sample its likeliest label, and how far its delta1 is from what the network sends back for it."""

    labels: Tensor  # (k,) int64
    error: Tensor  # (k,) distance of both as unit vectors: 0 is a proof, 1 is little in common
    share: Tensor  # (k,) size of delta1 over what the network sends back for one sample: 1/B, or more for copies


def certify(model: nn.Module, first: str, z: Tensor, delta: Tensor) -> Certificate:
    """For samples with first-layer values z (k, m) and peeled delta (k, m); `first` names the layer of `model`."""
    labels, sent = _nearest(_above(model, first), z, delta)
    share = delta.norm(dim=1) / sent.norm(dim=1).clamp_min(1e-300)
    return Certificate(labels, _apart(sent, delta), share)


def is_scale_free(pair: Pair) -> bool:
    """Whether a sample's scale rests on the size of the gradient alone, which clipping changes: then nobody can vouch.

    So it is without a first bias where what follows keeps factors (rectifiers) or drops them (layer norm).
    """
    probe = torch.linspace(-3, 3, len(pair.first.weight), dtype=torch.float64)[None]
    twice, once = pair.between.value(2 * probe), pair.between.value(probe)
    keeps, drops = torch.allclose(twice, 2 * once), torch.allclose(twice, once, rtol=1e-3, atol=1e-4)
    return pair.first.bias is None and bool(keeps or drops)


def scales_without_bias(model: nn.Module, pair: Pair, x: Tensor, delta: Tensor, batch: int) -> Tensor:
    """(k,) factors for samples x (k, d) that are known as rays only, so that factor * x and delta / factor fit.

    Without a first bias a rectified sample may be scaled if its delta is scaled back, and an odd activation cannot tell
    a sample from its negative. What the network sends back decides: its size, for a mean over `batch` samples.
    """
    upper = _above(model, pair.first.weight_name.rpartition(".")[0])
    factors = torch.ones(len(x), dtype=x.dtype)
    if pair.first.bias is not None:
        return factors
    probe = torch.linspace(-3, 3, len(pair.first.weight), dtype=x.dtype)[None]
    homogeneous = bool(torch.allclose(pair.between.value(2 * probe), 2 * pair.between.value(probe)))
    odd = bool(torch.allclose(pair.between.value(-probe), -pair.between.value(probe)))
    best = torch.full((len(x),), torch.inf, dtype=x.dtype)
    for sign in (1.0, -1.0) if odd else (1.0,):
        factor = sign * torch.ones(len(x), 1, dtype=x.dtype)
        for _ in range(25 if homogeneous else 1):
            _, sent = _nearest(upper, (x * factor) @ pair.first.weight.T, delta / factor)
            if homogeneous:
                factor = (
                    sign * batch * delta.norm(dim=1, keepdim=True) / sent.norm(dim=1, keepdim=True).clamp_min(1e-300)
                )
        error = _apart(sent, delta / factor)
        factors = torch.where(error < best, factor[:, 0], factors)
        best = torch.minimum(error, best)
    return factors


def _above(model: nn.Module, first: str) -> nn.Sequential:
    """What the network does with the values of its layer `first`."""
    chain = chain_of(model)
    after = [name for name, _ in chain].index(first) + 1
    return nn.Sequential(*(module for _, module in chain[after:]))


def _nearest(upper: nn.Module, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """(k,) labels for which samples with first-layer `values` (k, m) send back what is nearest in direction to `seen`
    (k, m), and that (k, m).

    One push of `seen` ranks all labels by inner products; what is sent back is computed for the first few of them, and
    for all only where none of those fits.
    """
    logits, pushed = _pushed(upper, values, seen)
    wrong = _wrong(logits)
    likely = ((wrong * pushed[:, None]).sum(2) / wrong.norm(dim=2).clamp_min(1e-300)).argsort(1, descending=True)
    labels, nearest = _best_of(upper, values, seen, wrong, likely[:, :SHORTLIST])
    for index in (_apart(nearest, seen) > FITS).nonzero().flatten().tolist():
        one = slice(index, index + 1)  # all labels of all samples might not fit into memory
        labels[one], nearest[one] = _best_of(upper, values[one], seen[one], wrong[one], likely[one])
    return labels, nearest


def _best_of(upper: nn.Module, values: Tensor, seen: Tensor, wrong: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The best of some `labels` (k, few) for each sample, and what it sends back."""
    few = labels.shape[1]
    chosen = wrong.take_along_dim(labels[:, :, None], 1).flatten(0, 1)
    with torch.enable_grad():
        start = values.detach().repeat_interleave(few, 0).requires_grad_()
        (sent,) = torch.autograd.grad((upper(start.clone()) * chosen).sum(), [start])
    sent = sent.reshape(len(values), few, -1)
    best = ((sent * seen[:, None]).sum(2) / sent.norm(dim=2).clamp_min(1e-300)).argmax(1)
    rows = torch.arange(len(best))
    return labels[rows, best], sent[rows, best]


def _pushed(upper: nn.Module, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """(k, logits) the logits, and the Jacobian times `seen`: the pull is linear in what it pulls, so it has a slope."""
    with torch.enable_grad():
        start = values.detach().clone().requires_grad_()
        logits = upper(start.clone())
        dual = torch.zeros_like(logits, requires_grad=True)
        (pull,) = torch.autograd.grad((logits * dual).sum(), [start], create_graph=True)
        (pushed,) = torch.autograd.grad((pull * seen).sum(), [dual])
    return logits.detach(), pushed


def _wrong(logits: Tensor) -> Tensor:
    """(k, labels, logits) the derivative of the loss by the logits (k, logits), for every label; one logit: two."""
    if logits.shape[1] == 1:
        return torch.sigmoid(logits)[:, :, None] - torch.tensor([[0.0], [1.0]]).to(logits)
    return logits.softmax(1)[:, None] - torch.eye(logits.shape[1]).to(logits)


def _apart(sent: Tensor, seen: Tensor) -> Tensor:
    """(k,) distance of unit vectors: more digits than their cosine has near 1."""
    return (_unit(sent) - _unit(seen)).square().sum(1).sqrt()


def _unit(vectors: Tensor) -> Tensor:
    unit: Tensor = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return unit


def copies(certificate: Certificate, samples: int) -> Tensor:
    """(k,) how often each sample was in the batch: a sample that is there twice sends twice as much.

    Ones where that does not add up to `samples`.
    """
    times = (certificate.share / certificate.share.median()).round().clamp_min(1).long()
    return times if int(times.sum()) == samples else torch.ones_like(times)


def mismatch_up_to_scale(
    gradients: Gradients, observed: Sequence[Tensor], x: Tensor, targets: Tensor
) -> tuple[float, float]:
    """The share of the observed gradient that a batch x (B, *shape) leaves unexplained, and the scale it fits best.

    A scale below 1 is what clipping does; the mismatch is then taken after it.
    """
    with torch.enable_grad():
        found = [g[0].detach().double() for g in gradients(x[None], targets[None])]
    inner = sum(float((g * seen).sum()) for g, seen in zip(found, observed, strict=True))
    own = sum(float(g.square().sum()) for g in found)
    scale = inner / own if own > 0 else 0.0
    missed = sum(float((scale * g - seen).square().sum()) for g, seen in zip(found, observed, strict=True))
    whole = sum(float(seen.square().sum()) for seen in observed)
    return (missed / whole) ** 0.5 if whole > 0 else float("inf"), scale
