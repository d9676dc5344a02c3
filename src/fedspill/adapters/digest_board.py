"""Where clients publish digests of the models they were handed: others read them, the server cannot write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

_LENGTH = 64  # of a digest


class Board(ABC):
    """Where clients publish digests and read those of others. Written once for each client and round."""

    @abstractmethod
    def publish(self, number: int, client: int | str, digest: str) -> None: ...

    @abstractmethod
    def others(self, number: int, client: int | str) -> list[str]:
        """The digests that other clients published for that round."""


@final
@dataclass(frozen=True)
class FolderBoard(Board):
    """A folder that all clients share, a file for each client and round."""

    folder: Path | str

    def publish(self, number: int, client: int | str, digest: str) -> None:
        place = self._place(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / _file(client)).write_text(digest, encoding="ascii")

    def others(self, number: int, client: int | str) -> list[str]:
        return [digest for name, digest in self._read(number) if name != _file(client)]

    def _place(self, number: int) -> Path:
        return Path(self.folder) / f"round-{number}"

    def _read(self, number: int) -> Iterator[tuple[str, str]]:
        place = self._place(number)
        for file in sorted(place.iterdir()) if place.is_dir() else ():
            with file.open("rb") as stream:
                digest = stream.read(_LENGTH + 1)
            if len(digest) == _LENGTH:  # one that is still being written is read the next time
                yield file.name, digest.decode("ascii", "replace")


def _file(client: int | str) -> str:
    """A client's name as that of a file."""
    return "".join(letter if letter.isalnum() or letter in "-_" else f"%{ord(letter):x}" for letter in str(client))
