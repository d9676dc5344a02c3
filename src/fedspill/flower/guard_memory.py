"""What a client's guard remembers from one message to the next, in Flower's own state and, if asked for, on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

from flwr.app import Context, MetricRecord
from torch import Tensor

from fedspill.errors import FedspillError
from fedspill.files import read_tensors, write_tensors
from fedspill.flower.arrays import array_record, tensors_of
from fedspill.messages import SERVER, Message, client


@final
class GuardMemory:
    """The model last trained on, the number of rounds so far, and what the defenses asked to be remembered.

    Flower carries `context.state` from message to message, whichever process trains: a simulation's actor or a
    SuperNode's child. A SuperNode that is started again begins with an empty state, so what must outlive it is also
    written to `folder`.
    """

    def __init__(self, context: Context, name: str, folder: Path | None) -> None:
        self._context = context
        self._model_key = f"fedspill.{name}.model"
        self._count_key = f"fedspill.{name}.rounds"
        self._notes_prefix = f"fedspill.{name}.notes."
        part = context.node_config.get("partition-id")
        file = f"{name}-{context.run_id}{'' if part is None else f'-{int(part)}'}"
        self._file = None if folder is None else folder / f"{file}.safetensors"
        self._load()

    def rounds_trained(self) -> int:
        """Training rounds that this client took part in before."""
        records = self._context.state.metric_records
        return int(records[self._count_key]["rounds"]) if self._count_key in records else 0  # type: ignore[arg-type]

    def previous_model(self) -> Message | None:
        """The model that this client last trained on."""
        records = self._context.state.array_records
        if self._model_key not in records:
            return None
        return Message(self.rounds_trained() - 1, SERVER, client(0), "model", tensors_of(records[self._model_key]))

    def notes_of(self, place: int) -> Mapping[str, Tensor]:
        """What the defense at that place of the list remembers."""
        records = self._context.state.array_records
        key = f"{self._notes_prefix}{place}"
        return tensors_of(records[key]) if key in records else {}

    def keep_notes(self, notes: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Keeps them in Flower's state at once, and on disk together with the next model that is remembered."""
        for place, tensors in notes.items():
            self._context.state[f"{self._notes_prefix}{place}"] = array_record(tensors)

    def _all_notes(self) -> dict[str, Tensor]:
        records = self._context.state.array_records
        places = [key.removeprefix(self._notes_prefix) for key in records if key.startswith(self._notes_prefix)]
        found = {place: tensors_of(records[f"{self._notes_prefix}{place}"]) for place in places}
        return {f"~{place}/{name}": tensor for place, of_one in found.items() for name, tensor in of_one.items()}

    def remember(self, rounds: int, model: Message | None) -> None:
        """Notes the number of rounds and, where a defense will compare it with the next one, the model."""
        self._context.state[self._count_key] = MetricRecord({"rounds": rounds})
        if model is None:
            return
        self._context.state[self._model_key] = array_record(model.tensors)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = {**model.tensors, **self._all_notes()}
            write_tensors(self._file, {f"{rounds}/{name}": tensor for name, tensor in kept.items()})

    def _load(self) -> None:
        """Takes over from disk what Flower's state lost with the SuperNode."""
        if self._file is None or self._model_key in self._context.state.array_records or not self._file.is_file():
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
        self.keep_notes(notes)
        self._context.state[self._model_key] = array_record(tensors)
        self._context.state[self._count_key] = MetricRecord({"rounds": rounds})
