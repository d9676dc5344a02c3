"""ModelSpec: how a model of the zoo is described and built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self, final

import torch
from torch import nn

from fedspill.dataset import Dataset
from fedspill.errors import UsageError


class ModelSpec(ABC):
    """One architecture. Concrete: a frozen dataclass, its fields are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""

    @abstractmethod
    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """What the author writes: a freshly initialised network for inputs of `shape` and `classes` logits."""

    def takes_text(self, shape: tuple[int, ...], classes: int) -> bool:
        """Whether the network reads tokens, whole numbers, instead of measured values."""
        return False

    def fitted_to(self, dataset: Dataset) -> Self:
        """The same architecture with what it takes from the data beside shape and classes, such as a vocabulary."""
        return self

    @final
    def build(self, shape: tuple[int, ...], classes: int, *, seed: int) -> nn.Module:
        """The network of that seed; the global random state is left as it was."""
        if not shape or min(shape) < 1 or classes < 1:
            raise UsageError(f"The model {self.name!r} cannot be built for inputs {shape} and {classes} classes.")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
            return self.module(shape, classes)
