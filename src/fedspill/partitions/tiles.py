"""Vertical shares: every party holds some features of all examples, tiles of images (CAFE) or columns of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedspill.errors import UnknownName, UsageError


def image_tiles(x: Tensor, parties: int) -> list[Tensor]:
    """Images (n, c, h, w) as a square grid of tiles (n, c, h/g, w/g), row by row; g * g parties hold one each."""
    if x.ndim != 4:
        raise UsageError(f"Tiles need images of shape (n, channels, height, width), got {tuple(x.shape)}.")
    n, c, h, w = x.shape
    g = _grid(parties)
    if h % g or w % g:
        raise UsageError(
            f"{parties} parties need a {g} by {g} grid, which does not divide images of {h} by {w}.",
            remedy=f"Use a square number of parties whose root divides {h} and {w}, such as 1 or 4.",
        )
    return list(x.reshape(n, c, g, h // g, g, w // g).permute(2, 4, 0, 1, 3, 5).reshape(g * g, n, c, h // g, w // g))


def tile_shape(shape: tuple[int, int, int], parties: int) -> tuple[int, int, int]:
    """The shape of one tile of an image (channels, height, width)."""
    channels, height, width = image_tiles(torch.empty(1, *shape, device="meta"), parties)[0].shape[1:]
    return channels, height, width


def join_tiles(tiles: Sequence[Tensor]) -> Tensor:
    """The images (n, c, h, w) that `image_tiles` cut."""
    g = _grid(len(tiles))
    shapes = {tuple(tile.shape) for tile in tiles}
    if len(shapes) != 1 or tiles[0].ndim != 4:
        raise UsageError(f"Tiles must have one shape (n, channels, height, width), got {sorted(shapes)}.")
    n, c, h, w = tiles[0].shape
    return torch.stack(list(tiles)).reshape(g, g, n, c, h, w).permute(2, 3, 0, 4, 1, 5).reshape(n, c, g * h, g * w)


def column_groups(
    columns: Sequence[str], parties: int, groups: Sequence[Sequence[int]] = ()
) -> tuple[tuple[int, ...], ...]:
    """For each party the indices of its columns: consecutive attributes, evenly many, one-hot groups kept together."""
    grouped = [column for group in groups for column in group]
    if len(set(grouped)) != len(grouped) or not set(grouped) <= set(range(len(columns))) or not all(groups):
        raise UsageError(f"Groups must be non-empty, without overlap and within the {len(columns)} columns.")
    single = [(column,) for column in range(len(columns)) if column not in set(grouped)]
    attributes = sorted([*single, *(tuple(sorted(group)) for group in groups)])
    if not 1 <= parties <= len(attributes):
        raise UsageError(
            f"Expected 1 to {len(attributes)} parties, as many as the table has attributes, got {parties}.",
            remedy="One-hot columns of one attribute stay with one party.",
        )
    cuts = [party * len(attributes) // parties for party in range(parties + 1)]
    return tuple(
        tuple(sorted(column for attribute in attributes[start:stop] for column in attribute))
        for start, stop in pairwise(cuts)
    )


def columns_by_name(columns: Sequence[str], wanted: Sequence[Sequence[int | str]]) -> tuple[tuple[int, ...], ...]:
    """For each party the indices of the columns that it holds, given by number, by name or by the name of an attribute.

    An attribute that is one-hot has several columns, "job=clerk" and so on: "job" is all of them. One party may hold
    "the rest" and need not list it.
    """
    found: list[tuple[int, ...]] = [tuple(i for one in group for i in _columns_of(columns, one)) for group in wanted]
    taken = [column for group in found for column in group]
    twice = sorted({columns[column] for column in taken if taken.count(column) > 1})
    if twice:
        raise UsageError(f"A column is held by one party: {', '.join(twice[:5])} is given to two.")
    rest = tuple(column for column in range(len(columns)) if column not in set(taken))
    with_rest = [number for number, group in enumerate(wanted) if REST in group]
    if len(with_rest) > 1:
        raise UsageError(f"Only one party can hold {REST!r}.")
    if rest and not with_rest:
        raise UsageError(
            f"{len(rest)} columns are given to no party, such as {columns[rest[0]]!r}.",
            remedy=f"Name them, or let one party hold {REST!r}.",
        )
    return tuple(tuple(sorted((*group, *rest)) if n in with_rest else group) for n, group in enumerate(found))


REST = "the rest"


def _columns_of(columns: Sequence[str], one: int | str) -> list[int]:
    if one == REST:
        return []
    if isinstance(one, int):
        if not 0 <= one < len(columns):
            raise UsageError(f"There is no column {one}: the table has columns 0 to {len(columns) - 1}.")
        return [one]
    found = [place for place, name in enumerate(columns) if name == one or name.startswith(f"{one}=")]
    if not found:
        raise UnknownName("column", one, list(dict.fromkeys(name.partition("=")[0] for name in columns)))
    return found


def _grid(parties: int) -> int:
    """The side of the square grid."""
    side = math.isqrt(max(parties, 0))
    if side < 1 or side * side != parties:
        raise UsageError(f"Tiles form a square grid: expected 1, 4, 9, 16, ... parties, got {parties}.")
    return side
