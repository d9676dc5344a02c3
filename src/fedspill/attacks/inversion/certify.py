"""Labels of recovered samples, and a certificate for each: what they would send is what was seen. No truth is used.

The root condition knows nothing of labels, loss or upper layers. So a sample is checked against them: with some label,
the network must send back to the first layer just the delta1 that was peeled off for it. A false root does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedspill.attacks.inversion.gradients import Gradients
from fedspill.attacks.inversion.layers import Pair, chain_of


@dataclass(frozen=True, eq=False)
class Certificate:
    """For each sample its likeliest label, and how far its delta1 is from what the network sends back for it."""

    labels: Tensor  # (k,) int64
    error: Tensor  # (k,) distance of both as unit vectors: 0 is a proof, 1 is little in common
    share: Tensor  # (k,) size of delta1 over what the network sends back for one sample: 1/B, or more for copies


def certify(model: nn.Module, first: str, z: Tensor, delta: Tensor) -> Certificate:
    """For samples with first-layer values z (k, m) and peeled delta (k, m); `first` names the layer of `model`."""
    labels, errors, shares = [], [], []
    for values, seen in zip(z, delta, strict=True):
        label, sent = _nearest(model, first, values, seen)
        labels.append(label)
        errors.append(_apart(sent, seen))
        shares.append(float(seen.norm() / sent.norm().clamp_min(1e-300)))
    numbers = (torch.tensor(values, dtype=torch.float64) for values in (errors, shares))
    return Certificate(torch.tensor(labels, dtype=torch.int64), *numbers)


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
    first = pair.first.weight_name.rpartition(".")[0]
    factors = torch.ones(len(x), dtype=x.dtype)
    if pair.first.bias is not None:
        return factors
    probe = torch.linspace(-3, 3, len(pair.first.weight), dtype=x.dtype)[None]
    homogeneous = bool(torch.allclose(pair.between.value(2 * probe), 2 * pair.between.value(probe)))
    odd = bool(torch.allclose(pair.between.value(-probe), -pair.between.value(probe)))
    for index, (sample, seen) in enumerate(zip(x, delta, strict=True)):
        tried = []
        for sign in (1.0, -1.0) if odd else (1.0,):
            factor = sign
            for _ in range(25 if homogeneous else 1):
                _, sent = _nearest(model, first, pair.first.weight @ sample * factor, seen / factor)
                if homogeneous:
                    factor = sign * float(batch * seen.norm() / sent.norm().clamp_min(1e-300))
            tried.append((_apart(sent, seen / factor), factor))
        factors[index] = min(tried)[1]
    return factors


def _nearest(model: nn.Module, first: str, values: Tensor, seen: Tensor) -> tuple[int, Tensor]:
    """The label for which the network sends back what is nearest in direction to `seen` (m,), and that."""
    sent = _sent_back(model, first, values)  # (classes, m)
    best = int(((sent @ seen) / sent.norm(dim=1).clamp_min(1e-300)).argmax())
    return best, sent[best]


def _apart(sent: Tensor, seen: Tensor) -> float:
    """Distance of unit vectors: more digits than their cosine has near 1."""
    return float((sent / sent.norm().clamp_min(1e-300) - seen / seen.norm().clamp_min(1e-300)).norm())


def _sent_back(model: nn.Module, first: str, values: Tensor) -> Tensor:
    """(classes, m) the derivative of the loss by the first layer's values (m,), for every label."""
    chain = chain_of(model)
    assert not isinstance(chain, str)
    after = [name for name, _ in chain].index(first) + 1
    upper = nn.Sequential(*(module for _, module in chain[after:]))
    with torch.enable_grad():
        start = values.detach().clone().requires_grad_()
        logits = upper(start[None].clone())[0]
        if len(logits) == 1:  # a sigmoid head: labels 0 and 1
            wrong = torch.sigmoid(logits).expand(2, 1) - torch.tensor([[0.0], [1.0]]).to(logits)
        else:
            wrong = logits.softmax(0) - torch.eye(len(logits), dtype=logits.dtype, device=logits.device)

        def back(cotangent: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(logits, [start], cotangent, retain_graph=True)
            return found

        sent: Tensor = vmap(back)(wrong.detach())
    return sent.detach()


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
