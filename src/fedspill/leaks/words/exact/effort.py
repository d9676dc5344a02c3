"""How much work may go into one message: counted in operations, so that a search ends alike on every machine."""

from __future__ import annotations

from dataclasses import dataclass

MOST_WORK = 6e13  # floating-point operations: ten minutes of one core
MOST_WORK_GPU = 2e16


@dataclass(eq=False)
class Effort:
    """What is left of it. A step that would take more is not begun, and no other one is behind it."""

    left: float

    @staticmethod
    def of(share: float, on_gpu: bool) -> Effort:
        return Effort(share * (MOST_WORK_GPU if on_gpu else MOST_WORK))

    @property
    def ended(self) -> bool:
        return self.left <= 0

    def spend(self, operations: float) -> bool:
        """Whether a step of so many operations may be taken."""
        self.left = self.left - operations if operations <= self.left else 0.0
        return not self.ended
