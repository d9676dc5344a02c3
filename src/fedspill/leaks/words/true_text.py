"""The text that a message came from, what others wrote, and how far a guessed text agrees with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspill.dataset import Vocabulary
from fedspill.errors import NotScored
from fedspill.leaks.words.language_model import LanguageModel
from fedspill.seeds import generator
from fedspill.trace import Origin, Truth

_WORD = re.compile(r"[a-z0-9]+")  # what ROUGE counts as a word
_MOST_HEARD = 1000  # texts that the language model counts in


# Several metrics ask for the same, and what guessing gets takes a second: it is kept as long as the truth is.
_KNOWN: WeakKeyDictionary[Truth, dict[Origin, TrueText]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class TrueText:
    """What an origin trained on, and what can be guessed of it from all that the clients hold beside it."""

    sequences: list[list[int]]
    others: list[list[int]]  # as many sequences that it did not train on, drawn at random
    commonest: set[int]  # as many tokens as were used, the commonest of the others' texts
    likely: list[list[int]]  # as many texts, as a language model of the others' texts writes them
    silent: frozenset[int]  # padding and marks
    vocabulary: Vocabulary | None

    @staticmethod
    def of(origin: Origin, truth: Truth) -> TrueText:
        known = _KNOWN.setdefault(truth, {})
        if origin not in known:
            known[origin] = _read(origin, truth)
        return known[origin]

    @property
    def tokens(self) -> set[int]:
        return {token for sequence in self.sequences for token in sequence}

    def shown(self, sequence: Sequence[int]) -> str:
        """What a person reads; without a vocabulary the numbers of the tokens."""
        return " ".join(map(str, sequence)) if self.vocabulary is None else self.vocabulary.text(sequence).strip()

    def units(self, sequence: Sequence[int]) -> list[Hashable]:
        """The words of a sequence as ROUGE counts them; without a vocabulary its tokens."""
        if self.vocabulary is None:
            return list(sequence)
        return list(_WORD.findall(self.vocabulary.text(sequence).lower()))


def _read(origin: Origin, truth: Truth) -> TrueText:
    if not truth.has(origin, "inputs"):
        raise NotScored(f"nothing is known of the texts of {origin.sender} in round {origin.round}")
    x = truth.get(origin, "inputs")
    if x.is_floating_point() or x.ndim != 2:
        raise NotScored("the inputs are no text: tokens are whole numbers (int64), a row of them for each text")
    vocabulary = truth.clients[0].vocabulary if len(truth.clients) else None
    if vocabulary is not None:
        silent = vocabulary.marks | {vocabulary.padding}
    else:
        silent = _filling(torch.cat([client.x.cpu() for client in truth.clients]) if len(truth.clients) else x)
    pool = _others(origin, truth) if len(truth.clients) else x[:0]
    sequences = [spoken(row, silent) for row in x.tolist()]
    used = len({token for sequence in sequences for token in sequence})
    rng = generator(0, "other texts", *origin)
    drawn = torch.randint(len(pool), (len(x),), generator=rng) if len(pool) else torch.zeros(0, dtype=torch.int64)
    heard = [spoken(row, silent) for row in pool[torch.randperm(len(pool), generator=rng)[:_MOST_HEARD]].tolist()]
    return TrueText(
        sequences,
        [spoken(row, silent) for row in pool[drawn].tolist()],
        _commonest(pool, silent, used) if len(pool) else _any_tokens(x, vocabulary, silent, used, rng),
        LanguageModel.of(heard).texts(len(sequences)),
        silent,
        vocabulary,
    )


def _filling(x: Tensor) -> frozenset[int]:
    """Padding of texts (n, length) where nothing names it: in runs at their ends, or beginnings, and nowhere else."""
    for sided in (x, x.flip(1)) if x.shape[1] > 1 else ():
        runs = sided[sided[:, -1] == sided[:, -2], -1]
        if len(runs):
            there = sided == runs.mode().values
            if torch.equal(there.sum(1), there.flip(1).long().cumprod(1).sum(1)):
                return frozenset([int(runs.mode().values)])
    return frozenset()


def _commonest(pool: Tensor, silent: frozenset[int], many: int) -> set[int]:
    """The tokens that are used most often in the texts of pool (n, length)."""
    frequency = torch.bincount(pool.flatten(), minlength=1)
    frequency[sorted(silent & set(range(len(frequency))))] = 0
    return set(frequency.topk(min(many, int((frequency > 0).sum()))).indices.tolist())


def _any_tokens(
    x: Tensor, vocabulary: Vocabulary | None, silent: frozenset[int], many: int, rng: torch.Generator
) -> set[int]:
    """As many tokens drawn from all there are: what is left to guess by where nobody holds other texts."""
    size = len(vocabulary) if vocabulary is not None and len(vocabulary) else int(x.max()) + 1
    drawn = torch.randperm(size, generator=rng)[: many + len(silent)].tolist()
    return set([token for token in drawn if token not in silent][:many])


def _others(origin: Origin, truth: Truth) -> Tensor:
    """(n, length) all texts of all clients but those that the origin trained on."""
    used = truth.facts.get((origin, "used_samples"), torch.zeros(0, 2, dtype=torch.int64))
    kept = []
    for number, client in enumerate(truth.clients):
        other = torch.ones(len(client), dtype=torch.bool)
        other[used[used[:, 0] == number, 1]] = False
        kept.append(client.x.cpu()[other])
    return torch.cat(kept)


def spoken(sequence: Sequence[int], silent: frozenset[int]) -> list[int]:
    return [token for token in sequence if token not in silent]


def rouge(guessed: Sequence[Hashable], real: Sequence[Hashable], size: int) -> float:
    """F1 of common runs of `size` words (Lin 2004)."""
    found, wanted = (Counter(zip(*(words[i:] for i in range(size)), strict=False)) for words in (guessed, real))
    if not found or not wanted:
        return float(list(guessed) == list(real))
    return 2 * (found & wanted).total() / (found.total() + wanted.total())


def best_matches(guessed: Sequence[Sequence[Hashable]], real: Sequence[Sequence[Hashable]]) -> list[tuple[int, int]]:
    """Which real sequence is held against which guess, so that they suit each other best by single words."""
    table = torch.tensor([[rouge(one, other, 1) for one in guessed] for other in real], dtype=torch.float64)
    rows, columns = linear_sum_assignment(-table.numpy())
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def mean_rouge(guessed: Sequence[Sequence[Hashable]], real: Sequence[Sequence[Hashable]], size: int) -> float:
    """Over the real sequences, each beside the guess that suits it best by single words; without one it counts 0."""
    if not guessed or not real:
        return 0.0
    return sum(rouge(guessed[j], real[i], size) for i, j in best_matches(guessed, real)) / len(real)


def share_exact(guessed: Sequence[Sequence[int]], real: Sequence[Sequence[int]]) -> float:
    """Share of the real sequences that were guessed token by token, each guess used once."""
    common = Counter(map(tuple, guessed)) & Counter(map(tuple, real))
    return common.total() / max(1, len(real))
