"""Robbing the Fed (Fowl et al. 2022): a batch sorted by brightness, read by differences of neighbouring rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.planted_guess import PLANT_CONTROL, guess_of_batches, vouches_for_none
from fedspill.messages import Message
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
class RobbingTheFed(ActiveAttack):
    """Plants the published rows in place of the first linear layer; the module in front is for clients without code.

    Of B samples in k bins about (1 - 1/k)^(B - 1) are alone in theirs. Those that are not come out as mixtures, which
    nothing tells from samples.
    """

    name: ClassVar[str] = "robbing-the-fed"
    title: ClassVar[str] = "Robbing the Fed: inputs read from bins of brightness"
    paper: ClassVar[str] = "Fowl, Geiping, Czaja, Goldblum, Goldstein, ICLR 2022"
    needs = PLANT_NEEDS
    leak = INPUTS
    control: ClassVar[Mapping[str, Any] | None] = PLANT_CONTROL

    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "line"
    rounds_read: int = 3

    def rounds(self, view: View) -> range:
        refuse_large_sums(view)
        ReadingPlace.known_to(view)
        return self._when.planted

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        place, honest = ReadingPlace.known_to(view), dict(model.tensors)
        goal = plant_brightness(place.layer, place.opened(honest), place.inputs(), [place.packing()])
        return replace(model, tensors=self._when.handed_out(model.round, honest, goal, place.layer))

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        place = ReadingPlace.known_to(view)
        batches, notes = planted_batches(view, self._when.read, place.layer)
        found = [_read(place, batch) for batch in batches]
        return guess_of_batches(batches, found, [vouches_for_none(one) for one in found], notes=notes)

    @property
    def _when(self) -> PlantedRounds:
        return PlantedRounds(self.first, self.arrival, self.rounds_read, self.way)


def _read(place: ReadingPlace, batch: PlantedBatch) -> torch.Tensor:
    packing = place.packing()
    network = PlantedNetwork.of(place.model, next(iter(batch.models.values())))
    readings = readings_of(network.first.weight, network.first.bias, network.second.weight)
    x = packing.unpack(strongest_quotients(readings, *batch.of_first(place.layer), batch.samples))
    return x.clamp(packing.low, packing.high)
