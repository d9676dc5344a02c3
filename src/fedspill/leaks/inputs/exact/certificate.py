"""Labels of recovered samples, and a certificate for each: what they would send is what was seen. No truth is used.

The span condition (sample_roots.py) does not involve labels, loss or upper layers, so these serve as an independent
check: for some label the network must send back to the first layer the delta1 that was solved for with the sample. For
a false root it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.leading_layers import LayerPair, module_chain
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction

SHORTLIST = 4  # labels that are tried first; all are tried only where none of these fits
FITS = 0.02  # distance below which a label of the shortlist fits
# Of the share that a sample has to have. Of 1,526 samples that pointed where they should, on networks that knew half of
# their batch by heart, 22 were wrong; 1,442 had their share to this, and one of those was wrong, the mean of two.
WHOLE_SHARE = 0.01
SCALED_TOGETHER = 3  # samples that must have another share than 1/B alike, for the gradient to have been scaled
LIKE = 0.15  # relative distance of the same sample found twice: at 0.11 one had its share on such a network


@dataclass(frozen=True, eq=False)
class Certificate:
    """For each sample its most likely label, and how far its delta1 is from what the network sends back for it."""

    labels: Tensor  # (k,) int64
    error: Tensor  # (k,) distance of both as unit vectors, from 0 (the same direction) to 2
    share: Tensor  # (k,) size of delta1 over what the network sends back for one sample: 1/B, or more for copies


def certify(model: nn.Module, first: str, z: Tensor, delta: Tensor) -> Certificate:
    """For samples with first-layer values z (k, m) and solved deltas (k, m); `first` names the layer of `model`."""
    labels, sent = _nearest_labels(_layers_above(model, first), z, delta)
    share = delta.norm(dim=1) / sent.norm(dim=1).clamp_min(1e-300)
    return Certificate(labels, _unit_distance(sent, delta), share)


def is_scale_free(pair: LayerPair) -> bool:
    """Whether a sample's scale follows from the size of the gradient alone, so that clipping would change it.

    That is so without a first bias where the map behind the layer keeps a factor (rectifiers) or removes it (layer
    norm). Such samples are not certified.
    """
    probe = torch.linspace(-3, 3, len(pair.first.weight), dtype=torch.float64)[None]
    twice, once = pair.between.value(2 * probe), pair.between.value(probe)
    keeps, drops = torch.allclose(twice, 2 * once), torch.allclose(twice, once, rtol=1e-3, atol=1e-4)
    return pair.first.bias is None and bool(keeps or drops)


def scales_without_bias(model: nn.Module, pair: LayerPair, x: Tensor, delta: Tensor, batch: int) -> Tensor:
    """(k,) factors for samples x (k, d) that are known up to a factor only, so that factor * x and delta / factor fit.

    Without a first bias, scaling a rectified sample and dividing its delta by the same factor leaves the gradients as
    they are, and with an odd activation so does changing the sign of both. The size of what the network sends back, for
    a mean over `batch` samples, decides.
    """
    upper = _layers_above(model, pair.first.weight_name.rpartition(".")[0])
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
            _, sent = _nearest_labels(upper, (x * factor) @ pair.first.weight.T, delta / factor)
            if homogeneous:
                factor = (
                    sign * batch * delta.norm(dim=1, keepdim=True) / sent.norm(dim=1, keepdim=True).clamp_min(1e-300)
                )
        error = _unit_distance(sent, delta / factor)
        factors = torch.where(error < best, factor[:, 0], factors)
        best = torch.minimum(error, best)
    return factors


def sent_back(model: nn.Module, layer: str, values: Tensor) -> Tensor:
    """(k, labels, m) what the network sends back to its layer of that name, which puts out `values` (k, m)."""
    upper = _layers_above(model, layer)
    with torch.no_grad():
        gradients = _logit_gradients(upper(values.clone()))
    labels = gradients.shape[1]
    with torch.enable_grad():
        start = values.detach().repeat_interleave(labels, 0).requires_grad_()
        (sent,) = torch.autograd.grad((upper(start.clone()) * gradients.flatten(0, 1)).sum(), [start])
    return sent.reshape(len(values), labels, -1)


def _layers_above(model: nn.Module, first: str) -> nn.Sequential:
    """The part of the network that follows its layer `first`."""
    chain = module_chain(model)
    after = [name for name, _ in chain].index(first) + 1
    return nn.Sequential(*(module for _, module in chain[after:]))


def _nearest_labels(upper: nn.Module, values: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """(k,) the labels for which samples with first-layer `values` (k, m) send back what is nearest in direction to
    `delta` (k, m), and what they send back (k, m).

    Inner products rank all labels at the cost of one product with the Jacobian; what is sent back is computed for the
    first few labels, and for all of them only where none of those fits.
    """
    logits, changes = _logits_and_change(upper, values, delta)
    logit_gradients = _logit_gradients(logits)
    likely = ((logit_gradients * changes[:, None]).sum(2) / logit_gradients.norm(dim=2).clamp_min(1e-300)).argsort(
        1, descending=True
    )
    labels, nearest = _best_of(upper, values, delta, logit_gradients, likely[:, :SHORTLIST])
    for index in (_unit_distance(nearest, delta) > FITS).nonzero().flatten().tolist():
        one = slice(index, index + 1)  # all labels of all samples might not fit into memory
        labels[one], nearest[one] = _best_of(upper, values[one], delta[one], logit_gradients[one], likely[one])
    return labels, nearest


def _best_of(
    upper: nn.Module, values: Tensor, delta: Tensor, logit_gradients: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The best of some `labels` (k, few) for each sample, and what it sends back."""
    few = labels.shape[1]
    chosen = logit_gradients.take_along_dim(labels[:, :, None], 1).flatten(0, 1)
    with torch.enable_grad():
        start = values.detach().repeat_interleave(few, 0).requires_grad_()
        (sent,) = torch.autograd.grad((upper(start.clone()) * chosen).sum(), [start])
    sent = sent.reshape(len(values), few, -1)
    best = ((sent * delta[:, None]).sum(2) / sent.norm(dim=2).clamp_min(1e-300)).argmax(1)
    rows = torch.arange(len(best))
    return labels[rows, best], sent[rows, best]


