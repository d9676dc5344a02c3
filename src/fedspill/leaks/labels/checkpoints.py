"""Inspection: label counts straight from checkpoint files, of any framework and without any model code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspill.errors import InputRefused, NoHead, UsageError
from fedspill.files import read_tensors
from fedspill.leaks.labels.counts.each_update import best_reading
from fedspill.leaks.labels.counts.update_alone import HeadChange, wire_outlook
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.leaks.labels.llg import llg_counts
from fedspill.observe.find_head import HeadGradient, find_head, layer_and_bias_names
from fedspill.observe.last_layer import LastLayerGradients, class_pulls
from fedspill.trace import Origin
from fedspill.training import Schedule

ROUNDING = 1e-4  # |sum over features| / sum of absolute values: below, the sums are rounding and not labels


@dataclass(frozen=True, eq=False)
class Inspection:
    """What the file gives away."""

    head: HeadGradient
    counts: Mapping[str, Tensor]  # by attack
    best: str
    notes: tuple[str, ...]
    expects: float | None = None  # share of labels that the best one expects to have right; None where it does not say

    def as_json(self) -> dict[str, Any]:
        return {
            "classes": self.head.weight.shape[0],
            "head": self.head.as_json(),
            "attacks": [{"name": name, "counts": counts.tolist()} for name, counts in self.counts.items()],
            "best": {"name": self.best, "counts": self.counts[self.best].tolist()},
            "expects": self.expects,
            "notes": list(self.notes),
        }


def inspect_update(
    before: Path,
    after: Path,
    *,
    lr: float,
    batch_size: int | None,
    samples: int | None = None,
    local_steps: int | None = None,
    head: str | None = None,
    unchecked: bool = False,
) -> Inspection:
    """Label counts of the samples that trained `before` into `after`, by plain SGD."""
    if not lr > 0:
        raise UsageError(f"The learning rate must be positive, got {lr}.")
    first, notes = _load(before)
    second, more = _load(after)
    _same_tensors(before, first, after, second)
    schedule = schedule_from(batch_size, samples, local_steps)
    scale = -1.0 / (lr * schedule.epochs)
    change = {name: scale * (second[name] - first[name]) for name in first}
    notes = notes + [note for note in more if note not in notes]
    if samples is None and local_steps is None:
        notes.append(f"taken for one local step of {batch_size} samples; --samples says how many there were in all")
    return _inspect(change, schedule, head, unchecked, notes, before=first, scale=scale)


def inspect_gradient(
    gradient: Path, *, batch_size: int | None, head: str | None = None, unchecked: bool = False
) -> Inspection:
    """Label counts of the batch behind one mean gradient."""
    tensors, notes = _load(gradient)
    return _inspect(tensors, schedule_from(batch_size, None, 1), head, unchecked, notes)


def schedule_from(batch_size: int | None, samples: int | None, local_steps: int | None) -> Schedule:
    """The local schedule that the three numbers describe; whatever is left out follows from the others."""
    if any(number is not None and number < 1 for number in (batch_size, samples, local_steps)):
        raise UsageError("Batch size, samples and local steps must be at least 1.")
    if batch_size is None:
        raise UsageError("Expected the batch size: the samples of a local step, or behind the gradient.")
    if samples is None:
        return Schedule(batch_size * (local_steps or 1), batch_size)
    per_pass = -(-samples // batch_size)
    if local_steps is not None and local_steps % per_pass:
        raise UsageError(
            f"{samples} samples in steps of {batch_size} make {per_pass} steps a pass; "
            f"{local_steps} local steps are no whole number of passes."
        )
    return Schedule(samples, batch_size, 1 if local_steps is None else local_steps // per_pass)


def _inspect(
    gradient: Mapping[str, Tensor],
    schedule: Schedule,
    head_name: str | None,
    unchecked: bool,
    notes: list[str],
    *,
    before: Mapping[str, Tensor] | None = None,
    scale: float = 1.0,
) -> Inspection:
    """before: the model that was trained, whose change times `scale` is the gradient."""
    head = find_head(gradient, head_name, unchecked=unchecked)
    rows = None if head.bias is None else head.bias[None]
    sums = head.weight.sum(1)
    pulls = class_pulls(head.weight, sums if head.bias is None else head.bias)
    layer = LastLayerGradients((Origin(0, "file"),), rows, sums[None], pulls[None], (schedule,))
    if not bool(head.weight.any()):
        raise InputRefused(f"The change of {head.name!r} is zero everywhere: nothing was trained, or it was withheld.")
    counts: dict[str, Tensor] = {}
    expects = None
    if float(layer.weight_sums.abs().sum()) > ROUNDING * float(head.weight.abs().sum()):
        counts["llg"] = llg_counts(layer.weight_sums, layer.samples)[0]
    else:
        notes = [
            *notes,
            f"the features of {head.name} add up to zero, as behind a layer normalisation: LLG reads nothing",
        ]
    if rows is None and not counts:
        raise NoHead(f"{head.name!r} has no bias, and its features add up to zero: nothing there tells labels.")
    if rows is not None:
        per_step = torch.tensor([schedule.per_step])
        counts["ebi"] = ebi_counts(rows, layer.samples)[0]
        counts["llbg"] = llbg_counts(rows, per_step, layer.samples, torch.zeros_like(rows))[0]
        outlook = None if before is None else wire_outlook([_head_change(head, before, scale)])
        reading = best_reading(layer, outlook)
        counts["labels"], expects, best = reading.counts[0], float(reading.expected[0]), "labels"
    else:
        notes = [*notes, f"{head.name} has no bias: LLBG, EBI and labels cannot be read, LLG is all there is"]
        best = "llg"
    return Inspection(head, counts, best, tuple(notes), expects)


def _head_change(head: HeadGradient, before: Mapping[str, Tensor], scale: float) -> HeadChange:
    weight, bias = before[head.weight_name], before[layer_and_bias_names(head.weight_name)[1]]
    assert head.bias is not None
    rows = weight.T if head.transposed else weight
    return HeadChange(rows, bias, head.weight / scale, head.bias / scale, is_change=True)


def _load(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The float tensors of a file in float64, and what had to be noted about them."""
    tensors = {name: tensor for name, tensor in read_tensors(path).items() if tensor.is_floating_point()}
    if not tensors:
        raise InputRefused(f"{path} holds no tensor of floating-point numbers.")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor.double()).all()):
            raise InputRefused(f"{path}: {name!r} holds NaN or infinite values.")
    coarse = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values() if tensor.itemsize < 4})
    notes = [f"stored as {' and '.join(coarse)}: counts may be off by rounding"] if coarse else []
    return {name: tensor.double() for name, tensor in tensors.items()}, notes


def _same_tensors(before: Path, first: Mapping[str, Tensor], after: Path, second: Mapping[str, Tensor]) -> None:
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        raise InputRefused(f"{before} and {after} do not hold the same tensors: {', '.join(odd[:8])} in one only.")
    for name in first:
        if first[name].shape != second[name].shape:
            raise InputRefused(
                f"{name!r} has shape {tuple(first[name].shape)} in {before}, {tuple(second[name].shape)} in {after}."
            )
