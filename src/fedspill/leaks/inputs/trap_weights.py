"""Trap weights (Boenisch et al. 2023): rows that fire for hardly any sample, each read by itself."""

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
from fedspill.planting.peel import peel
from fedspill.planting.planted_rounds import PlantedRounds
from fedspill.planting.read_batches import PLANT_NEEDS, PlantedBatch, planted_batches, refuse_large_sums
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.trap_rows import TrapKind, distinct_quotients, fitted_factor, plant_traps
from fedspill.trace import View


@final
@dataclass(frozen=True)
class TrapWeights(ActiveAttack):
    """Rows of which half the weights are negative, the other half a little smaller and positive, as published.

    kind "calibrated" sets their biases by inputs at hand, "biases" moves nothing but biases; both are ours, as is
    `peeled`, which takes found samples out and vouches for what it returns: rows then fire for one sample up to half of
    a batch. factor 0 fits the published rows to inputs at hand, as their authors did by trying.
    """

    name: ClassVar[str] = "trap-weights"
    title: ClassVar[str] = "Trap weights: inputs read from rows that fire once"
    paper: ClassVar[str] = "Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov, Papernot, EuroS&P 2023"
    needs = PLANT_NEEDS
    leak = INPUTS
    control: ClassVar[Mapping[str, Any] | None] = PLANT_CONTROL

    kind: TrapKind = "published"
    peeled: bool = False
    factor: float = 0.95  # of a row's positive half
    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "line"
    rounds_read: int = 3
    draw: int = 0  # which random rows; the same in all rounds of an arrival

    def rounds(self, view: View) -> range:
        refuse_large_sums(view)
        ReadingPlace.known_to(view)
        return self._when.planted

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        place, honest = ReadingPlace.known_to(view), dict(model.tensors)
        same = torch.Generator().manual_seed(self.draw)
        batch = int(view.knows("batch_size")) if view.has("batch_size") else place.rows // 4
        state, read = place.opened(honest), place.features()
        factor = self.factor or fitted_factor(read, batch, same)
        most = batch / 2 if self.peeled else 1.0
        goal = plant_traps(place.layer, state, read, batch, self.kind, same, factor=factor, most=most)
        return replace(model, tensors=self._when.handed_out(model.round, honest, goal, place.layer))

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        place = ReadingPlace.known_to(view)
        batches, notes = planted_batches(view, self._when.read, place.layer)
        found = [self._read(place, batch) for batch in batches]
        marks = [torch.ones(len(one), dtype=torch.bool) if self.peeled else vouches_for_none(one) for one in found]
        return guess_of_batches(batches, found, marks, notes=notes)

    @property
    def _when(self) -> PlantedRounds:
        return PlantedRounds(self.first, self.arrival, self.rounds_read, self.way)

    def _read(self, place: ReadingPlace, batch: PlantedBatch) -> torch.Tensor:
        packing, seen = place.packing(), batch.of_first(place.layer)
        if self.peeled:
            network = PlantedNetwork.of(place.model, next(iter(batch.models.values())))
            return peel(network, packing, *seen, batch.samples).samples
        return distinct_quotients(*seen, packing, batch.samples)
