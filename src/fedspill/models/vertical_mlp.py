"""A plain vertical network: features go straight into linear layers, whose gradient then holds the data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, final

import torch
from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import require_positive
from fedspill.models.vertical import Columns, Strips, Tiles, Tower, VerticalNet
from fedspill.partitions.tiles import column_groups


@final
@dataclass(frozen=True)
class VerticalMlp(ModelSpec):
    """Linear layers for each party, and a head over all of them. For tables; images are cut into tiles or strips.

    `columns` says which columns of a table (or pixels of an image) each party holds, by number, or by name in a plan;
    without it, a table is shared out in consecutive columns, evenly many. `top` "sum" has nothing to train: the
    parties' outputs, one for each class, are added up and are the logits.
    """

    name = "vertical-mlp"
    title = "Plain towers of linear layers"
    paper = "001 CAFE, section 3.3: models that only contain FC layers"

    parties: int = 2
    widths: tuple[int, ...] = (64, 16)
    activation: Activation = "relu"
    columns: tuple[tuple[int | str, ...], ...] = ()
    last_bias: bool = True
    cut: Literal["tiles", "strips"] = "tiles"  # of images
    head_widths: tuple[int, ...] = ()  # hidden layers of the head; none: it is linear
    top: Literal["linear", "sum"] = "linear"

    def __post_init__(self) -> None:
        require_positive("parties", self.parties)
        require_positive("widths", *self.widths)
        require_positive("head_widths", *self.head_widths)
        if not self.widths or (self.columns and len(self.columns) != self.parties):
            raise UsageError(
                f"Expected at least one width, and columns for none or all of {self.parties} parties, "
                f"got widths {list(self.widths)} and columns for {len(self.columns)}."
            )
        if self.top == "sum" and self.head_widths:
            raise UsageError("A head that only adds up has no hidden layers: leave head_widths out.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        parts = self._parts(shape)
        shapes = [tuple(part.shape[1:]) for part in parts.split(torch.empty(1, *shape, device="meta"))]
        towers = [self._tower(prod(part), classes) for part in shapes]
        if self.top == "sum":
            return VerticalNet(parts, shapes, towers, _adding(self.parties, classes), double_softmax=False)
        width = self.parties * self.widths[-1]
        neck: list[nn.Module] = []
        for hidden in self.head_widths:
            neck += [nn.Linear(width, hidden), activation(self.activation)]
            width = hidden
        head = nn.Linear(width, classes, bias=self.last_bias)
        return VerticalNet(
            parts, shapes, towers, head, neck=nn.Sequential(*neck) if neck else None, double_softmax=False
        )

    def _parts(self, shape: tuple[int, ...]) -> Tiles | Strips | Columns:
        if len(shape) == 3 and not self.columns:
            if self.cut == "strips" and self.parties > shape[2]:
                raise UsageError(f"Images of {shape[2]} columns cannot be cut into {self.parties} strips.")
            return Tiles(self.parties) if self.cut == "tiles" else Strips(self.parties)
        groups = self.columns or column_groups([""] * prod(shape), self.parties)
        numbers = [[column for column in group if isinstance(column, int)] for group in groups]
        if sorted(column for group in numbers for column in group) != list(range(prod(shape))):
            raise UsageError(f"The parties' columns must be 0 to {prod(shape) - 1}, each once.")
        return Columns(numbers)

    def _tower(self, features: int, classes: int) -> Tower:
        widths = (*self.widths[:-1], classes) if self.top == "sum" else self.widths
        back: list[nn.Module] = [activation(self.activation)]
        for wide, narrow in pairwise(widths):
            back += [nn.Linear(wide, narrow), activation(self.activation)]
        if self.top == "sum":
            back.pop()  # logits may be negative
        return Tower(nn.Flatten(), nn.Linear(features, widths[0]), nn.Sequential(*back))


def _adding(parties: int, classes: int) -> nn.Linear:
    """A layer that adds up the parties' outputs (parties * classes) and is never trained."""
    head = nn.Linear(parties * classes, classes, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(classes).repeat(1, parties))
    head.weight.requires_grad_(False)
    return head
