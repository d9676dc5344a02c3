"""Compositions: what single local trainings say about a client's class shares, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Composition:
    """What one local training says about one client."""

    shares: Tensor  # (classes,)
    null: Tensor  # (classes,) bool
    agreement: float  # from 0 to 1: how much of what was sent the shares explain
    weight: float = 1.0  # beside the client's other rounds


def weight_of(agreement: float) -> float:
    """The weight of a round whose shares agree with what was sent by this cosine: squared signal to noise."""
    cosine = min(max(agreement, 1e-3), 1 - 1e-9)
    return (cosine**2 / (1 - cosine**2)) ** 2


def rounds_of(senders: Sequence[str], rounds: Literal["all", "single"]) -> list[list[int]]:
    """Which messages are read together: those of one sender, or each alone."""
    if rounds == "single":
        return [[index] for index in range(len(senders))]
    return [[index for index, name in enumerate(senders) if name == sender] for sender in dict.fromkeys(senders)]


def over_rounds(found: Sequence[Composition], exact: bool) -> Composition:
    """A client's rounds as one: shares by weight. A class that any round shows is there where the null test is exact
    (a true null passes in every round), else the rounds vote."""
    weights = torch.tensor([one.weight for one in found], dtype=torch.float64)
    weights = weights / weights.sum()
    shares = weights @ torch.stack([one.shares for one in found])
    absent = torch.stack([one.null for one in found])
    null = absent.all(0) if exact else weights @ absent.double() > 0.5
    return Composition(shares / shares.sum(), null, max(one.agreement for one in found), float(weights.max()))
