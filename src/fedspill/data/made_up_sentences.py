"""Generated sentences of made-up words, as frequent as words of a language: text for controls, which needs no files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from fedspill.data.texts import text_dataset
from fedspill.dataset import Dataset, DataSource, Vocabulary
from fedspill.errors import UsageError

PADDING = 0
_FEELINGS = 40  # words that lean to one side, half to each


@dataclass(frozen=True)
class MadeUpSentences(DataSource):
    """A few words of feeling among others; the label is the side they are on. Nobody wrote any of it."""

    name = "made-up-sentences"
    title = "Made-up sentences (generated)"
    paper = "fedspill"
    source = "nowhere: it is generated"

    sentences: int = 1200
    words: int = 800  # of the language
    shortest: int = 5
    longest: int = 12
    marked: bool = False  # a token for the begin and one for the end, as encoders have
    seed: int = 0

    def read(self, folder: Path) -> Dataset:
        if self.sentences < 20 or not 2 <= self.shortest <= self.longest or self.seed < 0:
            raise UsageError("Expected at least 20 sentences of at least 2 words, and a seed from 0 up.")
        if not 2 * _FEELINGS <= self.words <= len(_SYLLABLES) ** 2:
            raise UsageError(f"Expected {2 * _FEELINGS} to {len(_SYLLABLES) ** 2} words, got {self.words}.")
        rng = np.random.default_rng(self.seed)
        spelled = ["".join(pair) for pair in product(_SYLLABLES, _SYLLABLES)]
        rng.shuffle(spelled)
        marks = ["<begin>", "<end>"] if self.marked else []
        pieces = ["<padding>", *(f" {word}" for word in spelled[: self.words]), *marks]
        first_mark = self.words + 1
        vocabulary = Vocabulary(
            tuple(piece.encode() for piece in pieces), PADDING, frozenset(range(first_mark, len(pieces)))
        )
        often = 1 / np.arange(1, self.words + 1 - _FEELINGS)  # the frequencies of a language fall as the rank rises
        labels = rng.integers(2, size=self.sentences)
        sequences = []
        for label in labels:
            size = int(rng.integers(self.shortest, self.longest + 1))
            plain = 1 + _FEELINGS + rng.choice(len(often), size=size, p=often / often.sum())
            feeling = 1 + rng.integers(_FEELINGS // 2, size=size) + label * (_FEELINGS // 2)
            sentence = np.where(rng.random(size) < 0.3, feeling, plain).tolist()
            sequences.append([first_mark, *sentence, first_mark + 1] if self.marked else sentence)
        return text_dataset(
            self.name,
            ("sour", "sweet"),
            sequences,
            labels.tolist(),
            vocabulary,
            length=self.longest + len(marks),
            test_share=0.2,
            note="Generated; nobody wrote these sentences.",
        )


_SYLLABLES = [consonant + vowel for consonant, vowel in product("bdfghklmnprstvwz", "aeiou")]
