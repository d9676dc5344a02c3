"""Evidence: what a finding can show besides its score, as plain numbers that a report draws and a table repeats.

Nothing here may be derived from a single record unless it is `private`: private evidence is made, stored and shown only
when an audit was asked to with `--show-data`.
"""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, final


@dataclass(frozen=True)
class Evidence(ABC):
    """One drawing's worth of numbers."""

    kind: ClassVar[str]

    title: str
    private: bool

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The same drawing over all repeats; the first of them where they cannot be put together."""
        return parts[0]

    @final
    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@final
@dataclass(frozen=True)
class Bars(Evidence):
    """True and guessed amounts side by side, one pair for each name; an empty name is filled in by the report."""

    kind: ClassVar[str] = "bars"

    names: list[str]
    true: list[float]
    guessed: list[float]

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        first = parts[0]
        true = [sum(values) for values in zip(*(part.true for part in parts), strict=True)]
        guessed = [sum(values) for values in zip(*(part.guessed for part in parts), strict=True)]
        return cls(first.title, first.private, first.names, true, guessed)


@final
@dataclass(frozen=True)
class Pairs(Evidence):
    """How often a true value met a guessed one; on the diagonal the guess is right."""

    kind: ClassVar[str] = "pairs"

    true: list[float]
    guessed: list[float]
    count: list[int]

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        total: Counter[tuple[float, float]] = Counter()
        for part in parts:
            for true, guessed, count in zip(part.true, part.guessed, part.count, strict=True):
                total[true, guessed] += count
        cells = sorted(total)
        first = parts[0]
        return cls(
            first.title, first.private, [c[0] for c in cells], [c[1] for c in cells], [total[cell] for cell in cells]
        )


@final
@dataclass(frozen=True)
class Curve(Evidence):
    """A line, such as a ROC curve, and that of no access, or what `beside` says. Of repeats the first is shown."""

    kind: ClassVar[str] = "curve"

    x: list[float]
    y: list[float]
    x_title: str
    y_title: str
    chance: list[float]
    beside: str = "chance"


@final
@dataclass(frozen=True)
class Clients(Evidence):
    """One figure of each client beside that of no access; of repeats the first, since each has clients of its own."""

    kind: ClassVar[str] = "clients"

    names: list[str]
    values: list[float]
    chance: list[float]


@final
@dataclass(frozen=True)
class ExposedRecords(Evidence):
    """Which records are told the surest, by client and place in its data; private by nature. Of repeats the first."""

    kind: ClassVar[str] = "records"

    clients: list[str]
    records: list[int]  # place among the client's records
    scores: list[float]
    outsiders: list[int]  # how many records that nobody holds score as high


@final
@dataclass(frozen=True)
class Images(Evidence):
    """Original and reconstruction as data: URIs of PNG files; private by nature."""

    kind: ClassVar[str] = "images"

    original: list[str]
    reconstructed: list[str]


@final
@dataclass(frozen=True)
class Texts(Evidence):
    """What a client wrote, and beside each text what was read of it; private by nature. Of repeats the first."""

    kind: ClassVar[str] = "texts"

    written: list[str]
    read: list[str]
    certified: list[bool]  # whether the attack vouches for what it read


_KINDS: dict[str, type[Evidence]] = {
    made.kind: made for made in (Bars, Pairs, Curve, Clients, ExposedRecords, Images, Texts)
}


def from_json(value: dict[str, Any]) -> Evidence:
    fields = dict(value)
    return _KINDS[fields.pop("kind")](**fields)


def merge(lists: Sequence[Sequence[Evidence]]) -> list[Evidence]:
    """The drawings of several repeats, merged by title."""
    by_title: dict[str, list[Evidence]] = {}
    for one in lists:
        for evidence in one:
            by_title.setdefault(evidence.title, []).append(evidence)
    return [type(parts[0]).merged(parts) for parts in by_title.values()]
