"""Progress: how far long work has got, told to whoever watches; nobody does unless a caller says so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, final

Step: TypeAlias = Callable[[int, str], None]  # how much is done, and a few words beside it


class Progress(ABC):
    """Whoever watches."""

    @abstractmethod
    def bar(self, what: str, total: int) -> AbstractContextManager[Step]:
        """A bar for work of `total` parts, to be set as the work goes on."""


@final
class Unwatched(Progress):
    """Nobody does."""

    def bar(self, what: str, total: int) -> AbstractContextManager[Step]:
        return nullcontext(lambda done, words: None)


UNWATCHED = Unwatched()
