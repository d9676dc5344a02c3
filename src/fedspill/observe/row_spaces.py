"""Row and column space of a linear layer's change, which hold the inputs and back-propagated signals of its samples.

The change is the sum over samples of d_i (a_i, 1)^T, with inputs a_i and back-propagated signals d_i. However easy a
sample was, what it adds lies far above the rounding of float32, so that the row space of the change holds nearly every
input and its column space nearly every signal. How near an auxiliary sample comes to these spaces says how many samples
like it were there, where the last bias only says how hard they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.dataset import Examples
from fedspill.observe.random_sketch import random_sketch

_AT_ONCE = 128  # samples in one forward pass
_LAYERS = 3  # how many of the last linear layers are looked at
_WIDEST = 16_384  # inputs of a layer that is looked at; more would take too much memory
_ABOVE_NOISE = 3.0  # singular values that exceed the noise by this factor count as signal
_SPARE = 16  # singular values beyond the number of samples, from which the noise is measured
_NEAREST = 1e-4  # least share of a sample's square norm outside a span; below it is rounding
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class LayerSamples:
    """One linear layer on the adversary's own samples, with the inner products among these."""

    weight: str
    bias: str | None
    inputs: Tensor  # (samples, in), or (samples, in + 1) with a constant 1 where there is a bias
    signals: Tensor  # (samples, out) derivative of each sample's loss
    input_gram: Tensor  # (samples, samples)
    signal_gram: Tensor  # (samples, samples)

    @staticmethod
    def of(weight: str, bias: str | None, inputs: Tensor, signals: Tensor) -> LayerSamples:
        if bias is not None:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        return LayerSamples(weight, bias, inputs, signals, inputs @ inputs.T, signals @ signals.T)

    def change(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(out, in) of a message, the bias as a last column."""
        weight = tensors[self.weight].double()
        return weight if self.bias is None else torch.cat([weight, tensors[self.bias].double()[:, None]], 1)

    def can_show(self, tensors: Mapping[str, Tensor], samples: int) -> bool:
        """Whether a message holds this layer, and the layer has more directions than `samples` samples fill."""
        weight = tensors.get(self.weight)
        bias = None if self.bias is None else tensors.get(self.bias)
        if weight is None or weight.ndim != 2 or (self.bias is not None and bias is None):
            return False
        fits = weight.shape[0] == self.signals.shape[1] and (bias is None or len(bias) == len(weight))
        return fits and _has_room(weight.shape, samples) and bool(weight.isfinite().all())


@dataclass(frozen=True, eq=False)
class SpanDistance:
    """How far the adversary's samples lie from the row space (inputs) and column space (signals) of a change."""

    logs: Tensor  # (sides, samples) log share of the square norm that lies outside
    noise: float  # the first singular value that no sample explains


def sample_layers(model: nn.Module, own: Examples, samples: int) -> list[LayerSamples]:
    """The last linear layers that see one vector per sample and have room for `samples`, on labelled samples `own`."""
    names = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.in_features <= _WIDEST and _has_room(module.weight.shape, samples)
    }
    if not names:
        return []
    parts = [_inputs_and_signals(model, list(names), part) for part in _portions(own)]
    seen = [module for module in names if all(module in part for part in parts)][-_LAYERS:]
    return [
        LayerSamples.of(
            f"{names[module]}.weight" if names[module] else "weight",
            (f"{names[module]}.bias" if names[module] else "bias") if module.bias is not None else None,
            torch.cat([part[module][0] for part in parts]),
            torch.cat([part[module][1] for part in parts]),
        )
        for module in seen
    ]


