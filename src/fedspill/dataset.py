"""Examples and Dataset: what a loader hands over; DataSource: what a loader is."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import DataMissing, InputRefused
from fedspill.table_schema import TableSchema


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What the numbers of a text stand for: the bytes of each token, and the tokens that stand for no text."""

    pieces: tuple[bytes, ...]
    padding: int  # fills up what is shorter than the longest
    marks: frozenset[int] = frozenset()  # such as begin and end

    def __len__(self) -> int:
        return len(self.pieces)

    def text(self, tokens: Sequence[int]) -> str:
        """What a person reads; bytes that are no letter by themselves show as a replacement sign."""
        silent = self.marks | {self.padding}
        spoken = [self.pieces[token] for token in tokens if token not in silent and 0 <= token < len(self)]
        return b"".join(spoken).decode("utf-8", errors="replace")


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs x (n, ...) float32, labels y (n,) int64, and, where the data have them, the users (n,) they belong to.

    Text has whole numbers as inputs, x (n, length) int64, and, where it is known, the vocabulary that they are of.
    Records of a table, x (n, columns), have the schema that they are encoded by.
    """

    x: Tensor
    y: Tensor
    users: Tensor | None = None
    vocabulary: Vocabulary | None = None
    schema: TableSchema | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_text(self) -> bool:
        return not self.x.is_floating_point()

    def take(self, indices: Tensor) -> Examples:
        users = None if self.users is None else self.users[indices]
        return Examples(self.x[indices], self.y[indices], users, self.vocabulary, self.schema)

    def to(self, device: torch.device | str) -> Examples:
        users = None if self.users is None else self.users.to(device)
        return Examples(self.x.to(device), self.y.to(device), users, self.vocabulary, self.schema)

    @staticmethod
    def join(parts: Sequence[Examples]) -> Examples:
        users = [part.users for part in parts if part.users is not None]
        return Examples(
            torch.cat([part.x for part in parts]),
            torch.cat([part.y for part in parts]),
            torch.cat(users) if len(users) == len(parts) else None,
            parts[0].vocabulary,
            parts[0].schema,
        )


@dataclass(frozen=True, eq=False)
class KnownSamples:
    """What an adversary of a vertical federation knows of a few of its samples, which it names by their indices."""

    indices: Tensor  # (n,) int64, as in the server's batches
    values: Tensor  # (n, ...): their labels, or the features that another party holds of them

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded data set; image inputs are (n, channels, height, width) in [0, 1], tables (n, columns).

    Texts are (n, length) int64, a token in each place and padding behind the last.
    """

    name: str
    classes: tuple[str, ...]
    train: Examples
    test: Examples
    columns: tuple[str, ...] = ()  # of tables
    groups: tuple[tuple[int, ...], ...] = ()  # columns that encode one attribute together (one-hot)
    note: str = ""  # what a reader must know, e.g. that only part of the original is here

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @property
    def is_text(self) -> bool:
        return self.train.is_text

    def as_numbers(self) -> Dataset:
        """The same with whole numbers taken for measured ones."""
        train, test = (replace(part, x=part.x.float()) for part in (self.train, self.test))
        return replace(self, train=train, test=test)


class DataSource(ABC):
    """One data set. Concrete: a frozen dataclass, its fields are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    folder: ClassVar[str] = ""  # below the data folder; empty: embedded, needs no files
    source: ClassVar[str] = ""  # where a person gets the files

    @abstractmethod
    def read(self, folder: Path) -> Dataset:
        """What the author writes: the data set from the files in `folder`."""

    @final
    def load(self, data_dir: Path | str | None = None) -> Dataset:
        """Finds the folder, reads it, and checks what came out."""
        dataset = self.read(data_folder(data_dir) / self.folder if self.folder else Path())
        for part, examples in (("train", dataset.train), ("test", dataset.test)):
            if len(examples.x) != len(examples.y):
                raise InputRefused(f"{self.name}: {len(examples.x)} {part} inputs but {len(examples.y)} labels.")
            if not torch.isfinite(examples.x).all():
                raise InputRefused(f"{self.name}: a {part} input is NaN or infinite.")
            if len(examples.y) and not 0 <= int(examples.y.min()) <= int(examples.y.max()) < len(dataset.classes):
                raise InputRefused(f"{self.name}: a {part} label lies outside the {len(dataset.classes)} classes.")
        return dataset

    @final
    def missing(self, folder: Path, files: Sequence[str]) -> DataMissing:
        """The error to raise when none of the known layouts is in `folder`."""
        return DataMissing(
            f"{self.title} is not in {folder}: expected {' or '.join(files)}.",
            remedy=f"Get it from {self.source}, and name the folder above it with --data-dir or FEDSPILL_DATA.",
        )


def data_folder(given: Path | str | None = None) -> Path:
    """The folder of real data sets: as given, else FEDSPILL_DATA, else ./data."""
    return Path(given or os.environ.get("FEDSPILL_DATA") or "data")
