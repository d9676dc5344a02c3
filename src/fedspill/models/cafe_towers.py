"""The vertical network of paper 001 (CAFE): convolutions of 64 and 128 filters 5x5, then 256-64-10 for each party."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_positive
from fedspill.models.vertical import Tiles, Tower, VerticalNet
from fedspill.partitions.tiles import tile_shape


@final
@dataclass(frozen=True)
class CafeTowers(ModelSpec):
    """Each party has a tile of the image and a tower of its own; the server's head reads 10 outputs of each.

    As in the authors' code: Glorot weights, biases of zero, a ReLU behind the last layer of a tower, and a softmax that
    the loss takes for logits (`double_softmax`). The paper's text has no such second softmax.
    """

    name = "cafe-towers"
    title = "Towers of CAFE"
    paper = "001 CAFE, Figure 4 and the authors' code"

    parties: int = 4
    filters: tuple[int, int] = (64, 128)
    widths: tuple[int, int, int] = (256, 64, 10)
    double_softmax: bool = True
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("filters", *self.filters)
        require_positive("widths", *self.widths)
        require_positive("parties", self.parties)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3:
            raise UsageError(
                f"The model {self.name!r} takes images (channels, height, width), but the inputs have the shape "
                f"{shape}.",
                remedy="Use 'vertical-mlp' for tables.",
            )
        tile = tile_shape(image_shape(shape, self.name), self.parties)
        towers = [self._tower(tile) for _ in range(self.parties)]
        head = nn.Linear(self.parties * self.widths[-1], classes, bias=self.last_bias)
        net = VerticalNet(Tiles(self.parties), [tile] * self.parties, towers, head, double_softmax=self.double_softmax)
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        return net

    def _tower(self, tile: tuple[int, int, int]) -> Tower:
        channels, *sides = tile
        for _ in range(2):
            sides = [-(-side // 2) for side in sides]  # pools of 2 that keep the rest, "same" in the authors' framework
        front = nn.Sequential(
            nn.Conv2d(channels, self.filters[0], 5, padding=2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),  # behind the pool instead of before it: the same values from a quarter of the work
            nn.Conv2d(self.filters[0], self.filters[1], 5, padding=2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
            nn.Flatten(),
        )
        first, second, third = self.widths
        back = nn.Sequential(nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, third), nn.ReLU())
        return Tower(front, nn.Linear(self.filters[1] * sides[0] * sides[1], first), back)
