"""Accepted findings: known leaks that a person has decided to live with, each with a reason and an end date."""

from __future__ import annotations

import tomllib
from collections.abc import Set
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedspill.audit.result import AcceptedBecause, AcceptedEntry
from fedspill.errors import PlanError, UsageError


class Acceptance(BaseModel):
    """`id` as in the report, for example "labels/curious-server"; accepted up to and including `until`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    reason: str = Field(min_length=1)
    until: date


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    accept: list[Acceptance] = []


@dataclass(frozen=True)
class Accepted:
    """What is accepted; an entry that has run out accepts nothing."""

    entries: tuple[Acceptance, ...] = ()

    def reason(self, finding: str, today: date) -> AcceptedBecause | None:
        for entry in self.entries:
            if entry.id == finding and today <= entry.until:
                return AcceptedBecause(reason=entry.reason, until=entry.until.isoformat())
        return None

    def entries_now(self, today: date, known: Set[str]) -> list[AcceptedEntry]:
        """Every entry, and what has become of it."""
        return [
            AcceptedEntry(
                id=entry.id,
                reason=entry.reason,
                until=entry.until.isoformat(),
                state="expired" if today > entry.until else "in force" if entry.id in known else "no such finding",
            )
            for entry in self.entries
        ]


NOTHING_ACCEPTED = Accepted()


def read_accepted(path: Path | None) -> Accepted:
    """The accepted findings of a TOML file: [[accept]] with id, reason and until; every mistake at once."""
    if path is None:
        return NOTHING_ACCEPTED
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return Accepted(tuple(_File.model_validate(content).accept))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from None
    except ValidationError as error:
        raise PlanError(str(path), [_told(item) for item in error.errors()]) from None


def _told(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    return f"{place}: {item['msg']}" + ("" if item["type"] == "missing" else f", got {item['input']!r}")
