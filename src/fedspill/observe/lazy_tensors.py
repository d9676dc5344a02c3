"""Tensors that are worked out when they are asked for, and not kept: nobody holds all updates of a large model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import final

from torch import Tensor


@final
class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each made by `make` whenever it is read."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def scaled(tensors: Mapping[str, Tensor], scale: float, names: Iterable[str] | None = None) -> LazyTensors:
    """`scale` times each of them, or of those named."""
    return LazyTensors(tensors if names is None else names, lambda name: scale * tensors[name].detach())


def differences(after: Mapping[str, Tensor], before: Mapping[str, Tensor], names: Iterable[str]) -> LazyTensors:
    """What was added to each of those named."""
    return LazyTensors(names, lambda name: (after[name] - before[name]).detach())
