"""Sentences with a mean rating by people (Hutto and Gilbert 2014): film reviews, tweets, product reviews, editorials.

The film reviews are sentences of Rotten Tomatoes, on which attacks on text are measured.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from fedspill.data.archives import read_file, refusing
from fedspill.data.byte_pairs import MERGES, VOCABULARIES, BytePairs
from fedspill.data.texts import text_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused, UsageError

MARKS = ("<begin>", "<end>")


@dataclass(frozen=True)
class Snippets(DataSource, ABC):
    """Each line: a number, the mean rating from -4 to 4, the text. The label is whether the rating is above 0."""

    folder: ClassVar[str] = "text"
    source: ClassVar[str] = "the VADER project, which publishes these files, and any GPT-2 vocabulary"
    file: ClassVar[str]

    length: int = 64  # tokens that a text is cut to
    shortest: int = 4  # tokens; shorter texts are left out
    marked: bool = False  # a token for the begin and one for the end, as encoders have
    test_share: float = 0.2
    most: int | None = None  # texts that are read, for a quick trial

    def read(self, folder: Path) -> Dataset:
        if self.shortest < 1 or (self.most is not None and self.most < 1):
            raise UsageError("The options 'shortest' and 'most' take whole numbers from 1 up.")
        path = folder / self.file
        if not path.is_file() or not any((folder / name).is_file() for name in (*VOCABULARIES, *MERGES)):
            raise self.missing(folder, [f"{self.file} with {VOCABULARIES[0]} and {MERGES[0]}"])
        tokens = BytePairs.read(folder)
        vocabulary = tokens.vocabulary(MARKS if self.marked else ())
        begin, end = (sorted(vocabulary.marks)) if self.marked else (-1, -1)
        sequences, labels = [], []
        for text, rating in _lines(path)[: self.most]:
            found = tokens.encode(text)
            if len(found) >= self.shortest:
                room = self.length - 2 if self.marked else self.length
                sequences.append([begin, *found[:room], end] if self.marked else found)
                labels.append(int(rating > 0))
        return text_dataset(
            self.name,
            ("negative", "positive"),
            sequences,
            labels,
            vocabulary,
            length=self.length,
            test_share=self.test_share,
        )


def _lines(path: Path) -> list[tuple[str, float]]:
    """Text and rating of every line; bytes that are no UTF-8 are read as Latin-1."""
    data = read_file(path)
    found = []
    with refusing(path, "lines of number, rating and text"):
        for number, line in enumerate(data.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError:
                text = line.decode("latin-1")
            parts = text.rstrip("\r").split("\t", 2)
            if len(parts) != 3:
                raise InputRefused(f"{path}, line {number}: expected 3 fields, got {len(parts)}.")
            found.append((parts[2], float(parts[1])))
    return found


@final
@dataclass(frozen=True)
class RottenTomatoes(Snippets):
    """Sentences of film reviews."""

    name = "rotten-tomatoes"
    title = "Rotten Tomatoes sentences"
    paper = "Pang and Lee, Seeing stars, ACL 2005; ratings of Hutto and Gilbert, ICWSM 2014"
    file = "movieReviewSnippets_GroundTruth.txt"


@final
@dataclass(frozen=True)
class Tweets(Snippets):
    """Short messages, as people type them."""

    name = "tweets"
    title = "Tweets with ratings"
    paper = "Hutto and Gilbert, VADER, ICWSM 2014"
    file = "tweets_GroundTruth.txt"


@final
@dataclass(frozen=True)
class ProductReviews(Snippets):
    """Sentences of product reviews."""

    name = "product-reviews"
    title = "Sentences of product reviews"
    paper = "Hu and Liu, KDD 2004; ratings of Hutto and Gilbert, ICWSM 2014"
    file = "amazonReviewSnippets_GroundTruth.txt"


@final
@dataclass(frozen=True)
class Editorials(Snippets):
    """Sentences of newspaper editorials."""

    name = "editorials"
    title = "Sentences of newspaper editorials"
    paper = "Hutto and Gilbert, VADER, ICWSM 2014"
    file = "nytEditorialSnippets_GroundTruth.txt"
