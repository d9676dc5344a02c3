"""Schedule: how a client cuts its samples into local steps."""

from __future__ import annotations

from dataclasses import dataclass

from fedspill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Schedule:
    """`epochs` passes over `samples` samples in steps of `batch_size`; the last step of a pass may be short."""

    samples: int
    batch_size: int
    epochs: int = 1

    def __post_init__(self) -> None:
        if min(self.samples, self.batch_size, self.epochs) < 1:
            raise UsageError(f"Samples, batch size and epochs must be at least 1, got {self}.")

    @property
    def full_steps(self) -> int:
        """Full steps in one pass."""
        return self.samples // self.batch_size

    @property
    def last(self) -> int:
        """Samples in the short last step of a pass; 0 if there is none."""
        return self.samples % self.batch_size

    @property
    def steps(self) -> int:
        return self.epochs * (self.full_steps + (self.last > 0))

    @property
    def per_step(self) -> int:
        """Samples in an ordinary step."""
        return min(self.batch_size, self.samples)

    def sizes(self) -> list[int]:
        """Samples of each step of one pass."""
        return [self.batch_size] * self.full_steps + ([self.last] if self.last else [])
