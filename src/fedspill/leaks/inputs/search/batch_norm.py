"""How a client's batch norms worked, by the batch's own statistics or by running ones, read off what it sent.

A step in training mode changes a layer's buffers: running = (1 - m) running + m (statistics of the batch), its variance
unbiased. So changed buffers show the mode, and after one step the statistics themselves. Where no buffer changed, the
gradient of one step shows the mode: a layer that normalises by its own batch undoes any scaling of a row of weights
before it, so that each row's gradient is at right angles to the row. It undoes the contrast of the batch in the same
way, which is why the gradient does not show that contrast, while the statistics do.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedspill.leaks.inputs.errors import UnsoundMessage
from fedspill.leaks.inputs.search.priors import normalised
from fedspill.training import Schedule

RIGHT_ANGLE = 0.3  # measured: at most 1.4e-4 in training mode, at least 0.62 otherwise (docs/design/inversion.md)
NEGATIVE = 1e-3  # how far a variance may lie below zero, relative, and still be rounding

Moments: TypeAlias = tuple[Tensor, Tensor]  # mean and variance (not unbiased) of each channel


@final
@dataclass(frozen=True, eq=False)
class BatchNorms:
    """The layers, by name, that normalised by their batch's own statistics, and these where buffers show them.

    After several steps buffers show a mean over the steps, in which the last ones weigh most.
    """

    by_batch: frozenset[str] = frozenset()
    moments: Mapping[str, Moments] = field(default_factory=dict)
    note: str = ""  # what was not read, and why

    def as_client_ran(self, model: nn.Module) -> nn.Module:
        """A copy whose batch norms work as the client's did; they keep no buffers, so that vmap can stack restarts."""
        run = copy.deepcopy(model).eval()
        for name in self.by_batch:
            layer = run.get_submodule(name)
            assert isinstance(layer, _BatchNorm)
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        return run

    @torch.no_grad()
    def with_batch_statistics(self, model: nn.Module) -> nn.Module:
        """A copy in evaluation mode with the batch's own statistics as running ones, where they are known."""
        filled = copy.deepcopy(model).eval()
        for name, (mean, variance) in self.moments.items():
            layer = filled.get_submodule(name)
            assert isinstance(layer, _BatchNorm)
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
        return filled

    @torch.no_grad()
    def mismatch(self, model: nn.Module, x: Tensor) -> float:
        """The share of the known statistics that a batch x (B, *shape) leaves unexplained; infinite if none are."""
        apart, whole = 0.0, 0.0
        filled = self.with_batch_statistics(model)
        known = {filled.get_submodule(name): moments for name, moments in self.moments.items()}
        for layer, features in normalised(filled, x):
            if layer in known:
                values = features.transpose(0, 1).flatten(1)
                own = values.mean(1), values.var(1, unbiased=False)
                apart += sum(float((a - b).square().sum()) for a, b in zip(own, known[layer], strict=True))
                whole += sum(float(b.square().sum()) for b in known[layer])
        return float((apart / whole) ** 0.5) if whole > 0 else float("inf")

    @torch.no_grad()
    def in_known_contrast(self, model: nn.Module, x: Tensor) -> Tensor:
        """x (B, *shape) scaled so that the first layer with known statistics gets its variance; x if none is known."""
        filled = self.with_batch_statistics(model)
        known = {filled.get_submodule(name): variance for name, (_, variance) in self.moments.items()}
        for layer, features in normalised(filled, x):
            if layer in known:
                own = features.transpose(0, 1).flatten(1).var(1, unbiased=False)
                return x * (known[layer].sum() / own.sum().clamp_min(1e-300)).sqrt()
        return x


