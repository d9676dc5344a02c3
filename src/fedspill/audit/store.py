"""Store: one SQLite file per audit folder; each unit is one transaction, with all that made it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedspill.audit.jobs import Job, outcome_from
from fedspill.audit.outcomes import JobOutcome
from fedspill.errors import FedspillError, InputRefused, UsageError

NAME = "audit.sqlite"
VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,     -- hash of the code and of the job
    kind TEXT NOT NULL,       -- record, attack or control
    job TEXT NOT NULL,        -- everything that made it: attack, all its options, adversary, defense, seed
    outcome TEXT NOT NULL,    -- what came of it
    seconds REAL NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Stored:
    """A finished unit."""

    outcome: JobOutcome
    seconds: float


@final
class Store:
    """What an audit knows so far."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        self.path = folder / NAME
        if not create and not self.path.is_file():
            raise UsageError(f"{folder} holds no audit.", remedy=f"Name a folder with {NAME} in it.")
        if create:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        with self._database() as database:
            if create:
                database.executescript(_SCHEMA)
            if int(self._facts(database).get("version", VERSION)) != VERSION:
                raise InputRefused(f"{self.path} is of another version of the store.", remedy="Use --fresh.")
            if create:
                self._note(database, {"version": VERSION})

    def facts(self) -> dict[str, Any]:
        with self._database() as database:
            return self._facts(database)

    def note(self, facts: Mapping[str, Any]) -> None:
        with self._database() as database:
            self._note(database, facts)

    def results(self) -> dict[str, Stored]:
        """Every finished unit by its key."""
        with self._database() as database:
            rows = database.execute("SELECT key, kind, outcome, seconds FROM results ORDER BY key").fetchall()
        return {key: Stored(outcome_from(kind, json.loads(text)), seconds) for key, kind, text, seconds in rows}

    def add(self, key: str, job: Job, outcome: JobOutcome, seconds: float) -> None:
        """One unit, whole or not at all."""
        row = (key, job.kind, _text(job.as_json()), _text(outcome.model_dump(mode="json")), seconds)
        with self._database() as database:
            database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", row)

    def drop(self, keys: list[str]) -> None:
        with self._database() as database:
            database.executemany("DELETE FROM results WHERE key = ?", [(key,) for key in keys])

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        try:
            with closing(sqlite3.connect(self.path, timeout=10)) as database, database:
                yield database
        except sqlite3.OperationalError as error:
            free = os.statvfs(self.path.parent)
            raise FedspillError(
                f"{self.path} cannot be written: {error} ({free.f_bavail * free.f_frsize:,} bytes are free).",
                remedy="What was stored is whole; free some space and run the same command again.",
            ) from None
        except sqlite3.DatabaseError as error:
            raise InputRefused(f"{self.path} is not a sound audit store: {error}.", remedy="Use --fresh.") from None

    def _facts(self, database: sqlite3.Connection) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in database.execute("SELECT name, value FROM facts")}

    def _note(self, database: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
        rows = [(name, _text(value)) for name, value in facts.items()]
        database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
