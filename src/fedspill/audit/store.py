"""Store: one SQLite file per audit folder; each unit is one transaction, with all that made it."""

from __future__ import annotations

import hashlib
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
_ASIDE = "Use --fresh, which moves it aside and starts over, or name another --out folder."
VERSION = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,     -- hash of the code and of the job
    kind TEXT NOT NULL,       -- record, attack or control
    job TEXT NOT NULL,        -- everything that made it: attack, all its options, adversary, defense, seed
    outcome TEXT NOT NULL,    -- what came of it
    seconds REAL NOT NULL,
    checksum TEXT NOT NULL    -- of all the others: a row that was changed is found out
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
        self._read: dict[str, Stored] = {}  # by checksum: a unit is read many times, and never changes
        if not create and not self.path.is_file():
            raise UsageError(f"{folder} holds no audit.", remedy=f"Name a folder with {NAME} in it.")
        if create:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        if not self.path.is_file() or self.path.is_symlink():
            raise InputRefused(f"{self.path} is no file.", remedy="Remove it, or name another folder.")
        with self._database() as database:
            if create and not self._tables(database):
                database.executescript(_SCHEMA)
                self._note(database, {"version": VERSION})
            self._refuse_foreign(database)

    def _tables(self, database: sqlite3.Connection) -> set[str]:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def _refuse_foreign(self, database: sqlite3.Connection) -> None:
        if self._tables(database) != {"facts", "results"}:
            raise InputRefused(f"{self.path} is not the store of an audit.", remedy=_ASIDE)
        columns = [row[1] for row in database.execute("PRAGMA table_info(facts)")]
        if columns != ["name", "value", "checksum"] or self._facts(database).get("version") != VERSION:
            raise InputRefused(f"{self.path} is of another version of fedspill.", remedy=_ASIDE)
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise InputRefused(f"{self.path} is damaged: {found}.", remedy=_ASIDE)

    def facts(self) -> dict[str, Any]:
        with self._database() as database:
            return self._facts(database)

    def note(self, facts: Mapping[str, Any]) -> None:
        with self._database() as database:
            self._note(database, facts)

    def results(self) -> dict[str, Stored]:
        """Every finished unit by its key."""
        with self._database() as database:
            rows = database.execute("SELECT * FROM results ORDER BY key").fetchall()
        return {row[0]: self._stored(*row) for row in rows}

    def _stored(self, key: str, kind: str, job: str, outcome: str, seconds: float, checksum: str) -> Stored:
        if _checksum(key, kind, job, outcome, seconds) != checksum:
            raise InputRefused(f"{self.path} is damaged: a result is not what was stored.", remedy=_ASIDE)
        if checksum not in self._read:
            try:
                self._read[checksum] = Stored(outcome_from(kind, json.loads(outcome)), seconds)
            except (ValueError, KeyError):  # sound, and of another version
                raise InputRefused(f"{self.path} is of another version of fedspill.", remedy=_ASIDE) from None
        return self._read[checksum]

    def add(self, key: str, job: Job, outcome: JobOutcome, seconds: float) -> None:
        """One unit, whole or not at all."""
        row = (key, job.kind, _text(job.as_json()), _text(outcome.model_dump(mode="json")), seconds)
        with self._database() as database:
            database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?)", (*row, _checksum(*row)))

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
            if not _is_about_space(error):
                raise InputRefused(f"{self.path} is damaged or foreign: {error}.", remedy=_ASIDE) from None
            free = os.statvfs(self.path.parent)
            raise FedspillError(
                f"{self.path} cannot be written: {error} ({free.f_bavail * free.f_frsize:,} bytes are free).",
                remedy="What was stored is whole; free some space and run the same command again.",
            ) from None
        except sqlite3.DatabaseError as error:
            raise InputRefused(f"{self.path} is damaged or foreign: {error}.", remedy=_ASIDE) from None

    def _facts(self, database: sqlite3.Connection) -> dict[str, Any]:
        found = {}
        for name, value, checksum in database.execute("SELECT name, value, checksum FROM facts"):
            if _checksum(name, value) != checksum:
                raise InputRefused(f"{self.path} is damaged: a fact is not what was stored.", remedy=_ASIDE)
            found[name] = json.loads(value)
        return found

    def _note(self, database: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
        rows = [(name, text, _checksum(name, text)) for name, text in ((n, _text(v)) for n, v in facts.items())]
        database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)


def _is_about_space(error: sqlite3.OperationalError) -> bool:
    """A store that cannot be written now, but is whole."""
    words = ("full", "disk", "locked", "readonly", "read-only", "unable to open", "permission", "i/o")
    return any(word in str(error).lower() for word in words) and "malformed" not in str(error)


def _checksum(*columns: object) -> str:
    """Of a row; text and numbers as they are stored. Bytes that cannot be text are found out by it, too."""
    return hashlib.sha256("\0".join(map(repr, columns)).encode(errors="surrogateescape")).hexdigest()[:32]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
