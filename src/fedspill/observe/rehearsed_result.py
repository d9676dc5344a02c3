"""What rehearsals say of one update: its shares, how far off such estimates are, and whether it was like them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

LEAST_SLOPE = 0.1  # of estimates in the truth: below it nothing was read (convention)


@dataclass(frozen=True, eq=False)
class RehearsedShares:
    """What rehearsals say of an update."""

    shares: Tensor  # (classes,)
    counts: Tensor  # (make-believe clients, classes) of those around it
    errors: Tensor  # (make-believe clients, classes) of their estimated shares
    doubt: float  # how much further apart its rounds' estimates lie than theirs
    near: bool  # whether the update lies among what the make-believe clients sent
    first_error: float = math.inf  # the mean L1 distance of the first estimate, which the centre is

    @property
    def error(self) -> float:
        """The mean L1 distance of such estimates."""
        return float(self.errors.abs().sum(1).mean())

    @cached_property
    def known(self) -> Tensor:
        """(make-believe clients, classes) their shares."""
        return self.counts.double() / self.counts.sum(1, keepdim=True)

    @cached_property
    def slope(self) -> float:
        """Of make-believe clients' estimates in what is true of them: the less is read, the nearer to their centre."""
        found = self.known + self.errors
        x, y = self.known - self.known.mean(0), found - found.mean(0)
        slope = float((x * y).sum() / (x * x).sum().clamp_min(1e-30))
        return min(max(slope, LEAST_SLOPE), 1.0)

    @cached_property
    def own_errors(self) -> Tensor:
        """(make-believe clients, classes) errors of estimates that are not drawn to a centre.

        Make-believe clients lie around a centre that says something of them. The real one does not lie around it: the
        centre was read from the very update that is read, with the same error. So it errs as the reading alone does,
        or as the centre does where little is read.
        """
        x, e = self.known - self.known.mean(0), self.errors - self.errors.mean(0)
        errors: Tensor = (e - (self.slope - 1) * x) / self.slope
        size = float(errors.abs().sum(1).mean())
        return errors * min(1.0, self.first_error / max(size, 1e-12))

    @property
    def measured(self) -> Tensor:
        """(classes,) the shares, not drawn to the centre."""
        middle = self.known.mean(0)
        found: Tensor = middle + (self.shares - middle - self.errors.mean(0)) / self.slope
        return found
