"""What a client's guard remembers from one message to the next, in Flower's own state and, if asked for, on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

from flwr.app import Context, MetricRecord
from torch import Tensor

from fedspill.errors import FedspillError
from fedspill.files import read_tensors, write_tensors
from fedspill.flower.arrays import as_record, tensors_of
from fedspill.messages import SERVER, Message, client


@final
class Memory:
    """The model last trained on, the number of rounds so far, and what the defenses asked to be remembered.

    Flower carries `context.state` from message to message, whichever process trains: a simulation's actor or a
    SuperNode's child. A SuperNode that is started anew begins with an empty state; the folder is for that.
    """

    def __init__(self, context: Context, name: str, folder: Path | None) -> None:
        self._context = context
        self._model = f"fedspill.{name}.model"
        self._count = f"fedspill.{name}.rounds"
        self._notes = f"fedspill.{name}.notes."
        part = context.node_config.get("partition-id")
        file = f"{name}-{context.run_id}{'' if part is None else f'-{int(part)}'}"
        self._file = None if folder is None else folder / f"{file}.safetensors"
        self._load()

    def rounds(self) -> int:
        """Training rounds that this client took part in before."""
        records = self._context.state.metric_records
        return int(records[self._count]["rounds"]) if self._count in records else 0  # type: ignore[arg-type]

    def previous(self) -> Message | None:
        records = self._context.state.array_records
        if self._model not in records:
            return None
        return Message(self.rounds() - 1, SERVER, client(0), "model", tensors_of(records[self._model]))

    def notes(self, place: int) -> Mapping[str, Tensor]:
        """What the defense at that place of the list remembers."""
        records = self._context.state.array_records
        key = f"{self._notes}{place}"
        return tensors_of(records[key]) if key in records else {}

    def note(self, notes: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Kept at once in Flower's state; on disk with the next model that is remembered."""
        for place, tensors in notes.items():
            self._context.state[f"{self._notes}{place}"] = as_record(tensors)

    def _all_notes(self) -> dict[str, Tensor]:
        records = self._context.state.array_records
        places = [key.removeprefix(self._notes) for key in records if key.startswith(self._notes)]
        found = {place: tensors_of(records[f"{self._notes}{place}"]) for place in places}
        return {f"~{place}/{name}": tensor for place, of_one in found.items() for name, tensor in of_one.items()}

    def remember(self, rounds: int, model: Message | None) -> None:
        """`model` where it will be needed again, else None."""
        self._context.state[self._count] = MetricRecord({"rounds": rounds})
        if model is None:
            return
        self._context.state[self._model] = as_record(model.tensors)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = {**model.tensors, **self._all_notes()}
            write_tensors(self._file, {f"{rounds}/{name}": tensor for name, tensor in kept.items()})

    def _load(self) -> None:
        """From disk, where Flower's state is empty and the folder is not."""
        if self._file is None or self._model in self._context.state.array_records or not self._file.is_file():
            return
        stored = read_tensors(self._file)
        if not stored:
            raise FedspillError(f"{self._file} is empty.")
        rounds = int(next(iter(stored)).partition("/")[0])
        tensors = {key.partition("/")[2]: tensor for key, tensor in stored.items()}
        notes: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in tensors if name.startswith("~")]:
            place, _, key = name.removeprefix("~").partition("/")
            notes.setdefault(int(place), {})[key] = tensors.pop(name)
        self.note(notes)
        self._context.state[self._model] = as_record(tensors)
        self._context.state[self._count] = MetricRecord({"rounds": rounds})
