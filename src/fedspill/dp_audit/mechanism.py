"""The code under audit, as far as an audit must be able to call it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedspill.dp_audit.gaussian_privacy import epsilon_of
from fedspill.errors import UsageError


@dataclass(frozen=True)
class Claim:
    """Gaussian noise of deviation `sigma` on a release that one client or record moves by the clip at most."""

    sigma: float
    clip: float
    releases: int
    delta: float = 1e-5
    replaced: bool = False  # neighbours: one replaced by another, which moves twice the clip; else added or removed
    epsilon: float | None = None  # as somebody claimed it; None: that of this noise

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and self.clip > 0 and self.releases >= 1 and 0 < self.delta < 1):
            raise UsageError(f"Expected sigma > 0, clip > 0, releases >= 1 and 0 < delta < 1, got {self}.")

    @property
    def reach(self) -> float:
        return self.clip * (2 if self.replaced else 1)

    @property
    def claimed(self) -> float:
        """Epsilon over all releases."""
        exact = epsilon_of(self.reach / self.sigma * self.releases**0.5, self.delta)
        return exact if self.epsilon is None else self.epsilon


class ClientMechanism(ABC):
    """Turns the updates of a round's clients into the noisy sum that leaves them."""

    spans: Mapping[str, slice]  # where each tensor lies in an update
    alone: bool = False  # whether every client's message leaves by itself, noise and all
    calls: int = 3000  # of `release` that an audit may make where messages leave alone, about

    @abstractmethod
    def release(self, updates: Tensor, number: int) -> Tensor:
        """(clients, numbers) in round `number` -> (numbers,) the sum, not the mean."""

    @property
    def numbers(self) -> int:
        return max(int(span.stop) for span in self.spans.values())


class RecordMechanism(ABC):
    """One step of private training: clipped gradients of records, summed, with noise."""

    @abstractmethod
    def release(self, model: nn.Module, x: Tensor, y: Tensor, number: int) -> Mapping[str, Tensor]:
        """The noisy sum, not the mean, of the clipped gradients at `model`."""
