"""Byte-pair tokens (Sennrich et al. 2016, on bytes as of GPT-2): text to numbers by a vocabulary that comes as files.

The files are those that every GPT-2 tokenizer has: the tokens with their numbers (vocab.json or encoder.json) and the
pairs in the order in which they are merged (merges.txt or vocab.bpe).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from fedspill.data.archives import first_of, read_text, refusing
from fedspill.dataset import Vocabulary
from fedspill.errors import InputRefused

VOCABULARIES, MERGES = ("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")
END = "<|endoftext|>"  # never part of a text: it fills up short ones


@dataclass(frozen=True, eq=False)
class BytePairs:
    """A tokenizer: `encode` text to token numbers, `vocabulary` to read them."""

    numbers: Mapping[str, int]  # of each token, its bytes written as printable signs
    ranks: Mapping[tuple[str, str], int]  # of each pair of tokens that is merged: the lower, the earlier
    _known: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)  # words that were met before

    @staticmethod
    def read(folder: Path) -> BytePairs:
        """The tokenizer whose two files lie in `folder`."""
        words, pairs = first_of(folder, *VOCABULARIES), first_of(folder, *MERGES)
        if words is None or pairs is None:
            missing = " or ".join(VOCABULARIES if words is None else MERGES)
            raise InputRefused(f"{folder} holds no vocabulary: expected {missing}.")
        with refusing(words, "a JSON object of tokens and their numbers"):
            numbers = json.loads(read_text(words))
            if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
                raise ValueError
            if sorted(numbers.values()) != list(range(len(numbers))):
                raise InputRefused(f"{words}: the tokens must be numbered from 0 up, each number once.")
        with refusing(pairs, "lines of two tokens"):
            lines = [line for line in read_text(pairs).splitlines() if line and not line.startswith("#version")]
            merges = [tuple(line.split(" ")) for line in lines]
            if any(len(pair) != 2 for pair in merges):
                raise ValueError
        signs = _signs()
        absent = [sign for sign in signs.values() if sign not in numbers]
        if absent:
            raise InputRefused(
                f"{words}: {len(absent)} of the 256 bytes have no token; this is no byte-pair vocabulary."
            )
        unknown = sum("".join(pair) not in numbers for pair in merges)
        if unknown:
            raise InputRefused(f"{pairs}: {unknown} merged tokens are not in {words.name}.")
        return BytePairs(numbers, {(pair[0], pair[1]): rank for rank, pair in enumerate(merges)})

    def encode(self, text: str) -> list[int]:
        """The token numbers of a text."""
        found: list[int] = []
        for word in _split(text):
            if word not in self._known:
                self._known[word] = tuple(self.numbers[piece] for piece in self._merged(word))
            found += self._known[word]
        return found

    def _merged(self, word: str) -> list[str]:
        signs = _signs()
        pieces = [signs[byte] for byte in word.encode("utf-8")]
        while len(pieces) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(pieces)]
            first = min(ranks)
            if first == len(self.ranks):
                break
            pieces = _joined(pieces, ranks, first)
        return pieces

    def vocabulary(self, marks: Sequence[str] = ()) -> Vocabulary:
        """The tokens as bytes, with `marks` behind them."""
        back = {sign: byte for byte, sign in _signs().items()}
        ordered = sorted(self.numbers, key=lambda piece: self.numbers[piece])
        pieces = [bytes(back.get(sign, 0xFF) for sign in piece) for piece in ordered]
        padding = self.numbers.get(END, len(pieces))
        pieces += [] if END in self.numbers else [END.encode()]
        places = frozenset(range(len(pieces), len(pieces) + len(marks)))
        return Vocabulary((*pieces, *(mark.encode() for mark in marks)), padding, places)


def _joined(pieces: list[str], ranks: list[int], first: int) -> list[str]:
    """The pieces with every pair of that rank joined, from the left."""
    joined, place = [], 0
    while place < len(pieces):
        pair = place < len(ranks) and ranks[place] == first
        joined.append(pieces[place] + pieces[place + 1] if pair else pieces[place])
        place += 2 if pair else 1
    return joined


@cache
def _signs() -> dict[int, str]:
    """A printable sign for each byte: itself where it is printable, else one beyond the first 256."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _pattern(odd: str = "") -> re.Pattern[str]:
    """Words with the space before them, numbers, other signs, blanks; `odd` are numbers beside the digits."""
    words = rf" ?[^\W\d_{odd}]+| ?[\d{odd}]+| ?(?:[^\s\w]|_)+"
    return re.compile(rf"'s|'t|'re|'ve|'m|'ll|'d|{words}|\s+(?!\S)|\s+")


_PLAIN = _pattern()


def _split(text: str) -> list[str]:
    """The words of a text. Python counts signs such as a half among the letters; they are numbers, as to GPT-2."""
    odd = "".join({sign for sign in text if sign > "~" and unicodedata.category(sign) in ("Nl", "No")})
    return (_pattern(odd) if odd else _PLAIN).findall(text)
