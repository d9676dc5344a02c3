"""Guess: what an attack hands over. Each leak has one guess type, in leaks/<name>/guess.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.trace import Origin


class Guess(ABC):
    """A guess about each of its origins."""

    of: Sequence[Origin]
    notes: Sequence[str]  # what the attack assumed and which route it took, for the report

    @abstractmethod
    def check(self) -> None:
        """Raises AttackFailed unless the guess is finite and of the right shape."""


def check_scores(of: Sequence[Origin], *columns: Tensor) -> None:
    for column in columns:
        if column.shape != (len(of),) or not bool(torch.isfinite(column).all()):
            raise AttackFailed(f"Expected {len(of)} finite numbers, one for each target.")


def check_table(table: Tensor, of: Sequence[Origin], what: str) -> None:
    if table.ndim != 2 or len(table) != len(of):
        raise AttackFailed(f"Expected {what} of shape ({len(of)}, classes), got {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise AttackFailed(f"Expected finite {what}.")
