"""Our malicious server: it sorts a batch by several numbers at once, and reads nearly all of it, with certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import ActiveAttack
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.planted_guess import PLANT_CONTROL, guess_of_batches
from fedspill.messages import EVERYONE, Message
from fedspill.planting.agreement import agreed
from fedspill.planting.arrival import Way
from fedspill.planting.bins import BinDesign, Norms, plant_bins, silence
from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.peel import Peeled, peel
from fedspill.planting.planted_rounds import PlantedRounds
from fedspill.planting.read_batches import (
    PLANT_NEEDS,
    PlantedBatch,
    planted_batches,
    refuse_large_sums,
    several_steps,
)
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.steady_bins import hold_still, third_layer_of
from fedspill.trace import View

FULL = 0.55  # samples a row that three numbers can still tell apart
FINE = 1e-3  # gain of rows that are read from an update: smaller weights round less


@final
@dataclass(frozen=True)
class PlantedInputs(ActiveAttack):
    """Plants bins in the first linear layer and peels a batch out of its gradient, sample by sample.

    Reads nearly all of a batch of up to 0.6 samples a row, from one local step of plain SGD, in any network whose first
    linear layer is rectified and reads the input, or follows convolutions that pass it on. Who sees sums only hands the
    bins to as many clients as it can read at once, each with rows of its own, or with channels of its own where there
    are convolutions, and a silent layer to all others. After several local steps certificates fail: what comes back
    then is what two bins agree on, and what else is left in bins, and nothing of it is vouched for. That reads most of
    a batch of an eighth of the rows where two hidden layers follow one another, and less with one.
    """

    name: ClassVar[str] = "planted-inputs"
    title: ClassVar[str] = "Inputs read from planted bins, sample by sample"
    paper: ClassVar[str] = "fedspill, after Fowl et al. 2022"
    needs = PLANT_NEEDS
    leak = INPUTS
    control: ClassVar[Mapping[str, Any] | None] = PLANT_CONTROL
    for_each_client: ClassVar[bool] = True

    functionals: int = 3
    norms: Norms = "small"
    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "sphere"
    rounds_read: int = 3
    draw: int = 0  # which random directions it sorts by; the same in all rounds of an arrival

    def rounds(self, view: View) -> range:
        refuse_large_sums(view)
        ReadingPlace.known_to(view)
        return self.when.planted

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        place, honest = ReadingPlace.known_to(view), dict(model.tensors)
        design = BinDesign(self.functionals, gain=_gain(view), norms=self.norms)
        part = self._part_of(model.receiver, model.round, view, place)
        same = torch.Generator().manual_seed(self.draw)
        several = several_steps(view)
        third = third_layer_of(place.model, place.layer)
        if part is None:
            goal = {name: tensor.clone() for name, tensor in honest.items()}
            silence(goal, place.layer)
        else:
            packings = [place.packing(block) for block in range(part.blocks)]
            opened = place.opened(honest, part.block)
            goal = plant_bins(place.layer, opened, place.inputs(), design, same, packings, part.rows)
            if third is not None and several is not None:
                hold_still(goal, place.layer, third, design.gain, same, lr=several.lr, passes=several.passes)
        return replace(model, tensors=self.when.handed_out(model.round, honest, goal, place.layer))

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        place = ReadingPlace.known_to(view)
        batches, notes = planted_batches(view, self.when.read, place.layer)
        found = [self._peeled(place, batch, view) for batch in batches]
        if not all(batch.one_step for batch in batches):
            notes.append("clients make several local steps, of which no certificate holds")
        labelled = all(batch.one_step for batch in batches)
        return guess_of_batches(
            batches,
            [one.samples for one in found],
            [
                torch.full((len(one.samples),), batch.one_step, dtype=torch.bool)
                for one, batch in zip(found, batches, strict=True)
            ],
            [one.labels for one in found] if labelled else None,
            notes,
        )

    @property
    def when(self) -> PlantedRounds:
        """The rounds that it plants in and reads."""
        return PlantedRounds(self.first, self.arrival, self.rounds_read, self.way)

    def _part_of(self, receiver: str, number: int, view: View, place: ReadingPlace) -> ClientPart | None:
        """The receiver's part of the first layer; None for one that is silenced in that round."""
        if receiver == EVERYONE:
            return ClientPart(torch.arange(place.rows))
        clients, batch = int(view.knows("client_count")), int(view.knows("batch_size"))
        fitting = min(max(int(FULL * place.rows / batch), 1), place.rows // (4 * self.functionals) or 1)
        heard = min(place.blocks if place.blocks > 1 else fitting, clients)
        groups = -(-clients // heard)
        index = int(receiver.partition(":")[2])
        if index % groups != (number - self.when.read.start) % groups:
            return None
        if place.blocks > 1:
            return ClientPart(torch.arange(place.rows), index // groups, heard)
        return ClientPart(torch.arange(place.rows)[index // groups :: heard])

    def _peeled(self, place: ReadingPlace, batch: PlantedBatch, view: View) -> Peeled:
        """What is found of all clients that were handed bins: what is vouched for, or after several steps anything."""
        nothing = torch.zeros(0, *place.packing().shape, dtype=torch.float64)
        parts = [Peeled(nothing, torch.zeros(0, dtype=torch.int64))]
        for receiver, state in batch.models.items():
            part = self._part_of(receiver, batch.of.round, view, place)
            if part is not None:
                weight, bias = batch.of_first(place.layer)
                if part.blocks > 1 and place.through is not None:  # its own part of the sum of all clients
                    bias = weight[:, place.through.constants(part.block)]
                seen = PlantedNetwork.of(place.model, state), place.packing(part.block), weight, bias, batch.samples
                parts.append(
                    peel(*seen) if batch.one_step else Peeled(agreed(*seen)[0], torch.zeros(0, dtype=torch.int64))
                )
        return Peeled(torch.cat([one.samples for one in parts]), torch.cat([one.labels for one in parts]))


@dataclass(frozen=True, eq=False)
class ClientPart:
    """What one client has of the first layer: rows, and a block of the `blocks` that its features are cut into."""

    rows: Tensor
    block: int = 0
    blocks: int = 1


def _gain(view: View) -> float:
    return 1.0 if view.public.get("algorithm") == "fedsgd" else FINE