def _inputs_and_signals(
    model: nn.Module, layers: list[nn.Linear], own: Examples
) -> dict[nn.Linear, tuple[Tensor, Tensor]]:
    """Inputs and signals, in float64, of those layers that were used once, on one vector per sample."""
    given: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}

    def catch(module: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> None:
        given[module].append((inputs[0], output))

    handles = [layer.register_forward_hook(catch) for layer in layers]
    try:
        with torch.enable_grad():
            device = next(model.parameters()).device
            loss = functional.cross_entropy(model(own.x.to(device)), own.y.to(device), reduction="sum")
            used = {
                layer: calls[0]
                for layer, calls in given.items()
                if len(calls) == 1
                and calls[0][1].ndim == 2
                and len(calls[0][1]) == len(own)
                and calls[0][1].requires_grad
            }
            outputs = [output for _, output in used.values()]
            signals = torch.autograd.grad(loss, outputs, allow_unused=True) if outputs else ()
    finally:
        for handle in handles:
            handle.remove()
    return {
        layer: (inputs.detach().double().cpu(), signal.double().cpu())
        for (layer, (inputs, _)), signal in zip(used.items(), signals, strict=True)
        if signal is not None
    }


def _portions(own: Examples) -> list[Examples]:
    return [own.take(rows) for rows in torch.split(torch.arange(len(own)), _AT_ONCE)]


def _has_room(shape: Sequence[int], samples: int) -> bool:
    """Whether a layer (out, in) has more directions than so many samples can fill."""
    return samples + _SPARE <= min(shape)


def distance_from_span(layer: LayerSamples, change: Tensor, samples: int, rng: torch.Generator) -> SpanDistance:
    """How far the adversary's samples lie from the spaces of the change (out, in) that `samples` samples made."""
    left, values, right = _leading_triplets(change, samples + _SPARE, rng)
    noise = float(values[samples])
    kept = (values > _ABOVE_NOISE * noise) & (torch.arange(len(values)) < samples)
    within = torch.stack(
        [(layer.inputs @ right[kept].T).square().sum(1), (layer.signals @ left[:, kept]).square().sum(1)]
    )
    return SpanDistance(_outside(layer, within), noise)


def rehearsed_distance_from_span(layer: LayerSamples, chosen: Tensor, noise: float) -> Tensor:
    """(sides, samples) logs as in `distance`, if the client had held the adversary's samples `chosen` (indices).

    Everything follows from inner products: with A = L Q for the chosen inputs and D = H P for their signals, Q and P
    orthonormal, the change D^T A has the singular values of the small matrix H^T L.
    """
    inner, crossed = layer.input_gram[chosen][:, chosen], layer.input_gram[chosen]
    ridge = (1e-10 * inner.diagonal().mean() + _TINY**2) * torch.eye(len(chosen), dtype=inner.dtype)
    low = torch.linalg.cholesky(inner + ridge)
    powers, turned = torch.linalg.eigh(layer.signal_gram[chosen][:, chosen])
    sizes = powers.clamp_min(0).sqrt()
    left, values, right = torch.linalg.svd((turned * sizes).T @ low)
    kept = values > _ABOVE_NOISE * noise
    inputs = right[kept] @ torch.linalg.solve_triangular(low, crossed, upper=False)
    signals = turned.T @ layer.signal_gram[chosen] / sizes.clamp_min(_TINY)[:, None]
    signals[sizes <= 1e-6 * sizes.max()] = 0
    within = torch.stack([inputs.square().sum(0), (left[:, kept].T @ signals).square().sum(0)])
    return _outside(layer, within)


def _outside(layer: LayerSamples, within: Tensor) -> Tensor:
    """Log share outside a span, from the square norms (sides, samples) within it."""
    whole = torch.stack([layer.input_gram.diagonal(), layer.signal_gram.diagonal()])
    return (1 - within / whole.clamp_min(1e-300)).clamp_min(_NEAREST).log()


def _leading_triplets(matrix: Tensor, rank: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular triplets of a matrix (out, in) that is close to low rank, by random projection.

    One power iteration, orthonormal in between: small values beside large ones keep their directions.
    """
    basis = torch.linalg.qr(random_sketch(matrix, rank, rng))[0]
    basis = torch.linalg.qr(matrix.T @ basis)[0]
    basis = torch.linalg.qr(matrix @ basis)[0]
    left, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ left, values, right
