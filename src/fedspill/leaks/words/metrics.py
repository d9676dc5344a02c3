"""Metrics of text: tokens found, their precision and recall, ROUGE, exact sequences, and certificates held to account.

Chance is what the others' texts give to someone who saw no message: their commonest tokens, texts of theirs drawn at
random, or the texts that a language model of theirs writes, whichever is better. That is more than an outsider has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence, Texts
from fedspill.intervals import SHARE, Proof, Scale
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.true_text import TrueText, best_matches, mean_rouge, share_exact, spoken
from fedspill.metric import Measured, Metric, clusters_of
from fedspill.trace import Truth

SHOWN = 8  # texts in a report, with --show-data only


class OfTokens(Metric[ClientText], ABC):
    """A share of tokens, whatever their order."""

    guesses = ClientText
    perfect: ClassVar[float] = 1.0

    @abstractmethod
    def out_of(self, guessed: int, real: int) -> int:
        """How many tokens the right ones are held against."""

    def measure(self, guess: ClientText, truth: Truth) -> Measured:
        values, by_frequency, by_model, trials = [], [], [], []
        for origin, tokens in zip(guess.of, guess.tokens, strict=True):
            text = TrueText.of(origin, truth)
            found = set(tokens.tolist()) - text.silent
            values.append(self._share(found, text.tokens))
            by_frequency.append(self._share(text.commonest, text.tokens))
            by_model.append(self._share({token for one in text.likely for token in one}, text.tokens))
            trials.append(max(1, self.out_of(len(found), len(text.tokens))))
        chance = _better(by_frequency, by_model)
        return Measured(_shares(values), chance, torch.tensor(trials), *clusters_of(guess.of))

    def _share(self, found: set[int], real: set[int]) -> float:
        return len(found & real) / max(1, self.out_of(len(found), len(real)))


@final
@dataclass(frozen=True)
class WordsFound(OfTokens):
    """Share of a client's distinct tokens that were named; of more names than tokens, the surplus counts against it."""

    name: ClassVar[str] = "words-found"
    title: ClassVar[str] = "Words of a client found"

    def out_of(self, guessed: int, real: int) -> int:
        return max(guessed, real)

    def measure(self, guess: ClientText, truth: Truth) -> Measured:
        return replace(super().measure(guess, truth), proof=_proof(guess, truth))

    def evidence(self, guess: ClientText, truth: Truth, *, private: bool) -> list[Evidence]:
        """What one client wrote, and what was read of it: whole texts, or the words of them that were named."""
        if not private or not len(guess.of):
            return []
        text = TrueText.of(guess.of[0], truth)
        written = text.sequences[:SHOWN]
        named, sure = set(guess.tokens[0].tolist()), [False] * len(written)
        read = [[token if token in named else None for token in one] for one in written]
        shown = [" ".join("..." if token is None else text.shown([token]) for token in one) for one in read]
        if written and guess.certified is not None and guess.texts(0):
            texts = [spoken(one, text.silent) for one in guess.texts(0)]
            for row, column in best_matches(texts, written):
                shown[row], sure[row] = text.shown(texts[column]), bool(guess.certified[0][column])
        return [
            Texts("Texts of one client and what was read of them", True, list(map(text.shown, written)), shown, sure)
        ]


@final
@dataclass(frozen=True)
class TokenPrecision(OfTokens):
    """Share of the tokens named that the client used."""

    name: ClassVar[str] = "token-precision"
    title: ClassVar[str] = "Named words that were used"

    def out_of(self, guessed: int, real: int) -> int:
        return guessed


@final
@dataclass(frozen=True)
class TokenRecall(OfTokens):
    """Share of the client's distinct tokens that were named."""

    name: ClassVar[str] = "token-recall"
    title: ClassVar[str] = "Used words that were named"

    def out_of(self, guessed: int, real: int) -> int:
        return real


