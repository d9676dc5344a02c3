"""record_round: a recording of any training loop: what was handed out each round, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import torch
from torch import Tensor

from fedspill.errors import UsageError
from fedspill.federation.horizontal import Weighting
from fedspill.federation.weighted_sum import weighted_sum
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message
from fedspill.trace import Origin
from fedspill.trace_folder import FolderRecorder

Returned = Mapping[str, Tensor] | tuple[Mapping[str, Tensor], int]


@final
class record_round:
    """`with record_round("folder", lr=0.1, batch_size=16) as recorder: recorder(round, model_state, client_states)`.

    lr, batch_size, local_epochs, optimizer   how clients train, for attacks that need to know it
    head        the last linear layer ("fc3"), or its weight; the last two-dimensional tensor where it is not named
    """

    def __init__(
        self,
        to: Path | str,
        *,
        lr: float | None = None,
        batch_size: int | None = None,
        local_epochs: int = 1,
        optimizer: str = "sgd",
        weighting: Weighting = "examples",
        head: str | None = None,
    ) -> None:
        self._to, self._head, self._weighting = Path(to), head, weighting
        self._stated = {"batch_size": batch_size, "local_lr": lr, "local_epochs": local_epochs, "optimizer": optimizer}
        self._recorder: FolderRecorder | None = None

    def __call__(
        self,
        number: int,
        model: Mapping[str, Tensor],
        clients: Mapping[int | str, Returned],
        *,
        labels: Mapping[int | str, Tensor] | None = None,
    ) -> None:
        """One round: the state handed out, and for each client its state after training, or (state, examples).

        labels  what each client trained on, (samples,) whole numbers, where it is known: then attacks are scored
        """
        start = {name: tensor.detach().cpu().clone() for name, tensor in model.items()}
        if self._recorder is None:
            self._recorder = FolderRecorder(self._to, self._protocol(start, len(clients)))
        recorder = self._recorder
        recorder.say(Message(number, SERVER, EVERYONE, "model", start))
        updates = [self._update(number, address_of(name), start, came) for name, came in clients.items()]
        for update in updates:
            recorder.say(update)
        if updates:
            recorder.say(self._sum(number, updates))
        classes = self._protocol(start, 0)["classes"]
        for name, own in (labels or {}).items():
            counts = torch.bincount(torch.as_tensor(own).long().cpu(), minlength=classes or 0)
            recorder.note_truth(Origin(number, address_of(name)), "label_counts", counts)
        recorder.end_round(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # a loop that broke leaves an unfinished recording, which says that it is
            self.close()

    def close(self) -> None:
        """The recording is whole."""
        if self._recorder is not None:
            self._recorder.finish()

    def _update(self, number: int, sender: str, start: Mapping[str, Tensor], came: Returned) -> Message:
        state, examples = came if isinstance(came, tuple) else (came, None)
        unknown = sorted(name for name in state if name not in start or state[name].shape != start[name].shape)
        if unknown:
            raise UsageError(f"{sender} came back with tensors that were not handed out: {', '.join(unknown[:5])}.")
        floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
        change = {name: tensor.detach().cpu() - start[name] for name, tensor in floats.items()}
        return Message(number, sender, SERVER, "update", change, {} if examples is None else {"examples": examples})

    def _sum(self, number: int, updates: list[Message]) -> Message:
        """The mean as FedAvg forms it, whatever the loop makes of it afterwards."""
        examples = [int(update.info.get("examples", 0)) for update in updates]
        shares = examples if self._weighting == "examples" and min(examples) > 0 else [1] * len(updates)
        common = [name for name in updates[0].tensors if all(name in update.tensors for update in updates)]
        parts = [{name: update.tensors[name] for name in common} for update in updates]
        info: dict[str, int | float | str | bool] = {"clients": len(updates), "of": "update"}
        if min(examples) > 0:
            info["examples"] = sum(examples)
        total = weighted_sum(parts, [share / sum(shares) for share in shares])
        return Message(number, AGGREGATOR, SERVER, "aggregate", total, info)

    def _protocol(self, start: Mapping[str, Tensor], clients: int) -> dict[str, Any]:
        weights = [name for name, tensor in start.items() if tensor.ndim == 2 and tensor.is_floating_point()]
        if self._head is not None:
            weights = [name for name in weights if self._head in (name, name.rpartition(".")[0])]
            if not weights:
                raise UsageError(f"There is no linear layer named {self._head!r} among what was handed out.")
        weight = weights[-1] if weights else None
        bias = f"{weight.rpartition('.')[0]}.bias" if weight and "." in weight else ""
        return {
            "classes": len(start[weight]) if weight else None,
            "head_weight": weight,
            "head_bias": bias if bias in start else None,
            "algorithm": "fedavg",
            "weighting": self._weighting,
            "secure_aggregation": False,
            "client_count": clients,
            **self._stated,
        }


def address_of(name: int | str) -> str:
    """A client's address in a trace."""
    return name if isinstance(name, str) and name.startswith("client:") else f"client:{name}"
