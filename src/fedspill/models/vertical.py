"""The networks of a vertical federation: one tower for each party's features, and a head over what the towers put out.

A tower is `front` (up to the first fully connected layer), `first` (that layer, whose gradient leaks) and `back`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable, UsageError
from fedspill.partitions.tiles import image_tiles, join_tiles


@final
class Tower(nn.Module):
    """One party's network: features (n, d1) behind the front, then the first linear layer (d1 to d2), then the rest."""

    def __init__(self, front: nn.Module, first: nn.Linear, back: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.first = first
        self.back = back

    @property
    def reads_input(self) -> bool:
        """Whether the first linear layer receives the party's features themselves."""
        return isinstance(self.front, nn.Flatten)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.back(self.first(self.front(x)))
        return out


@final
class Columns(nn.Module):
    """Which columns of a table each party holds, or which pixels of an image read as one line."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.groups = [list(group) for group in groups]

    def split(self, x: Tensor) -> list[Tensor]:
        """A table (n, columns) as one table for each party."""
        flat = x.flatten(1)
        return [flat[:, group] for group in self.groups]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        x = parts[0].new_zeros(len(parts[0]), sum(len(group) for group in self.groups))
        for group, part in zip(self.groups, parts, strict=True):
            x[:, group] = part
        return x


@final
class Tiles(nn.Module):
    """Which part of an image each party holds: the cells of a square grid, row by row."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.parties = parties

    def split(self, x: Tensor) -> list[Tensor]:
        """Images (n, c, h, w) as one stack of tiles for each party."""
        return image_tiles(x, self.parties)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return join_tiles(parts)


@final
class Strips(nn.Module):
    """Which part of an image each party holds: some of its columns, as evenly many as can be."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.parties = parties

    def split(self, x: Tensor) -> list[Tensor]:
        """Images (n, c, h, w) as one stack of strips for each party, from left to right."""
        return list(x.tensor_split(self.parties, dim=3))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), 3)


@final
class VerticalNet(nn.Module):
    """Takes whole samples, gives each party's part to its tower, and classifies what the towers put out.

    The head is a linear layer, with hidden layers before it where there is a `neck`. Towers put out flat numbers; where
    they stand for feature maps, the neck begins with an `Unflatten` to their shape.

    With `double_softmax` the output is a softmax already, which the loss then takes for logits: so does the code of the
    CAFE paper.
    """

    def __init__(
        self,
        parts: Tiles | Strips | Columns,
        part_shapes: Sequence[tuple[int, ...]],
        towers: Sequence[nn.Module],
        head: nn.Linear,
        *,
        neck: nn.Module | None = None,
        double_softmax: bool,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.part_shapes = tuple(part_shapes)  # of one sample, for each party
        self.towers = nn.ModuleList(towers)
        self.neck = nn.Identity() if neck is None else neck
        self.head = head
        self.double_softmax = double_softmax

    @property
    def parties(self) -> int:
        return len(self.towers)

    def tower(self, party: int) -> Tower:
        """The tower, where it is one of linear layers; networks that are cut among convolutions have none."""
        found = self.towers[party]
        if not isinstance(found, Tower):
            raise NotApplicable("The tower is not one of linear layers.")
        return found

    def top(self, outputs: Sequence[Tensor]) -> Tensor:
        """Logits (n, classes) from the towers' outputs, each (n, width)."""
        logits: Tensor = self.head(self.neck(torch.cat(list(outputs), 1)))
        return logits.softmax(1) if self.double_softmax else logits

    def from_first(self, firsts: Sequence[Tensor]) -> Tensor:
        """Logits (n, classes) from the outputs of the towers' first linear layers, each (n, d2)."""
        return self.top([self.tower(party).back(first) for party, first in enumerate(firsts)])

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts.split(x)
        return self.top([tower(part) for tower, part in zip(self.towers, parts, strict=True)])


def owner(parameter: str) -> int | None:
    """The party whose tower the named parameter is of; None for the head."""
    place = parameter.split(".")
    return int(place[1]) if place[0] == "towers" else None


def vertical_net(model: nn.Module) -> VerticalNet:
    """The model, if it is one of parties and a head."""
    if not isinstance(model, VerticalNet):
        raise UsageError(
            f"A vertical federation needs a model of towers and a head, got {type(model).__name__}.",
            remedy="Use 'cafe-towers' for images, 'vertical-mlp' for tables, 'split-lenet' for a client and a server.",
        )
    return model
