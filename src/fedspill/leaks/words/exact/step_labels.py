"""Labels of texts over several local steps, off the first block: what it reads does not move while the head learns.

Within a few steps the head has learnt a batch: what it reads has moved, and its signals have faded. But the first block
still reads the same tokens. What each text would have sent of it, up to the size and sign of its signals, is known from
the model that was handed out, and differs from text to text. Least squares give the signals: the label of a text is the
class whose logit was pushed up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText, batch_of


def mean_signals(attacked: AttackedText, texts: Sequence[Sequence[int]]) -> tuple[Tensor, float] | None:
    """(texts, classes) mean derivatives of the loss with respect to the logits of each, times how often it was there.

    The second value is the share of what was sent of the first block that they leave; None where nothing of it was.
    """
    names = [n for n, tensor in attacked.gradients.items() if n.startswith("h.0.") and tensor.ndim == 2]
    if not names:
        return None
    contrasts = zero_sums(attacked.net.head.out_features)
    sent = torch.cat([attacked.gradients[name].flatten() for name in names]).double()
    columns = [
        torch.cat([part.flatten() for part in parts]).double()
        for text in texts
        for parts in _pulls(attacked, text, names, contrasts)
    ]
    pulled = torch.stack(columns)  # (texts * contrasts, numbers)
    solved = torch.linalg.lstsq((pulled @ pulled.T).cpu(), (pulled @ sent)[:, None].cpu(), driver="gelsd").solution
    left = (sent - solved[:, 0].to(sent) @ pulled).norm() / sent.norm()
    return attacked.samples * solved.view(len(texts), -1) @ contrasts.T, float(left)


def _pulls(
    attacked: AttackedText, text: Sequence[int], names: Sequence[str], contrasts: Tensor
) -> list[tuple[Tensor, ...]]:
    """For each contrast of logits its gradient with respect to these parameters."""
    parameters = [attacked.net.get_parameter(name) for name in names]
    with torch.enable_grad():
        logits = attacked.net(batch_of([text], [0], attacked.net).x)[0]
        return [
            torch.autograd.grad(logits @ contrast.to(logits), parameters, retain_graph=True) for contrast in contrasts.T
        ]


def zero_sums(classes: int) -> Tensor:
    """(classes, classes - 1) an orthonormal basis of signals: they add up to nothing over the classes; float64."""
    begun = torch.cat([torch.ones(classes, 1), torch.eye(classes)[:, 1:]], 1).double()
    basis: Tensor = torch.linalg.qr(begun)[0]
    return basis[:, 1:]


def times_there(weights: Tensor, many: int) -> Tensor:
    """(n,) how often each text was there, `many` in all: the heaviest once, and the heaviest again if they are too few.

    Signals of a rarer class fade later, so that twice the weight is no second time as long as there are other texts.
    """
    ranks = weights.argsort(descending=True).argsort()
    whole, rest = divmod(many, len(weights))
    return whole + (ranks < rest).long()
