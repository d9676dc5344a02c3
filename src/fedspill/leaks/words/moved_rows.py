"""Which rows of a matrix moved by more than they would have without a token of theirs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import FedspillError
from fedspill.leaks.words.token_embedding import TokenEmbedding
from fedspill.messages import Message
from fedspill.observe.last_layer import is_update, schedule_of
from fedspill.trace import View
from fedspill.training import LocalTraining

_MOST_STEPS = 10_000  # that are followed; more are not believed
_ROUNDING = 2.0**-22  # of float32, with room for a sum of several terms
_FALSE_ALARMS = 0.1  # rows that pure noise may mark, on average


@dataclass(frozen=True, eq=False)
class UntouchedRows:
    """How rows move that no token touches: not at all, but for weight decay, of which the optimizer is known."""

    training: LocalTraining | None  # None: no decay, as far as is known
    start: dict[int, Tensor]  # by round, the embedding that was handed out
    batch_size: int
    epochs: int

    @staticmethod
    def known_to(view: View, embedding: TokenEmbedding) -> UntouchedRows:
        training = _decaying(view)
        start = {}
        if training is not None:
            for message in view.get("model") if view.sees("model") else []:
                rows = message.tensors.get(embedding.name)
                if rows is not None and rows.shape == embedding.shape and rows.is_floating_point():
                    start[message.round] = rows.double()
        known = {word: view.knows(word) if view.has(word) else 1 for word in ("batch_size", "local_epochs")}
        sizes = [value if type(value) is int and 1 <= value <= 1 << 31 else 1 for value in known.values()]
        return UntouchedRows(training, start, *sizes)

    def change(self, message: Message) -> Tensor:
        """(tokens, width) what weight decay alone would have sent, or a single zero where there is none."""
        start = self.start.get(message.round)
        if self.training is None or start is None or not is_update(message):
            return torch.zeros(())
        examples = message.info.get("examples")
        sound = type(examples) is int and 1 <= examples <= 1 << 31
        steps = schedule_of(message, self.batch_size, self.epochs).steps if sound else 1
        rows = start.clone().requires_grad_()
        optimizer = self.training.optimizer_for([rows])
        rows.grad = torch.zeros_like(rows)
        for _ in range(min(steps, _MOST_STEPS)):
            optimizer.step()
            rows.grad.zero_()
        return rows.detach() - start

    def rounding(self, message: Message) -> Tensor:
        """(tokens,) how far rounding alone may move a row; 0 where nothing moves it."""
        start = self.start.get(message.round)
        return torch.zeros(()) if start is None or not is_update(message) else _ROUNDING * start.norm(dim=1)


def _decaying(view: View) -> LocalTraining | None:
    """The local training, where it shrinks every weight."""
    said = view.knows("optimizer") if view.has("optimizer") else None
    lr = view.knows("local_lr") if view.has("local_lr") else None
    if not isinstance(said, dict) or not said.get("weight_decay") or not isinstance(lr, int | float):
        return None
    try:
        return LocalTraining(
            optimizer=said.get("name", "sgd"),
            lr=lr,
            momentum=said.get("momentum", 0.0),
            weight_decay=said["weight_decay"],
        )
    except FedspillError:
        return None  # a trace that makes no sense here is read as one without decay


def moved_rows(change: Tensor, rounding: Tensor) -> Tensor:
    """(k,) the rows of change (rows, width) that moved, in order.

    Where some rows stand still, all others moved. Where none does, something moves them all, noise for example: the
    median row shows how much, and rows count that noise of this size would not reach.
    """
    sizes = change.square().sum(1)
    still = sizes <= rounding.square()
    if int(still.sum()) > 1 or not len(sizes):  # one that stands still may be padding
        return (~still).nonzero().flatten()
    rows, width = change.shape
    # The tail of a sum of squares (Laurent and Massart 2000), for so many rows.
    tail = math.log(rows / _FALSE_ALARMS)
    reach = 1 + 2 * math.sqrt(tail / width) + 2 * tail / width
    return (sizes > sizes.median() * reach).nonzero().flatten()
