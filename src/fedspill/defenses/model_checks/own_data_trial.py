"""Tries a received model out on the client's own data, before training: accuracy and ROC area (004, section 4.2)."""

from __future__ import annotations

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedspill.defense import ClientContext
from fedspill.errors import UsageError
from fedspill.messages import Message
from fedspill.training import is_single


@torch.no_grad()
def logits_of(message: Message, client: ClientContext, name: str) -> tuple[Tensor, Tensor]:
    """What the model says of the client's samples, and their labels."""
    if client.architecture is None or client.examples is None or len(client.examples) == 0:
        raise UsageError(
            f"{name} tries models out on the client's own data, which it was not given.",
            remedy="Give mod() `architecture` and `examples`, or use the guard, which needs neither.",
        )
    model = client.architecture().eval()
    model.load_state_dict(dict(message.tensors), strict=False)
    found: Tensor = model(client.examples.x)
    return found, client.examples.y


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
    areas = [
        float(roc_auc_score(positive.numpy(force=True), _finite(scores).numpy(force=True)))
        for scores, positive in columns
        if bool(positive.any()) and not bool(positive.all())
    ]
    return sum(areas) / len(areas) if areas else None


def _finite(scores: Tensor) -> Tensor:
    """NaN is 0, and what is infinite is so large that sums of it are still finite, as scikit-learn wants them."""
    return torch.nan_to_num(scores.double()).clamp(-1e300, 1e300)
