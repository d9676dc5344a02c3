"""From token sequences to examples: cut, filled up and shared out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedspill.data.splits import split
from fedspill.dataset import Dataset, Examples, Vocabulary
from fedspill.errors import UsageError


def text_dataset(
    name: str,
    classes: tuple[str, ...],
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int],
    vocabulary: Vocabulary,
    *,
    length: int,
    test_share: float,
    note: str = "",
) -> Dataset:
    """A data set of texts, each cut to `length` tokens and filled up with padding behind."""
    if length < 2:
        raise UsageError(f"A text needs a length of at least 2 tokens, got {length}.")
    x = torch.full((len(sequences), length), vocabulary.padding, dtype=torch.int64)
    for row, tokens in zip(x, sequences, strict=True):
        cut = torch.tensor(tokens[:length], dtype=torch.int64)
        row[: len(cut)] = cut
    y = np.asarray(labels, dtype=np.int64)
    every = Examples(x, torch.from_numpy(y), vocabulary=vocabulary)
    train, test = (every.take(torch.from_numpy(part)) for part in split(y, test_share))
    return Dataset(name, classes, train, test, note=note)
