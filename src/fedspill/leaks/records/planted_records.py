"""A malicious server reads whole batches of a table: bins in the first layer, and what comes out decoded to records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import ActiveAttack
from fedspill.leaks.inputs.planted_inputs import PlantedInputs
from fedspill.leaks.records.decode.joint import decode
from fedspill.leaks.records.guess import Records
from fedspill.leaks.records.leak import RECORDS
from fedspill.leaks.records.table import known_schema
from fedspill.messages import Message
from fedspill.planting.arrival import Way
from fedspill.planting.read_batches import PLANT_NEEDS, PlantedBatch, planted_batches
from fedspill.planting.reading_place import ReadingPlace
from fedspill.threat import Needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class PlantedRecords(ActiveAttack):
    """Plants as `planted-inputs` does, and decodes what it reads by the schema, all fields of a record together.

    Reads batches that fill more dimensions than the table's columns leave to `records`. A record is vouched for if the
    sample is, and if it comes out the same with and without the help of the row space that all records share. Records
    that are not found are filled with modes and medians.
    """

    name: ClassVar[str] = "planted-records"
    title: ClassVar[str] = "Records of a table read from planted bins"
    paper: ClassVar[str] = "fedspill, after Fowl et al. 2022"
    needs = Needs(PLANT_NEEDS.sees, PLANT_NEEDS.knows | {"table_schema"}, PLANT_NEEDS.does)
    leak = RECORDS
    control: ClassVar[Mapping[str, Any] | None] = {
        "data": "made-up-people",
        "model": {"name": "mlp", "widths": [96]},
        "partition": "iid",
        "federation": {"clients": 2, "rounds": 2},
        "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 6},
        "adversary_data": {"per_class": 100},
    }
    for_each_client: ClassVar[bool] = True

    functionals: int = 3
    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "sphere"
    rounds_read: int = 3
    draw: int = 0  # which random directions it sorts by; the same in all rounds of an arrival

    def rounds(self, view: View) -> range:
        known_schema(view)
        return self._planter.rounds(view)

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        return self._planter.plant(model, view, rng)

    def run(self, view: View, rng: torch.Generator) -> Records:
        schema, place = known_schema(view), ReadingPlace.known_to(view)
        read = self._planter.run(view, rng)
        batches, _ = planted_batches(view, self._planter.when.read, place.layer)
        typical = schema.typical(view.knows("unlabelled_aux").flatten(1).double())
        rows, certified = [], []
        for batch, found, sure in zip(batches, read.samples, read.certified, strict=True):
            flat = found.flatten(1).double()
            # A column that is nothing for all records of a bin is read as nothing, however rough the reading is.
            decoded, plain = (decode(flat, schema, space, growing=True) for space in (_row_space(batch, place), None))
            sure = sure & decoded.certain & schema.are_same(decoded.rows, plain.rows).all(1)
            lacking = max(batch.samples - len(found), 0)
            rows.append(torch.cat([decoded.rows.reshape(-1, schema.width), typical.expand(lacking, -1)]))
            certified.append(torch.cat([sure, torch.zeros(lacking, dtype=torch.bool)]))
        filled = "records that were not found are filled with what is typical of the adversary's own data"
        return Records(read.of, rows, certified, read.answered, (*read.notes, filled))

    @property
    def _planter(self) -> PlantedInputs:
        return PlantedInputs(
            functionals=self.functionals,
            first=self.first,
            arrival=self.arrival,
            way=self.way,
            rounds_read=self.rounds_read,
            draw=self.draw,
        )


def _row_space(batch: PlantedBatch, place: ReadingPlace) -> Tensor | None:
    """(columns, samples) the space that all records lie in; None where they fill the layer, or do not come flat."""
    weight, _ = batch.of_first(place.layer)
    if place.through is not None or batch.samples >= min(weight.shape):
        return None
    right: Tensor = torch.linalg.svd(weight, full_matrices=False)[2]
    return right[: batch.samples].T
