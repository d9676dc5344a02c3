"""How inputs lie in what the first linear layer reads: flat, or where convolutions that pass them on have put them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class InputPacking:
    """Input number i is feature places[i] less `shift`; inputs lie between `low` and `high`."""

    shape: tuple[int, ...]
    places: Tensor  # (inputs,)
    low: float
    high: float
    shift: float = 0.0

    @staticmethod
    def flat(known: Tensor) -> InputPacking:
        """Inputs as they are, of the kind of `known` (n, *shape)."""
        shape = tuple(known.shape[1:])
        return InputPacking(shape, torch.arange(prod(shape)), float(known.min()), float(known.max()))

    def unpack(self, features: Tensor) -> Tensor:
        """(n, *shape) inputs in features (n, features)."""
        return (features[:, self.places] - self.shift).reshape(len(features), *self.shape)
