"""A plain vertical network: features go straight into linear layers, whose gradient then holds the data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import require_positive
from fedspill.models.vertical import Columns, Tiles, Tower, VerticalNet
from fedspill.partitions.tiles import column_groups, tile_shape


@final
@dataclass(frozen=True)
class VerticalMlp(ModelSpec):
    """Linear layers for each party, and a linear head over all of them. For tables; images are cut into tiles.

    `columns` names the columns of each party; without it, a table is shared out in consecutive columns, evenly many.
    """

    name = "vertical-mlp"
    title = "Plain towers of linear layers"
    paper = "001 CAFE, section 3.3: models that only contain FC layers"

    parties: int = 2
    widths: tuple[int, ...] = (64, 16)
    activation: Activation = "relu"
    columns: tuple[tuple[int, ...], ...] = ()
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("parties", self.parties)
        require_positive("widths", *self.widths)
        if not self.widths or (self.columns and len(self.columns) != self.parties):
            raise UsageError(
                f"Expected at least one width, and columns for none or all of {self.parties} parties, "
                f"got widths {list(self.widths)} and columns for {len(self.columns)}."
            )

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        parts: Tiles | Columns
        if len(shape) == 3:
            parts = Tiles(self.parties)
            shapes: list[tuple[int, ...]] = [tile_shape((shape[0], shape[1], shape[2]), self.parties)] * self.parties
        else:
            groups = self.columns or column_groups([""] * prod(shape), self.parties)
            if sorted(column for group in groups for column in group) != list(range(prod(shape))):
                raise UsageError(f"The parties' columns must be 0 to {prod(shape) - 1}, each once.")
            parts, shapes = Columns(groups), [(len(group),) for group in groups]
        towers = [self._tower(prod(part)) for part in shapes]
        head = nn.Linear(self.parties * self.widths[-1], classes, bias=self.last_bias)
        return VerticalNet(parts, shapes, towers, head, double_softmax=False)

    def _tower(self, features: int) -> Tower:
        back: list[nn.Module] = [activation(self.activation)]
        for wide, narrow in zip(self.widths, self.widths[1:], strict=False):
            back += [nn.Linear(wide, narrow), activation(self.activation)]
        return Tower(nn.Flatten(), nn.Linear(features, self.widths[0]), nn.Sequential(*back))
