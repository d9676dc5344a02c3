"""What rehearsals say of one update: its shares, how far off such estimates are, and whether it was like them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RehearsedShares:
    """What rehearsals say of an update."""

    shares: Tensor  # (classes,)
    counts: Tensor  # (make-believe clients, classes) of those around it
    errors: Tensor  # (make-believe clients, classes) of their estimated shares
    doubt: float  # how much larger its errors are than these, as its rounds say
    near: bool  # whether the update lies among what the make-believe clients sent

    @property
    def error(self) -> float:
        """The mean L1 distance of such estimates."""
        return float(self.errors.abs().sum(1).mean())
