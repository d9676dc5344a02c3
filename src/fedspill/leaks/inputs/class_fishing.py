"""Fishing (Wen et al. 2022): one class a round is let through, and its only sample of a batch is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch

from fedspill.attack import ActiveAttack
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.planted_guess import PLANT_CONTROL, guess_of_batches
from fedspill.messages import Message
from fedspill.planting.arrival import Way
from fedspill.planting.class_fishing import head_of, one_sample, plant_class
from fedspill.planting.planted_rounds import PlantedRounds
from fedspill.planting.read_batches import PLANT_NEEDS, PlantedBatch, planted_batches, refuse_large_sums
from fedspill.planting.reading_place import ReadingPlace
from fedspill.trace import View


@final
@dataclass(frozen=True)
class ClassFishing(ActiveAttack):
    """The class attack: a last layer that silences all classes but one, another one each round.

    What is left of a batch is the gradient of that class's samples, exactly one sample where the batch has one of the
    class. The authors then match gradients; a first linear layer gives that sample in closed form. Where several of the
    class are in the batch, their mean comes out, and is not vouched for.
    """

    name: ClassVar[str] = "class-fishing"
    title: ClassVar[str] = "Fishing: inputs of one class, all others silenced"
    paper: ClassVar[str] = "Wen, Geiping, Fowl, Goldblum, Goldstein, ICML 2022"
    needs = PLANT_NEEDS
    leak = INPUTS
    # Few samples of ten classes: in half of the rounds one of them has the class that is asked for.
    control: ClassVar[Mapping[str, Any] | None] = {
        **PLANT_CONTROL,
        "federation": {"clients": 3, "rounds": 2},
        "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 2},
    }

    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "line"
    rounds_read: int = 5

    def rounds(self, view: View) -> range:
        refuse_large_sums(view)
        place = ReadingPlace.known_to(view)
        head_of(place.model)
        return self._when.planted

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        place, honest = ReadingPlace.known_to(view), dict(model.tensors)
        head = head_of(place.model)
        goal = plant_class(head, place.opened(honest), model.round % _classes(place, head))
        return replace(model, tensors=self._when.handed_out(model.round, honest, goal, None))

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        place = ReadingPlace.known_to(view)
        batches, notes = planted_batches(view, self._when.read, place.layer)
        classes = _classes(place, head_of(place.model))
        found, certified, labels = [], [], []
        for batch in batches:
            x, alone = _read(place, batch)
            found.append(x)
            certified.append(torch.full((len(x),), alone))
            labels.append(torch.full((len(x),), batch.of.round % classes))
        return guess_of_batches(batches, found, certified, labels, notes)

    @property
    def _when(self) -> PlantedRounds:
        return PlantedRounds(self.first, self.arrival, self.rounds_read, self.way)


def _classes(place: ReadingPlace, head: str) -> int:
    weight = place.model.get_submodule(head).weight
    assert isinstance(weight, torch.Tensor)
    return len(weight)


def _read(place: ReadingPlace, batch: PlantedBatch) -> tuple[torch.Tensor, bool]:
    """The one sample (at most), and whether it was alone."""
    packing = place.packing()
    if not batch.one_step:
        return torch.zeros(0, *packing.shape), False
    features, alone = one_sample(*batch.of_first(place.layer))
    return packing.unpack(features[None]).clamp(packing.low, packing.high), alone
