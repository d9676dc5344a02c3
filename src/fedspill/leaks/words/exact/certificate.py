"""Which texts are vouched for: those that, given to the model, give back what the client sent.

The head alone is not enough: a wrong order of tokens can leave a thousandth of it unexplained, and a right recovery
from rounded numbers more than that. The whole gradient tells them apart by six orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText, alike_long, batch_of, mean_gradient
from fedspill.leaks.words.exact.row_space import RowSpace, row_spaces
from fedspill.leaks.words.exact.step_labels import mean_signals, times_there

CERTAIN = 1e-4  # share of the whole gradient that a certified batch may leave unexplained (benchmarks/words.py)
# The same where float32 has rounded the update. Two words that swap places leave 5e-3 of a batch of 16.
CERTAIN_ROUNDED = 1e-3
MOST_ROUNDING = 1e-2  # share above which float32 leaves too little to be certain
_AT_ONCE = 16  # texts in one pass
_PER_SAMPLE = 4  # candidates for each text of the batch that are looked at where there were several steps


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts with their labels, a text as often as it was there, and the share of what was sent that they leave."""

    sequences: list[list[int]]
    labels: list[int]
    unexplained: float
    others: list[list[int]] = field(default_factory=list)  # that fitted the first blocks and do not explain the rest