def read_batch_norms(
    model: nn.Module,
    sent: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    schedule: Schedule,
    shape: tuple[int, ...] | None,
    *,
    steps_known: bool,
) -> BatchNorms:
    """What a message with tensors `sent` says of the batch norms of the `model` that was handed out.

    `gradients` by parameter name. Only the mode is read where the `shape` of an input is not known, or the number of
    steps is only assumed (not `steps_known`). Raises UnsoundMessage where batch norm cannot have trained like that.
    """
    layers = tracking_batch_norms(model)
    if not layers:
        return BatchNorms()
    changes, note = _buffer_changes(layers, sent)
    moved = frozenset(name for name, parts in changes.items() if any(bool(part.any()) for part in parts))
    active = moved
    if not moved:
        cosine = weight_gradient_cosine(model, gradients) if schedule.steps == 1 else None
        # Buffers that did not change mean evaluation mode; where none were sent, training mode is the usual one.
        by_batch = not changes if cosine is None else cosine < RIGHT_ANGLE
        active = frozenset(layers) if by_batch else frozenset()
    if not active or shape is None:
        return BatchNorms(active, note=note)
    values = _values_per_sample(model, shape)
    if min(schedule.sizes()) == 1 and any(values[name] == 1 for name in active & values.keys()):
        raise UnsoundMessage("says that a step had one sample, on which batch norm cannot train")
    moments: dict[str, Moments] = {}
    for name in sorted(moved & values.keys()) if steps_known else ():
        mean, variance = _batch_moments(layers[name], changes[name], schedule.steps)
        if float(variance.min()) < -NEGATIVE * float(variance.abs().max()):
            return BatchNorms(active, note=f"buffers are not those of {schedule.steps} steps and were not read")
        many = values[name] * schedule.per_step
        moments[name] = mean, variance.clamp_min(0) * (many - 1) / many
    return BatchNorms(active, moments, note)


def tracking_batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms that work otherwise in training than in evaluation."""
    named = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    return {name: m for name, m in named.items() if m.running_mean is not None and m.running_var is not None}


def weight_gradient_cosine(model: nn.Module, gradients: Mapping[str, Tensor]) -> float | None:
    """The cosine between rows of weights right before batch norms and their gradients, over that of random vectors.

    Root mean square over the rows of a layer, then the median over layers; None where there are no such layers.
    """
    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    cosines = []
    for (name, layer), (_, above) in pairwise(leaves):
        if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) or not isinstance(above, _BatchNorm):
            continue
        if f"{name}.weight" not in gradients or above.num_features != len(layer.weight):
            continue
        row, slope = layer.weight.detach().double().flatten(1), gradients[f"{name}.weight"].double().flatten(1)
        sizes = row.norm(dim=1) * slope.norm(dim=1)
        cosine = ((row * slope).sum(1) / sizes)[sizes > 0]
        if len(cosine):
            cosines.append(float(cosine.square().mean().sqrt()) * row.shape[1] ** 0.5)
    return sorted(cosines)[len(cosines) // 2] if cosines else None


def _buffer_changes(layers: Mapping[str, _BatchNorm], sent: Mapping[str, Tensor]) -> tuple[dict[str, Moments], str]:
    """What was added to mean and variance of every layer; empty where they were not sent, or not sound, with a note."""
    changes: dict[str, Moments] = {}
    for name, layer in layers.items():
        if layer.momentum == 0:
            return {}, ""  # such buffers never move
        for part in ("running_mean", "running_var"):
            if f"{name}.{part}" not in sent:
                return {}, ""
        mean, variance = (sent[f"{name}.{part}"].double() for part in ("running_mean", "running_var"))
        if mean.shape != (layer.num_features,) or variance.shape != mean.shape:
            return {}, f"buffers of {name!r} have another shape than the layer and were not read"
        if not bool(torch.isfinite(mean.sum() + variance.sum())):
            return {}, f"buffers of {name!r} hold NaN or infinite values and were not read"
        changes[name] = mean, variance
    return changes, ""


def _batch_moments(layer: _BatchNorm, change: Moments, steps: int) -> Moments:
    """The statistics that change the buffers by that much in so many steps; the variance as torch has it, unbiased."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    before = 0 if layer.num_batches_tracked is None else int(layer.num_batches_tracked)
    kept = before / (before + steps) if layer.momentum is None else (1 - layer.momentum) ** steps
    mean, variance = (part / (1 - kept) for part in change)
    return layer.running_mean + mean, layer.running_var + variance


@torch.no_grad()
def _values_per_sample(model: nn.Module, shape: tuple[int, ...]) -> dict[str, int]:
    """How many values of one sample each batch norm averages over, for those that run once."""
    names = {module: name for name, module in model.named_modules()}
    fed = normalised(model, torch.zeros(1, *shape, dtype=torch.float64))
    times = [layer for layer, _ in fed]
    return {names[layer]: x.numel() // x.shape[1] for layer, x in fed if times.count(layer) == 1}
