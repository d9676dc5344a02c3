"""Seconds that a search may take, reckoned from the sizes of what it computes.

A clock would end a search sooner on a slow machine, and the same seed would give other answers there. So what one core
of an ordinary machine needs is reckoned, and a search that has used it up says so.
"""

from __future__ import annotations

from dataclasses import dataclass

MULTIPLICATION = 1e-10  # seconds of one, in products of large matrices
VALUE = 2e-9  # of one value of an activation, in and out of memory a few times
THROUGH_NETWORK = 2e-5  # of one derivative through a small network that is run as it is
OUT_OF_TIME = "not all of it was read in the time given (option seconds)"


@dataclass
class TimeLeft:
    """What is left of the time; it is spent by the searches that share it."""

    seconds: float

    @property
    def is_over(self) -> bool:
        return self.seconds <= 0

    def spend(self, seconds: float) -> None:
        self.seconds -= seconds
