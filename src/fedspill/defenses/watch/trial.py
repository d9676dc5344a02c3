"""Tries a received model out on the client's own data, before training: accuracy and ROC area (004, section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.defense import Site
from fedspill.errors import UsageError
from fedspill.messages import Message
from fedspill.training import is_single


@torch.no_grad()
def logits_of(message: Message, site: Site, name: str) -> tuple[Tensor, Tensor]:
    """What the model says of the client's samples, and their labels."""
    if site.architecture is None or site.examples is None or len(site.examples) == 0:
        raise UsageError(
            f"{name} tries models out on the client's own data, which it was not given.",
            remedy="Give mod() `architecture` and `examples`, or use the guard, which needs neither.",
        )
    model = site.architecture().eval()
    model.load_state_dict(dict(message.tensors), strict=False)
    found: Tensor = model(site.examples.x)
    return found, site.examples.y


def errors_of(logits: Tensor, y: Tensor, threshold: float) -> int:
    """Samples that are classified wrong; a single logit is held against the probability `threshold`."""
    guess = (torch.sigmoid(logits.flatten()) > threshold).long() if is_single(logits) else logits.argmax(1)
    return int((guess != y).sum())


def roc_area(logits: Tensor, y: Tensor) -> float | None:
    """The area under the ROC curve, of several classes the mean over those that are there; None with one class only."""
    if is_single(logits):
        columns = [(logits.flatten(), y == 1)]
    else:
        columns = [(logits[:, c], y == c) for c in sorted(set(y.tolist()))]
    areas = []
    for scores, positive in columns:
        hits, misses = int(positive.sum()), int((~positive).sum())
        if hits and misses:
            ranks = _ranks(torch.nan_to_num(scores.double()))
            areas.append((float(ranks[positive].sum()) - hits * (hits + 1) / 2) / (hits * misses))
    return sum(areas) / len(areas) if areas else None


def _ranks(scores: Tensor) -> Tensor:
    """From 1; equal scores share their mean rank."""
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    middle: Tensor = ends - (counts.double() - 1) / 2
    return middle[group]
