"""Encodes answered permission requests the way the COP-MODE papers do: text one-hot, numbers scaled to [0, 1]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedspill.data.splits import split
from fedspill.data.tables import ScaledNumbers, encode, table_dataset
from fedspill.dataset import Dataset
from fedspill.errors import InputRefused

CONTEXT = (
    "callState",
    "networkStatus",
    "plugState",
    "checkedPermissionGroup",
    "selectedSemanticLoc",
    "wasRequestExpected",
    "category",
    "isTopAppRequestingApp",
    "isForeground",
    "hour",
    "isWeekend",
)
COLUMNS = ("userID", *CONTEXT, "grantResult")
INPUTS = 53  # of the original, as published
_NUMBERS = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}


def encode_requests(name: str, requests: Mapping[str, Sequence[str]], test_share: float, note: str) -> Dataset:
    """From the columns of the authors' table to examples; every user has `test_share` of the rows in test.

    As in the authors' code: games are one category, a permission group is the last part of its Android name, the one
    request for SENSORS and rows with an empty cell are left out.
    """
    requests = {
        **requests,
        "checkedPermissionGroup": [group.rsplit(".", 1)[-1] for group in requests["checkedPermissionGroup"]],
        "category": ["GAME" if value.startswith("GAME_") else value for value in requests["category"]],
    }
    rows = [
        row
        for row, cells in enumerate(zip(*(requests[column] for column in COLUMNS), strict=True))
        if not {"", "nan", "NaN", "None"} & set(cells) and requests["checkedPermissionGroup"][row] != "SENSORS"
    ]
    if not rows:
        raise InputRefused(f"{name}: expected answered requests with no empty cell, got none.")
    kept = {column: [requests[column][row] for row in rows] for column in COLUMNS}
    numbers, categories = {}, {}
    for column in CONTEXT:
        values = _as_numbers(kept[column])
        if values is None:
            categories[column] = kept[column]
        else:
            numbers[column] = ScaledNumbers.ranged(values)
    table = encode(numbers, categories)
    _, users = np.unique(kept["userID"], return_inverse=True)
    if table.x.shape[1] != INPUTS:
        note = f"{note} {table.x.shape[1]} inputs, where the original has {INPUTS}.".strip()
    parts = split(users, test_share)
    return table_dataset(
        name, ("deny", "grant"), table, _grants(name, kept["grantResult"]), parts, users=users, note=note
    )


def _as_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The column as finite numbers, True and False as 1 and 0; None where it is text."""
    try:
        values = np.array([_NUMBERS[cell] if cell in _NUMBERS else float(cell) for cell in cells])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _grants(name: str, cells: Sequence[str]) -> NDArray[np.int64]:
    """1 where the request was granted: Android's 0 against -1, else 1 against 0."""
    values = _as_numbers(cells)
    for denied, granted in ((-1, 0), (0, 1)):
        if values is not None and set(values.tolist()) == {denied, granted}:
            return np.equal(values, granted).astype(np.int64)
    raise InputRefused(f"{name}: expected grantResult to be -1 (denied) and 0 (granted), or 0 and 1, with both there.")
