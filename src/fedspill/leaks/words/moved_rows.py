"""Which rows of a matrix moved by more than they would have without a token of theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
_FITTED = 0.3  # share of the rows that must be without a token for what these have in common to be found
_ROUNDS = 6  # of fitting; the rows that fit best hardly change after the third
_PER_UNKNOWN = 4  # rows for each number that is fitted
_WIDEST = 256  # of an embedding for which the fit that knows it is worth its time
# Of rows of noise the median is above the lower quartile by 0.48 / sqrt(width), as logarithms of sizes.
_AS_NOISE = 1.5
_BORDERS = (0.5, 0.7, 0.9, 0.97)  # shares of the rows that are first taken for the smaller kind
_BELL_ROUNDS = 60
_NARROWEST = 1e-4
_APART = math.log(2)  # neighbours in size of rows of noise are never that far apart where rows are some dozens


@dataclass(frozen=True, eq=False)
class UntouchedRows:
    """How rows move that no token touches: not at all, but for weight decay, of which the optimizer is known."""

    training: LocalTraining | None  # None: no decay, as far as is known
    start: dict[int, Tensor]  # by round, the embedding that was handed out, where the adversary sees it
    batch_size: int
    epochs: int

    @staticmethod
    def known_to(view: View, embedding: TokenEmbedding) -> UntouchedRows:
        training = _decaying(view)
        start = {}
        for message in view.get("model") if view.sees("model") else []:
            rows = embedding.rows_in(message)
            if rows is not None:
                start[message.round] = rows
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
        if self.training is None or start is None or not is_update(message):
            return torch.zeros(())
        allowed: Tensor = _ROUNDING * start.norm(dim=1)
        return allowed


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


def moved_rows(change: Tensor, rounding: Tensor, start: Tensor | None = None) -> Tensor:
    """(k,) the rows of change (rows, width) that moved, in order.

    Where some rows stand still, all others moved. Where none does, something moves them all. A head that shares the
    embedding's weights moves all rows alike, so that those with a token stand apart from the rest; if it is sure of
    what it predicts, less alike, and there are two kinds of rows by size. Noise leaves no gap: there the median row
    shows how much it moves, and rows count that noise of this size would not reach. `start` are the rows before.
    """
    sizes = change.square().sum(1)
    still = sizes <= rounding.square()
    if int(still.sum()) > 1 or not len(sizes):  # one that stands still may be padding
        return (~still).nonzero().flatten()
    gap, apart = max(
        (_behind_the_gap(far) for far in _distances_from_common(change, start)), key=lambda found: found[0]
    )
    if gap > _APART:
        return apart
    rows, width = change.shape
    logs = sizes.clamp_min(1e-300).log() / 2
    if float(logs.quantile(0.5) - logs.quantile(0.25)) > _AS_NOISE / math.sqrt(width):
        return (_larger_kind(logs) > 0.5).nonzero().flatten()
    # The tail of a sum of squares (Laurent and Massart 2000), for so many rows.
    tail = math.log(rows / _FALSE_ALARMS)
    reach = 1 + 2 * math.sqrt(tail / width) + 2 * tail / width
    return (sizes > sizes.median() * reach).nonzero().flatten()


def _larger_kind(logs: Tensor) -> Tensor:
    """(rows,) how likely each row is of the larger kind: two bells are fitted to sizes, from several first borders."""
    best = (-math.inf, torch.zeros_like(logs))
    for border in _BORDERS:
        larger = (logs > logs.quantile(border)).to(logs)
        total = -math.inf
        for _ in range(_BELL_ROUNDS):
            weights = torch.stack([1 - larger, larger]) + 1e-9
            many = weights.sum(1, keepdim=True)
            middle = (weights * logs).sum(1, keepdim=True) / many
            spread = (weights * (logs - middle).square()).sum(1, keepdim=True) / many + _NARROWEST
            likely = (many / len(logs)).log() - spread.log() / 2 - (logs - middle).square() / (2 * spread)
            larger = (likely[1] - likely.logsumexp(0)).exp()
            total = float(likely.logsumexp(0).sum())
        best = max(best, (total, larger), key=lambda fitted: fitted[0])
    return best[1]


def _distances_from_common(change: Tensor, start: Tensor | None) -> Iterator[Tensor]:
    """(rows,) how far each row is from what rows without a token have in common.

    Where the head shares the embedding, such a row moves by the sum over places of its probability there times what the
    head reads. Before the model has learnt much, the probabilities of a token are a constant and a linear function of
    its embedding, and so is what its row moves by. It is fitted to the rows that it suits best.
    """
    yield _fitted(change, torch.ones(len(change), 1).to(change))
    if start is not None and start.isfinite().all() and 1 + start.shape[1] <= min(_WIDEST, _FITTED * len(change) / 2):
        yield _fitted(change, torch.cat([torch.ones(len(start), 1), start.cpu()], 1).to(change))


def _fitted(change: Tensor, known: Tensor) -> Tensor:
    """(rows,) distances of change (rows, width) from a linear function of known (rows, k) that suits the nearest."""
    far: Tensor = (change - change.median(0).values).norm(dim=1)
    most = max(1, int(_FITTED * len(change)))
    for _ in range(_ROUNDS):
        nearest = far.argsort()[:most]
        nearest = nearest[:: max(1, most // (_PER_UNKNOWN * known.shape[1] + 100))]
        function = torch.linalg.lstsq(known[nearest].cpu(), change[nearest].cpu(), driver="gelsd").solution
        far = (change - known @ function.to(change)).norm(dim=1)
    return far


def _behind_the_gap(far: Tensor) -> tuple[float, Tensor]:
    """The widest gap in size, as a logarithm, and (k,) the rows behind it in order; a single row may be padding."""
    sizes = far.clamp_min(1e-300).log()
    ordered = sizes.sort().values
    first = int(_FITTED * len(far)) // 2
    gaps = (ordered[first + 1 :] - ordered[first:-1])[:-1]
    if not len(gaps):
        return 0.0, far.new_zeros(0, dtype=torch.int64)
    widest = int(gaps.argmax())
    return float(gaps[widest]), (sizes > ordered[first + widest]).nonzero().flatten()
