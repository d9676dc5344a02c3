"""What a site's guard remembers from one round to the next: while its process lives, and on disk if asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

from torch import Tensor

from fedspill.errors import FedspillError
from fedspill.files import read_tensors, write_tensors
from fedspill.messages import SERVER, Message
from fedspill.plain_text import one_line
from fedspill.round_recorder import address_of


@final
class SiteMemory:
    """The model last trained on, the number of rounds so far, and what the defenses asked to be remembered."""

    def __init__(self, belongs_to: tuple[str, str], folder: Path | None, name: str) -> None:
        self.belongs_to = belongs_to  # site and job
        file = "".join(c if c.isalnum() or c in "-_." else "_" for c in one_line("-".join((name, *belongs_to))))
        self._file = None if folder is None else folder / f"{file[:200]}.safetensors"
        self.rounds = 0
        self.model: Message | None = None
        self._notes: dict[int, Mapping[str, Tensor]] = {}
        if self._file is not None and self._file.is_file():
            self._load(self._file)

    def notes_of(self, place: int) -> Mapping[str, Tensor]:
        """What the defense at that place of the list remembers."""
        return self._notes.get(place, {})

    def keep_notes(self, notes: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Keeps them at once, and on disk together with the next model that is remembered."""
        self._notes |= notes

    def remember(self, rounds: int, model: Message) -> None:
        self.rounds, self.model = rounds, model
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        notes = {f"~{place}/{name}": t for place, of_one in self._notes.items() for name, t in of_one.items()}
        kept = {**model.tensors, **notes}
        write_tensors(self._file, {f"{rounds}/{name}": tensor for name, tensor in kept.items()})

    def _load(self, file: Path) -> None:
        stored = read_tensors(file)
        if not stored:
            raise FedspillError(f"{file} is empty.")
        self.rounds = int(next(iter(stored)).partition("/")[0])
        tensors = {key.partition("/")[2]: tensor for key, tensor in stored.items()}
        for name in [name for name in tensors if name.startswith("~")]:
            place, _, key = name.removeprefix("~").partition("/")
            self._notes[int(place)] = {**self._notes.get(int(place), {}), key: tensors.pop(name)}
        self.model = Message(self.rounds - 1, SERVER, address_of(self.belongs_to[0]), "model", tensors)
