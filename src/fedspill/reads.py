"""Reads: how much of each message an attack reads, so that a recording may leave out the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

Part: TypeAlias = Literal["none", "head", "all"]  # from little to much
_PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Reads:
    """Of models that are handed out, of what single clients send, and of sums: all, the last layer, or nothing.

    The last layer comes with the running means of batch normalisation, which show how clients train.
    """

    model: Part = "all"
    update: Part = "all"  # updates and gradients
    aggregate: Part = "all"


EVERYTHING = Reads()
HEAD_OF_UPDATES = Reads(model="none", update="head", aggregate="head")
MODELS_AND_HEAD_OF_UPDATES = Reads(model="all", update="head", aggregate="head")


def read_by_any(of: Iterable[Reads]) -> Reads:
    """What all of these together read; everything where there are none."""
    found = list(of)
    if not found:
        return EVERYTHING
    most = {item.name: max((getattr(one, item.name) for one in found), key=_PARTS.index) for item in fields(Reads)}
    return Reads(**most)
