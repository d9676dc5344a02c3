"""What an update alone says of the model's answers: for an adversary without the model's code and without any data.

In the last layer every sample adds its error times its features to the weight, and its error to the bias. So the change
of the weight, weighted by that of the bias, is a mean of the features of the client's own samples,

    h  =  dW^T db / |db|^2,

and softmax(W h + b) is what the model answers to them, before and after. While a model treats all inputs alike this is
as good as auxiliary data, or better, since it is of the client itself. Once a model tells classes apart it is not: then
few samples have any error left, and those are the odd ones. The larger the logits of such features, the less is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.observe.probe import ModelAnswers

_MANY = 1 << 20  # inputs behind the mean: it is of the client's own samples, not of some like them


@dataclass(frozen=True, eq=False)
class HeadChange:
    """The last layer before training, (classes, features) and (classes,), and what was sent: a change or a gradient."""

    weight: Tensor
    bias: Tensor
    weight_sent: Tensor
    bias_sent: Tensor
    is_change: bool  # else a gradient, after which there is no other model


def wire_outlook(heads: Sequence[HeadChange]) -> ModelAnswers | None:
    """One row for each head; None where some bias did not change, so that nothing can be read."""
    features = [_mean_features(head) for head in heads]
    known = [h for h in features if h is not None]
    if len(known) < len(heads):
        return None
    start = torch.stack([_answer(head.weight, head.bias, h) for head, h in zip(heads, known, strict=True)])
    reach = torch.stack([_reach(head) for head in heads])
    variance = (start * (1 - start) * COUNTS.unlike_inputs * reach[:, None]).square()
    end = None
    if all(head.is_change for head in heads):
        ends = [
            _answer(head.weight + head.weight_sent, head.bias + head.bias_sent, h)
            for head, h in zip(heads, known, strict=True)
        ]
        end = torch.stack(ends)
    return ModelAnswers(start, variance, _MANY, end=end)


def _mean_features(head: HeadChange) -> Tensor | None:
    """(features,)"""
    size = head.bias_sent.double().square().sum()
    if not 0 < float(size) < float("inf"):
        return None
    return head.weight_sent.double().flatten(1).T @ head.bias_sent.double() / size


def _answer(weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
    """(classes,) probabilities."""
    return (weight.double().flatten(1) @ features + bias.double()).softmax(0)


def _reach(head: HeadChange) -> Tensor:
    """How large logits the layer gives to single samples; about 1 in a model that was not trained yet.

    Features of either sign cancel out in the mean of them, but not in the size of the weight's change.
    """
    rows = head.weight.double().flatten(1)
    features = torch.linalg.vector_norm(head.weight_sent.double()) / torch.linalg.vector_norm(head.bias_sent.double())
    reach: Tensor = torch.linalg.vector_norm(rows - rows.mean(0)) / len(rows) ** 0.5 * features
    return reach