def _logits_and_change(upper: nn.Module, values: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """(k, logits) the logits, and how they change along `delta` (k, m).

    Reverse mode gives the transposed Jacobian times a vector u; it is linear in u, and its derivative by u is the
    Jacobian times `delta`.
    """
    with torch.enable_grad():
        start = values.detach().clone().requires_grad_()
        logits = upper(start.clone())
        dual = torch.zeros_like(logits, requires_grad=True)
        (back,) = torch.autograd.grad((logits * dual).sum(), [start], create_graph=True)
        (change,) = torch.autograd.grad((back * delta).sum(), [dual])
    return logits.detach(), change


def _logit_gradients(logits: Tensor) -> Tensor:
    """(k, labels, logits) the derivative of the loss by the logits (k, logits), for every label."""
    if logits.shape[1] == 1:
        return torch.sigmoid(logits)[:, :, None] - torch.tensor([[0.0], [1.0]]).to(logits)
    return logits.softmax(1)[:, None] - torch.eye(logits.shape[1]).to(logits)


def _unit_distance(sent: Tensor, delta: Tensor) -> Tensor:
    """(k,) distance of both as unit vectors, which has more digits near zero than one minus their cosine."""
    return (_unit(sent) - _unit(delta)).square().sum(1).sqrt()


def _unit(vectors: Tensor) -> Tensor:
    unit: Tensor = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return unit


def copies(certificate: Certificate, samples: int) -> Tensor:
    """(k,) how often each sample was in the batch, since one that is there twice sends twice as much.

    All ones where the numbers do not add up to `samples`.
    """
    times = times_in_batch(certificate.share, samples)
    return torch.ones(len(certificate.share), dtype=torch.int64) if times is None else times


def times_in_batch(share: Tensor, samples: int) -> Tensor | None:
    """(k,) whole numbers in proportion to shares (k,) that add up to `samples`; None where there are none."""
    for one in (float(share.median()), 1 / samples):
        times = (share / one).round().clamp_min(1).long()
        if int(times.sum()) == samples:
            return times
    return None


def counts_once(certificate: Certificate, times: Tensor, samples: int) -> Tensor:
    """(k,) whether each sample sends back as much as one sample must; `times` (k,) is how often it seems to be there.

    A root between samples whose signals are nearly the same points where it should, and sends too much or too little.
    One that counts twice may be a copy, or the mean of two samples that send back the same, as they do where a softmax
    is saturated: nobody can tell. What one sample sends is 1 of `samples`, or another share of it where the gradient
    was scaled, which most of those that point where they should must then have alike; where samples are missing nothing
    proves that it was scaled up.
    """
    one = 1 / samples
    single = certificate.share[(certificate.error < FITS) & (times == 1)]
    if len(single):
        common = float(single.median())
        alike = int(((single / common - 1).abs() < WHOLE_SHARE).sum())
        if alike >= min(SCALED_TOGETHER, samples) and 2 * alike > len(single):
            one = common if int(times.sum()) == samples else min(common, one)
    return (times == 1) & ((certificate.share / one - 1).abs() < WHOLE_SHARE)


def found_again(x: Tensor, residual: Tensor) -> Tensor:
    """(k,) whether a sample x (k, d) is like another one that fulfils its equations better: the same, with an error.

    Where samples are hard to tell apart, roots beside one sample each send back what they should.
    """
    apart = torch.cdist(x, x) / x.norm(dim=1).clamp_min(1e-300)
    worse = residual[:, None] > residual[None]
    again: Tensor = ((apart < LIKE) & worse).any(1)
    return again


def mismatch_up_to_scale(
    gradients: GradientFunction, observed: Sequence[Tensor], x: Tensor, targets: Tensor
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
