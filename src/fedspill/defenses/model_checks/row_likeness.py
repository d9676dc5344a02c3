"""How alike a layer's rows are to each other, and how far they have turned away from the first model's.

Training turns rows a little and makes no two of them parallel. Bins are rows of one direction that differ in their
thresholds, and rows that were planted have nothing left of what they were, whether they came at once or over forty
rounds. Rows are looked at through eight random projections, which is what is kept of the first model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, final

import torch
from torch import Tensor

PROJECTIONS = 8
MOST_ALIKE = 0.1  # of a layer's rows that have a parallel one; none of the benign models measured has any
LEAST_LEFT = 0.15  # median cosine with the first model; benign training left 0.33 at least (docs/design/active.md)
_NARROWEST, _SHORTEST = 16, 64  # rows, and weights of a row, from which on a layer is looked at
_MOST_ROWS = 1024  # compared with each other, evenly taken
_PARALLEL = 0.9995  # cosine of projections; of two random rows it is so large in one of 10^11 pairs


@final
class RowLook(NamedTuple):
    """Of all layers that are looked at, the worst."""

    alike: float  # share of rows that have a parallel one
    alike_in: str  # the layer
    left: float  # median cosine of rows with those of the first model
    turned_in: str


def sketch_rows(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(rows, 8) projections of the rows of every weight that is large enough, by name."""
    wide = {
        name: tensor.detach().reshape(len(tensor), -1).float().cpu()
        for name, tensor in state.items()
        if tensor.is_floating_point() and tensor.ndim in (2, 4) and len(tensor) >= _NARROWEST
    }
    return {name: rows @ _projection(rows.shape[1]) for name, rows in wide.items() if rows.shape[1] >= _SHORTEST}


def look_at_rows(now: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> RowLook:
    """Compares sketches of a model with those of the first; without a first one nothing has turned."""
    alike, alike_in, left, turned_in = 0.0, "", 1.0, ""
    for name, rows in now.items():
        share = _share_alike(rows)
        if share > alike:
            alike, alike_in = share, name
        if name in first and first[name].shape == rows.shape:
            kept = float(torch.nn.functional.cosine_similarity(rows, first[name].to(rows), dim=1).median())
            if kept < left:
                left, turned_in = kept, name
    return RowLook(alike, alike_in, left, turned_in)


def _share_alike(rows: Tensor) -> float:
    rows = rows[:: max(1, len(rows) // _MOST_ROWS)]
    sizes = rows.norm(dim=1)
    rows = rows[sizes > 1e-3 * sizes.median()]  # rows of zeros are alike and read nothing
    if len(rows) < _NARROWEST:
        return 0.0
    unit = rows / rows.norm(dim=1, keepdim=True)
    nearest = (unit @ unit.T).fill_diagonal_(-1).amax(1)
    return float((nearest > _PARALLEL).double().mean())


@cache
def _projection(width: int) -> Tensor:
    drawn: Tensor = torch.randn(width, PROJECTIONS, generator=torch.Generator().manual_seed(width))
    return drawn
