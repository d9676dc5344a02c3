"""What a column of comma-separated text is: numbers, words, or neither; and what its owner should be told of it.

Cells are data: they are counted and told by their rows, never quoted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Cells that stand for no number, in any case: what pandas.read_csv takes for missing, the question mark of UCI's
# tables, the dashes of spreadsheets, the point of SAS and Stata.
MISSING = frozenset(
    {"", "?", "-", "--", ".", "na", "n/a", "n.a.", "<na>", "#n/a", "#n/a n/a", "#na", "nan", "-nan", "null", "none"}
)
MOST_VALUES = 50  # of a column of words; one with more is an id or free text, and must be left out by name
FEWEST_ROWS = 20  # below it, a different whole number in each row says nothing: a convention

_FORMS = (  # what cells that are no numbers may be instead, and what to do with them
    (
        re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?"),
        "numbers with commas between their thousands, or with decimal commas",
        "Write them with a decimal point and nothing between digits: 1234.5.",
    ),
    (re.compile(r"[-+]?\d*,\d+"), "numbers with decimal commas", "Write them with decimal points: 3.5."),
    (
        re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ].*)?"),
        "dates",
        'Turn them into numbers, such as days since a day, or leave the column out: leave_out = ["{name}"].',
    ),
)


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def numbers_in(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The column as finite numbers, NaN where one is missing; None where it is not of numbers."""
    try:
        values = np.asarray(["nan" if is_missing(cell) else cell for cell in cells], dtype=np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).any() and not np.isinf(values).any() else None


def why_unclear(name: str, cells: Sequence[str]) -> str:
    """Of a column that may have been meant as numbers and cannot be read as such: why, and what to do; else empty.

    To take it for words would be a guess, and a wrong one changes what is learned without a word.
    """
    if numbers_in(cells) is not None:
        return ""
    told = Counter(cell for cell in cells if not is_missing(cell))  # each value once: tables are long
    odd = {cell: count for cell, count in told.items() if not _is_number(cell)}
    many, all_told = sum(odd.values()), told.total()
    codes = f'If its values are codes of categories: categories = ["{name}"].'
    for form, what, remedy in _FORMS:
        # Most of what is no number has the form: one odd cell more must not hide what the column is.
        alike = sum(count for cell, count in odd.items() if form.fullmatch(cell.strip()))
        if 2 * alike > many > all_told / 2:
            return f"column {name!r} is of {what}. {remedy.format(name=name)} {codes}"
    if 0 < many < all_told / 2:
        first = next(row for row, cell in enumerate(cells, 2) if cell in odd)  # row 1 has the names
        return (
            f"column {name!r} is of numbers but for {many} of its {len(cells)} cells, the first in row {first}. "
            f"Write a finite number there, or nothing: an empty cell counts as missing. {codes}"
        )
    return ""


def why_too_many(name: str, cells: Sequence[str]) -> str:
    """Of a column of words: that they are too many to be categories; else empty."""
    values = len(set(cells))
    if values <= MOST_VALUES:
        return ""
    return (
        f"column {name!r} is of words and has {values} values; categories have at most {MOST_VALUES}. "
        f'An id or a name is no input: leave_out = ["{name}"].'
    )


def remark_on_numbers(name: str, numbers: NDArray[np.float64]) -> str:
    """What its owner may not have meant by a column of numbers; empty where there is nothing to say."""
    whole = bool((numbers == np.rint(numbers)).all())  # false where one is missing
    if whole and len(numbers) >= FEWEST_ROWS and len(np.unique(numbers)) == len(numbers):
        which = f"Column {name!r}" if name else "The column without a name"
        return (
            f"{which} has a different whole number in each row and is read as an input. "
            f'If that is an id, leave it out: leave_out = ["{name}"].'
        )
    return ""


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
