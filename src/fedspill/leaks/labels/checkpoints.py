"""Inspection: label counts straight from checkpoint files, of any framework and without any model code.

The last layer of a classifier gives itself away: over the classes, the gradient of softmax cross-entropy adds up to
zero, in the bias and in every column of the weight. Few other layers do that, so the head is found, its orientation is
known, and a head named wrongly is noticed. The few: a layer in front of a layer normalisation, known by a normalisation
of the same width, and one in front of another softmax (attention pooling, a router), for which there is no sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspill.errors import InputRefused, NoHead, UsageError
from fedspill.files import read_tensors
from fedspill.leaks.labels.counts.update_alone import HeadChange, wire_outlook
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.leaks.labels.labels import best_reading
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.leaks.labels.llg import llg_counts
from fedspill.observe.last_layer import LastLayer
from fedspill.trace import Origin
from fedspill.training import Schedule

# "fc.weight", "dense/kernel:0", "head_w", "W3": what comes before, the word for a weight, what comes behind.
_BIAS_OF = {"weight": "bias", "weights": "biases", "kernel": "bias", "W": "b", "w": "b"}
_WEIGHT = re.compile(r"^(.*[._/]|)(weights|weight|kernel|W|w)((?:[:_]?\d+)?)$", re.DOTALL)
ROUNDING = 1e-4  # |sum over features| / sum of absolute values: below, the sums are rounding and not labels
ZERO_SUM = 1e-2  # |sum over classes| / sum of absolute values; half precision and few steps stay well below


@dataclass(frozen=True, eq=False)
class HeadGradient:
    """The last layer's gradient: weight (classes, features), bias (classes,) or None."""

    name: str
    weight_name: str
    weight: Tensor
    bias: Tensor | None
    zero_sum: float  # how far from the zero sum, relative; 0 is exact
    transposed: bool  # stored as (features, classes)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "classes": self.weight.shape[0],
            "features": self.weight.shape[1],
            "bias": self.bias is not None,
            "transposed": self.transposed,
            "zero_sum_error": self.zero_sum,
        }


@dataclass(frozen=True, eq=False)
class Inspection:
    """What the file gives away."""

    head: HeadGradient
    counts: Mapping[str, Tensor]  # by attack
    best: str
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "classes": self.head.weight.shape[0],
            "head": self.head.as_json(),
            "attacks": [{"name": name, "counts": counts.tolist()} for name, counts in self.counts.items()],
            "best": {"name": self.best, "counts": self.counts[self.best].tolist()},
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
    layer = LastLayer((Origin(0, "file"),), rows, head.weight.sum(1)[None], (schedule,))
    if not bool(head.weight.any()):
        raise InputRefused(f"The change of {head.name!r} is zero everywhere: nothing was trained, or it was withheld.")
    counts = {}
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
        counts["labels"] = best_reading(layer, outlook).counts[0]
        best = "labels"
    else:
        notes = [*notes, f"{head.name} has no bias: LLBG, EBI and labels cannot be read, LLG is all there is"]
        best = "llg"
    return Inspection(head, counts, best, tuple(notes))


def _head_change(head: HeadGradient, before: Mapping[str, Tensor], scale: float) -> HeadChange:
    weight, bias = before[head.weight_name], before[_layer_of(head.weight_name)[1]]
    assert head.bias is not None
    rows = weight.T if head.transposed else weight
    return HeadChange(rows, bias, head.weight / scale, head.bias / scale, is_change=True)


def find_head(gradient: Mapping[str, Tensor], name: str | None = None, *, unchecked: bool = False) -> HeadGradient:
    """The last layer among named gradients: as asked for, else the one layer whose classes add up to zero."""
    candidates = [head for weight in gradient if gradient[weight].ndim == 2 for head in _orientations(gradient, weight)]
    if not candidates:
        raise NoHead("No two-dimensional weight is in the file, so there is no linear last layer to read.")
    if name is not None:
        known = sorted({head.name for head in candidates})
        candidates = [head for head in candidates if name in (head.name, head.weight_name)]
        if not candidates:
            raise NoHead(f"There is no linear layer named {name!r}.", remedy=f"Linear layers: {', '.join(known)}.")
    best = min(candidates, key=lambda head: (head.zero_sum, head.bias is None))
    if name is None and not unchecked:
        best = _only_one(candidates, gradient) or best
    if best.zero_sum > ZERO_SUM and not unchecked:
        which = f"Layer {best.name!r} is not" if name is not None else "No layer looks like"
        raise NoHead(
            f"{which} the last layer of a softmax classifier: its gradient should add up to zero over the classes, "
            f"and misses by {best.zero_sum:.1%}.",
            remedy="Leave --head out to have it found. Adam, compression and noise break the sum: name the layer with "
            "--head and add --unchecked.",
        )
    return best


def _only_one(candidates: Sequence[HeadGradient], gradient: Mapping[str, Tensor]) -> HeadGradient | None:
    """Of several layers that add up to zero the one that no normalisation explains; None if none adds up."""
    fitting = [head for head in candidates if head.zero_sum <= ZERO_SUM]
    biases = {_layer_of(name)[1] for name, tensor in gradient.items() if tensor.ndim > 1}
    widths = {len(t) for name, t in gradient.items() if t.ndim == 1 and name not in biases and "bias" not in name}
    unexplained = [head for head in fitting if len(head.weight) not in widths] or fitting
    names = sorted({head.name for head in unexplained})
    if len(names) > 1:
        raise NoHead(
            f"{len(names)} layers look like the last one of a softmax classifier: {', '.join(names[:8])}.",
            remedy="Name the right one with --head.",
        )
    return min(unexplained, key=lambda head: head.zero_sum, default=None)


def _orientations(gradient: Mapping[str, Tensor], weight_name: str) -> list[HeadGradient]:
    """The layer read as (classes, features), and as (features, classes) where its bias allows that."""
    weight = gradient[weight_name]
    if weight.ndim != 2:
        return []
    name, bias_name = _layer_of(weight_name)
    bias = gradient.get(bias_name)
    bias = bias if bias is not None and bias.ndim == 1 else None
    found = []
    for transposed in (False, True):
        as_rows = weight.T if transposed else weight
        if (bias is None or len(bias) == len(as_rows)) and len(as_rows) > 1:
            found.append(HeadGradient(name, weight_name, as_rows, bias, _zero_sum(as_rows, bias), transposed))
    return found


def _layer_of(weight_name: str) -> tuple[str, str]:
    """Layer and bias of a weight, in the names that torch, Keras, Flax and plain dictionaries use."""
    found = _WEIGHT.match(weight_name)
    if found is None:
        return weight_name, weight_name + ".bias"
    stem, word, ending = found.groups()
    return stem.rstrip("._/") or weight_name, stem + _BIAS_OF[word] + ending


def _zero_sum(weight: Tensor, bias: Tensor | None) -> float:
    """The sum over classes against the sum of absolute values; both of weight and bias must vanish."""
    parts = [weight] if bias is None else [weight, bias[:, None]]
    shares = [part.sum(0).abs().sum() / part.abs().sum() if bool(part.any()) else torch.tensor(1.0) for part in parts]
    return float(max(shares))


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