@torch.no_grad()
def features(attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> Tensor:
    """(texts, width) what the head reads of each."""
    seen: list[Tensor] = []

    def catch(module: Any, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = attacked.net.head.register_forward_pre_hook(catch)
    order: list[int] = []
    try:
        for numbers in alike_long(sequences, _AT_ONCE):
            order += numbers
            attacked.net(batch_of([sequences[one] for one in numbers], [0] * len(numbers), attacked.net).x)
    finally:
        handle.remove()
    return torch.cat(seen)[torch.tensor(order).argsort()]


def by_head(attacked: AttackedText, candidates: Sequence[Sequence[int]]) -> Batch | None:
    """The candidates that the head's gradient is made of, with labels and numbers, by least squares.

    That gradient is the sum over samples of (probabilities - label) times features, divided by the samples.
    """
    head = attacked.gradients.get("head.weight")
    if head is None or not candidates or len(candidates) >= attacked.width:
        return None
    read = features(attacked, candidates).double()
    logits = read @ attacked.net.head.weight.detach().double().T
    if attacked.net.head.bias is not None:
        logits = logits + attacked.net.head.bias.detach().double()
    probabilities = logits.softmax(-1)
    solved = torch.linalg.lstsq(read.T.cpu(), head.double().T.cpu(), driver="gelsd").solution.to(read)
    labels = solved.argmin(1)
    expected = probabilities.gather(1, labels[:, None])[:, 0] - 1
    times = attacked.samples * solved.gather(1, labels[:, None])[:, 0] / expected
    if attacked.steps > 1:
        likeliest = times.argsort(descending=True)[: _PER_SAMPLE * attacked.samples].sort().values.tolist()
        batch = by_first_block(attacked, [candidates[place] for place in likeliest])
        if batch is not None:
            return batch
    missed = (read.T @ solved - head.double().T).norm() / head.double().norm()
    return _counted(candidates, labels, times.round().long().clamp(0, attacked.samples), float(missed))


def by_first_block(attacked: AttackedText, candidates: Sequence[Sequence[int]]) -> Batch | None:
    """The same over several steps, during which the head learns too much; see step_labels."""
    solved = mean_signals(attacked, candidates)
    if solved is None:
        return None
    signals, missed = solved
    labels = signals.argmin(1)
    times = times_there(signals.gather(1, labels[:, None])[:, 0].neg(), attacked.samples)
    return _counted(candidates, labels, times, missed)


def _counted(candidates: Sequence[Sequence[int]], labels: Tensor, times: Tensor, missed: float) -> Batch:
    """Each text with its label as often as it was there."""
    sequences: list[list[int]] = []
    chosen: list[int] = []
    for sequence, label, many in zip(candidates, labels.tolist(), times.tolist(), strict=True):
        sequences += [list(sequence)] * many
        chosen += [label] * many
    return Batch(sequences, chosen, missed)


def unexplained(attacked: AttackedText, sequences: Sequence[Sequence[int]], labels: Sequence[int]) -> float:
    """The share of everything that was sent which these texts do not explain."""
    if attacked.lr is None and not attacked.net.every_place:
        return size_of(without(attacked, sequences, labels)) / size_of(attacked)
    mine = attacked.sent_by(sequences, labels)
    left = sum(float((mine[name] - tensor).double().square().sum()) for name, tensor in attacked.gradients.items())
    return float(left**0.5) / size_of(attacked)


def without(attacked: AttackedText, sequences: Sequence[Sequence[int]], labels: Sequence[int]) -> AttackedText:
    """What is left of a classifier's message when these texts, which were part of it, are taken out."""
    mine = mean_gradient(attacked.net, batch_of(sequences, labels, attacked.net))
    share = len(sequences) / attacked.samples
    return replace(attacked, gradients={n: t - share * mine[n] for n, t in attacked.gradients.items()})


def size_of(attacked: AttackedText) -> float:
    """The length of everything that was sent."""
    return float(sum(float(tensor.double().square().sum()) for tensor in attacked.gradients.values()) ** 0.5)


def certain_below(attacked: AttackedText) -> float:
    """The share that may be left unexplained; 0 where what the client did cannot be done again."""
    if not attacked.plain or not attacked.whole or attacked.rounding > MOST_ROUNDING:
        return 0.0
    return max(CERTAIN, min(attacked.rounding, CERTAIN_ROUNDED))


@dataclass(frozen=True, eq=False)
class LastBlock:
    """The gradient of the last block's feed-forward part, in which each text of a classifier has one direction only.

    Only the token that the head reads counts there. So texts can be tested one by one, however many they are together.
    """

    space: RowSpace
    gradient: Tensor  # (4 width, width)
    judged: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # per text (classes,), what `_near` says

    @staticmethod
    def of(attacked: AttackedText) -> LastBlock | None:
        name = f"h.{len(attacked.net.h) - 1}.mlp.c_fc.weight"
        if name not in attacked.gradients or attacked.net.every_place or attacked.steps > 1:
            return None
        rows = attacked.rows_of(name.removesuffix(".weight"))
        spaces = [] if rows is None else row_spaces(rows).likely
        if not spaces or spaces[0].free < 8 or spaces[0].rank > attacked.samples:
            return None
        return LastBlock(spaces[0], attacked.gradients[name].double())

    @property
    def texts(self) -> int:
        """How many different texts there are."""
        return self.space.rank

    def ends(self, read: Tensor) -> Tensor:
        """(n,) whether a text may end where the last block's feed-forward part reads (n, width): among the rows."""
        return self.space.distance(read) < 10 * CERTAIN

    def proven(self, attacked: AttackedText, sequences: Sequence[Sequence[int]], labels: Sequence[int]) -> list[bool]:
        """Of each text and label whether taking its part away takes one direction away, and nothing else.

        That is so where its input lies among the rows, its signal among the columns, and both belong to each other
        (Wedderburn 1934): signal' G^+ input = 1, with input and signal of this text in a batch of that size. Had the
        text been there k times, it would be 1 / k: a text is vouched for once.
        """
        if not sequences:
            return []
        near = self._near(attacked, sequences)[torch.arange(len(labels)), torch.tensor(labels)]
        first = [list(one) not in map(list, sequences[:place]) for place, one in enumerate(sequences)]
        return [bool(sure) and once for sure, once in zip(near, first, strict=True)]

    def labelled(self, attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> Batch:
        """The texts that are proven with one label, and that label."""
        once = [list(one) for one in dict.fromkeys(map(tuple, sequences))]
        near = self._near(attacked, once) if once else torch.zeros(0, 1, dtype=torch.bool)
        sure = (near.sum(1) == 1).nonzero().flatten().tolist()
        return Batch([once[place] for place in sure], near[sure].long().argmax(1).tolist(), 1.0)

    def _near(self, attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> Tensor:
        """(texts, classes) whether the text with that label is proven, on the processor."""
        new = [one for one in dict.fromkeys(map(tuple, sequences)) if one not in self.judged]
        if new:
            self.judged.update(zip(new, self._judge(attacked, new), strict=True))
        return torch.stack([self.judged[tuple(one)] for one in sequences])

    def _judge(self, attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> Tensor:
        """The same of texts that were not asked for before."""
        inputs, signals = self._inputs_and_signals(attacked, sequences)
        orthogonal, small = torch.linalg.qr(self.gradient)
        turned, values, right = (part.to(small) for part in torch.linalg.svd(small.cpu()))
        rank = self.space.rank
        left, values, right = orthogonal @ turned[:, :rank], values[:rank], right[:rank]
        rows, columns = inputs @ right.T, signals @ left  # (texts, rank), (classes, texts, rank)
        off_rows = (inputs - rows @ right).norm(dim=1) / inputs.norm(dim=1)
        off_columns = (signals - columns @ left.T).norm(dim=2) / signals.norm(dim=2).clamp_min(1e-30)
        belongs = (columns * rows / values).sum(2)
        near: Tensor = (off_rows < CERTAIN) & (off_columns < 10 * CERTAIN) & ((belongs - 1).abs() < 1e-3)
        return near.T.cpu()

    def _inputs_and_signals(self, attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(texts, width) and (classes, texts, 4 width) at the token that the head reads, in float64."""
        inputs, signals, order = [], [], list[int]()
        for numbers in alike_long(sequences, _AT_ONCE):
            part = [sequences[one] for one in numbers]
            order += numbers
            place = _read_places(attacked, part)
            every, output, logits = self._read(attacked, part)
            read = every[torch.arange(len(part)), place]
            of_class = []
            for label in range(logits.shape[1]):
                given = torch.full((len(part),), label, device=logits.device)
                loss = torch.nn.functional.cross_entropy(logits, given, reduction="sum") / attacked.samples
                (signal,) = torch.autograd.grad(loss, output, retain_graph=True)
                of_class.append(signal[torch.arange(len(place)), place].double())
            inputs.append(read.detach().double())
            signals.append(torch.stack(of_class))
        back = torch.tensor(order).argsort()
        return torch.cat(inputs)[back], torch.cat(signals, 1)[:, back]

    def _read(self, attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """(texts, length, width) what the last block reads, (texts, length, 4 width) what it makes of it; logits."""
        batch = batch_of(sequences, [0] * len(sequences), attacked.net)
        caught: list[tuple[Tensor, Tensor]] = []

        def catch(module: Any, given: tuple[Tensor, ...], output: Tensor) -> None:
            caught.append((given[0], output))

        handle = attacked.last.mlp.c_fc.register_forward_hook(catch)
        try:
            logits = attacked.net(batch.x)
        finally:
            handle.remove()
        read, output = caught[0]
        return read, output, logits


def _read_places(attacked: AttackedText, sequences: Sequence[Sequence[int]]) -> Tensor:
    """(texts,) the token of each text that the head reads."""
    return torch.tensor([len(one) - 1 if attacked.net.causal else 0 for one in sequences])
