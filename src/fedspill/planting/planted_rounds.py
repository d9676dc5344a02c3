"""When a malicious server plants: after some honest rounds, all at once or little by little, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from fedspill.errors import UsageError
from fedspill.planting.arrival import Way, on_the_way, share_arrived
from fedspill.planting.first_layer import PlantedLayer
from fedspill.training import Tensors


@dataclass(frozen=True)
class PlantedRounds:
    """The plant arrives in `arrival` rounds from round `first` on and is then read in `rounds` rounds, the last of the
    arrival being the first of these.
    """

    first: int
    arrival: int
    rounds: int
    way: Way = "sphere"

    def __post_init__(self) -> None:
        if self.first < 0 or self.arrival < 1 or self.rounds < 1:
            raise UsageError("A plant needs first >= 0, arrival >= 1 and rounds >= 1.")

    @property
    def read(self) -> range:
        start = self.first + self.arrival - 1
        return range(start, start + self.rounds)

    @property
    def planted(self) -> range:
        return range(self.first, self.read.stop)

    def handed_out(self, number: int, honest: Tensors, goal: Tensors, layer: PlantedLayer | None) -> Tensors:
        """What is sent in round `number`."""
        return on_the_way(honest, goal, share_arrived(number, self.first, self.arrival), layer, self.way)
