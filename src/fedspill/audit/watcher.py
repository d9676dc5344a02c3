"""Whoever wants to know how far an audit is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fedspill.audit.result_from_store import Cell
from fedspill.audit.worker_pool import Done


class Watcher(ABC):
    """Whoever wants to know how far an audit is."""

    @abstractmethod
    def say(self, text: str) -> None: ...

    @abstractmethod
    def began(self, cells: Sequence[Cell], jobs: int) -> None: ...

    @abstractmethod
    def more(self, jobs: int) -> None: ...

    @abstractmethod
    def done(self, done: Done) -> None: ...

    @abstractmethod
    def ended(self) -> None: ...


class Quiet(Watcher):
    """Wants to know nothing."""

    def say(self, text: str) -> None:
        pass

    def began(self, cells: Sequence[Cell], jobs: int) -> None:
        pass

    def more(self, jobs: int) -> None:
        pass

    def done(self, done: Done) -> None:
        pass

    def ended(self) -> None:
        pass