class OfSequences(Metric[ClientText], ABC):
    """A value of sequences in their order; of an attack that reads none it is not scored."""

    guesses = ClientText
    perfect: ClassVar[float] = 1.0

    @abstractmethod
    def value(self, guessed: list[list[int]], text: TrueText) -> float:
        """What these sequences are worth, from 0 to 1."""

    def measure(self, guess: ClientText, truth: Truth) -> Measured:
        if guess.sequences is None:
            raise NotScored("the attack reads words, not their order")
        values, by_others, by_model = [], [], []
        for place, origin in enumerate(guess.of):
            text = TrueText.of(origin, truth)
            guessed = [spoken(sequence, text.silent) for sequence in guess.texts(place)]
            values.append(self.value(guessed, text))
            by_others.append(self.value(text.others, text))
            by_model.append(self.value(text.likely, text))
        return Measured(_shares(values), _better(by_others, by_model), None, *clusters_of(guess.of))

    def scale(self, measured: Measured) -> Scale | None:
        return SHARE


class Rouge(OfSequences, ABC):
    """Lin, ROUGE, 2004: F1 of common runs of words, each text beside its best guess."""

    size: ClassVar[int]

    def value(self, guessed: list[list[int]], text: TrueText) -> float:
        return mean_rouge([text.units(one) for one in guessed], [text.units(one) for one in text.sequences], self.size)


@final
@dataclass(frozen=True)
class Rouge1(Rouge):
    """Common words."""

    name: ClassVar[str] = "rouge-1"
    title: ClassVar[str] = "Common words of texts, ROUGE-1"
    paper: ClassVar[str] = "Lin, ROUGE, 2004"
    size = 1


@final
@dataclass(frozen=True)
class Rouge2(Rouge):
    """Common pairs of neighbouring words."""

    name: ClassVar[str] = "rouge-2"
    title: ClassVar[str] = "Common pairs of words, ROUGE-2"
    paper: ClassVar[str] = "Lin, ROUGE, 2004"
    size = 2


@final
@dataclass(frozen=True)
class ExactSequences(OfSequences):
    """Share of a client's texts that came back token by token."""

    name: ClassVar[str] = "exact-sequences"
    title: ClassVar[str] = "Texts rebuilt word for word"

    def value(self, guessed: list[list[int]], text: TrueText) -> float:
        return share_exact(guessed, text.sequences)


@final
@dataclass(frozen=True)
class CertifiedSequences(Metric[ClientText]):
    """Share of the sequences that the attack vouches for which are right; chance is that of all that it returned."""

    name: ClassVar[str] = "certified-sequences"
    title: ClassVar[str] = "Certified texts that are right"
    guesses = ClientText
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: ClientText, truth: Truth) -> Measured:
        values, chance, trials, of = [], [], [], []
        for place, origin in enumerate(guess.of):
            right, certified = _right(guess, place, truth)
            if any(certified):
                vouched = [good for good, sure in zip(right, certified, strict=True) if sure]
                values.append(sum(vouched) / len(vouched))
                chance.append(sum(right) / len(right))
                trials.append(len(vouched))
                of.append(origin)
        if not of:
            raise NotScored("the attack vouches for no text")
        return Measured(_shares(values), _shares(chance), torch.tensor(trials), *clusters_of(of))


def _better(*ways: list[float]) -> Tensor:
    """Of several ways of guessing the one that is better over all origins: nobody could choose for each of them."""
    return max(map(_shares, ways), key=lambda values: float(values.mean()) if len(values) else 0.0)


def _shares(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _right(guess: ClientText, place: int, truth: Truth) -> tuple[list[bool], list[bool]]:
    """Of each sequence of one origin: whether it is one of the client's, and whether the attack vouches for it."""
    if guess.sequences is None or guess.certified is None:
        return [], []
    text = TrueText.of(guess.of[place], truth)
    left = list(map(tuple, text.sequences))
    right = []
    for sequence in guess.texts(place):
        said = tuple(spoken(sequence, text.silent))
        right.append(said in left)
        if right[-1]:
            left.remove(said)
    return right, guess.certified[place].tolist()


def _proof(guess: ClientText, truth: Truth) -> Proof | None:
    """How many texts the attack vouches for and has right, and how many it has wrong."""
    if guess.sequences is None:
        return None
    proven = refuted = total = 0
    for place, origin in enumerate(guess.of):
        total += len(TrueText.of(origin, truth).sequences)
        for right, sure in zip(*_right(guess, place, truth), strict=True):
            proven += right and sure
            refuted += sure and not right
    return Proof(proven, total, refuted)
