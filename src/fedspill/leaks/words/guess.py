"""ClientText: what an attack on text says of each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess
from fedspill.trace import Origin

NO_TOKEN = -1  # behind the end of a sequence


@final
@dataclass(frozen=True, eq=False)
class ClientText(Guess):
    """For each origin the tokens that were used, and, from attacks that read order, whole sequences of them.

    `certified` marks the sequences that the attack vouches for by something it observed, never by the truth.
    """

    of: Sequence[Origin]
    tokens: Sequence[Tensor]  # per origin (distinct tokens,) int64
    sequences: Sequence[Tensor] | None = None  # per origin (texts, longest) int64, -1 behind each; None: no order read
    certified: Sequence[Tensor] | None = None  # per origin (texts,) bool
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if len(self.tokens) != len(self.of):
            raise AttackFailed(f"Expected a set of tokens for each of {len(self.of)} origins.")
        for tokens in self.tokens:
            if not _are_tokens(tokens) or len(set(tokens.tolist())) != len(tokens):
                raise AttackFailed("Expected the tokens of an origin as whole numbers from 0 up, each once.")
        if self.sequences is None:
            return
        if self.certified is None or not len(self.sequences) == len(self.certified) == len(self.of):
            raise AttackFailed(f"Expected sequences and certificates for {len(self.of)} origins.")
        for sequences, certified in zip(self.sequences, self.certified, strict=True):
            if certified.dtype != torch.bool or certified.shape != sequences.shape[:1]:
                raise AttackFailed("Expected a mark for each sequence whether it is certified.")
            if sequences.dtype != torch.int64 or sequences.ndim != 2 or bool((sequences < NO_TOKEN).any()):
                raise AttackFailed("Expected sequences (texts, longest) of whole numbers, -1 behind each.")

    def texts(self, place: int) -> list[list[int]]:
        """The sequences of one origin, each as long as it is."""
        if self.sequences is None:
            return []
        return [[token for token in row if token != NO_TOKEN] for row in self.sequences[place].tolist()]


def stacked(sequences: Sequence[Sequence[int]]) -> Tensor:
    """(texts, longest) with -1 behind each."""
    longest = max((len(sequence) for sequence in sequences), default=0)
    rows = [[*sequence, *[NO_TOKEN] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(sequences), longest)


def _are_tokens(tokens: Tensor) -> bool:
    return tokens.dtype == torch.int64 and tokens.ndim == 1 and bool((tokens >= 0).all())
