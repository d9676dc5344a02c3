"""How a command ended."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything, without the line breaks that a narrow screen puts in."""
        return " ".join((self.out + self.err).split())


Run = Callable[..., Result]
