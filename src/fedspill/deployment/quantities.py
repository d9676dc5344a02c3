"""Quantities: what is compared of two federations: how long updates are, how they agree, where the model moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from fedspill.deployment.recorded_federation import is_buffer, mean_update
from fedspill.messages import Kind
from fedspill.trace import Trace

BINS = 4096  # of a tensor's profile


@dataclass(frozen=True, eq=False)
class Quantities:
    """What is compared of one federation: numbers, which inputs move the model, and where it moves first."""

    numbers: dict[str, float]
    inputs: Tensor  # (bins,) how much each input of the first layer moves its weights
    direction: Tensor  # (parameters,) the mean update of the first round, in which a twin has the recorded model


def quantities_of(trace: Trace, rounds: Sequence[int] | None = None) -> Quantities:
    """From the messages alone, of these rounds or all."""
    kinds: tuple[Kind, ...] = ("update", "gradient")
    seen = {message.round for kind in ("aggregate", *kinds) for message in trace.messages(kind)}
    rounds = sorted(seen if rounds is None else seen & set(rounds))
    means = [_trained(mean_update(trace, number)) for number in rounds]
    lengths = [_norm(mean) for mean in means]
    sent = [message for kind in kinds for message in trace.messages(kind) if message.round in rounds]
    numbers: dict[str, float] = {}
    if sent:
        sizes = [_norm(_trained(message.tensors)) for message in sent]
        numbers["update size"] = _log(fmean(sizes))
        numbers["agreement"] = _log(fmean(lengths)) - _log(fmean(sizes))
    else:
        numbers["update size"] = _log(fmean(lengths))
    if len(means) > 1:
        numbers["trend"] = _log(lengths[-1]) - _log(lengths[0])
        numbers["steadiness"] = fmean(_cosine(one, other) for one, other in pairwise(means))
    head = trace.protocol.get("head_weight")
    if isinstance(head, str) and all(head in mean for mean in means):
        last = fmean(float(mean[head].norm()) for mean in means)
        numbers["head"] = _log(last) - _log(fmean(lengths))
    first = next((name for name, tensor in means[0].items() if tensor.ndim > 1), next(iter(means[0])))
    inputs = _profile([mean[first] for mean in means])
    return Quantities(numbers, inputs, torch.cat([tensor.flatten() for tensor in means[0].values()]).float())


def _trained(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items() if not is_buffer(name)}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors.values()))


def _log(value: float) -> float:
    return math.log(max(value, 1e-300))


def _cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    product = sum(float((one[name] * other[name]).sum()) for name in one if name in other)
    return product / max(_norm(one) * _norm(other), 1e-300)


def _profile(tensors: Sequence[Tensor]) -> Tensor:
    """(bins,) how much each input of a layer, or each place of another tensor, moves; of length 1."""
    moved = torch.stack([tensor.abs() for tensor in tensors]).sum(0)
    flat = moved.flatten(1).sum(0) if moved.ndim > 1 else moved.flatten()
    if len(flat) > BINS:
        flat = torch.nn.functional.adaptive_avg_pool1d(flat[None], BINS)[0]
    unit: Tensor = flat / flat.norm().clamp_min(1e-300)
    return unit
