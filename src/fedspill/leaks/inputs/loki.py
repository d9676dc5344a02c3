"""LOKI (Zhao et al. 2024): clients get convolutions of their own, so that each has columns of its own in the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import ActiveAttack
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.planted_guess import PLANT_CONTROL, guess_of_batches, vouches_for_none
from fedspill.messages import EVERYONE, Message
from fedspill.planting.arrival import Way
from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.planted_rounds import PlantedRounds
from fedspill.planting.read_batches import PLANT_NEEDS, PlantedBatch, planted_batches, refuse_large_sums
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.readings import readings_of
from fedspill.planting.robbing_rows import plant_brightness, strongest_quotients
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Loki(ActiveAttack):
    """Robbing the Fed behind secure aggregation: the same linear layer for all, and other kernels for each client.

    Needs convolutions that pass images on, with channels for several clients. Of a client's batch it reads what Robbing
    the Fed reads of it alone. Clients for whom there are no channels share those of others.
    """

    name: ClassVar[str] = "loki"
    title: ClassVar[str] = "LOKI: clients told apart in a sum by their convolutions"
    paper: ClassVar[str] = "Zhao, Sharma, Elkordy, Ezzeldin, Avestimehr, Bagchi, IEEE S&P 2024"
    needs = PLANT_NEEDS
    leak = INPUTS
    control: ClassVar[Mapping[str, Any] | None] = {
        **PLANT_CONTROL,
        "model": {"name": "cnn-flat", "first": 2, "second": 4, "dense": 64},
    }
    for_each_client: ClassVar[bool] = True

    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "line"
    rounds_read: int = 3

    def rounds(self, view: View) -> range:
        refuse_large_sums(view)
        place = ReadingPlace.known_to(view)
        if place.through is None or place.blocks < 2:
            raise NotApplicable("LOKI is planted in convolutions with channels for several; this network has none.")
        return self._when.planted

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        place, honest = ReadingPlace.known_to(view), dict(model.tensors)
        packings = [place.packing(block) for block in range(place.blocks)]
        opened = place.opened(honest, _block(model.receiver, place))
        goal = plant_brightness(place.layer, opened, place.inputs(), packings)
        return replace(model, tensors=self._when.handed_out(model.round, honest, goal, place.layer))

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        place = ReadingPlace.known_to(view)
        batches, notes = planted_batches(view, self._when.read, place.layer)
        found = [_read(place, batch) for batch in batches]
        return guess_of_batches(batches, found, [vouches_for_none(one) for one in found], notes=notes)

    @property
    def _when(self) -> PlantedRounds:
        return PlantedRounds(self.first, self.arrival, self.rounds_read, self.way)


def _block(receiver: str, place: ReadingPlace) -> int:
    return 0 if receiver == EVERYONE else int(receiver.partition(":")[2]) % place.blocks


def _read(place: ReadingPlace, batch: PlantedBatch) -> Tensor:
    """What the bins of every block hold, those of the largest gradient first, at most as many as there are samples."""
    weight, bias = batch.of_first(place.layer)
    found = [torch.zeros(0, *place.packing().shape, dtype=torch.float64)]
    blocks = {_block(receiver, place): state for receiver, state in batch.models.items()}
    for block, state in blocks.items():
        network, packing = PlantedNetwork.of(place.model, state), place.packing(block)
        readings = readings_of(network.first.weight, network.first.bias, network.second.weight)
        own = bias if place.through is None else weight[:, place.through.constants(block)]
        if bool(own.any()):
            most = -(-batch.samples // len(blocks))
            x = packing.unpack(strongest_quotients(readings, weight, own, most))
            found.append(x.clamp(packing.low, packing.high))
    return torch.cat(found)[: batch.samples]
