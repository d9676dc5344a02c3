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
# Of its size, by which a weight or a bias moves before a model is tried out again. Plants that read nothing when a
# tenth of their way is left read all at its end (docs/guards.md): a model must not come that far between two trials.
_STIRRED, _SHIFTED = 0.02, 0.04
MOST_ALIKE = 0.1  # of a layer's rows that have a parallel one; none of the benign models measured has any
LEAST_LEFT = 0.15  # median cosine with the first model; benign training left 0.33 at least (docs/design/active.md)
_NARROWEST = 16  # rows from which on a layer is looked at
_SHORT, _LONG = 8, 64  # weights of a row, from which on rows are compared with each other, and with the first model's
_MOST_ROWS = 1024  # compared with each other, evenly taken
# Cosine of two rows. Honest training turned rows of tables towards each other by 0.94 at most in 100 rounds
# (docs/design/active.md); of two random rows of eight weights it is above 0.97 in one of 10^5 pairs.
_PARALLEL = 0.97
_NEARLY = 0.96  # of their projections, from which on rows are compared themselves: it is off by 0.02 at such angles


@final
class RowLook(NamedTuple):
    """Of all layers that are looked at, the worst."""

    alike: float  # share of rows that have a parallel one
    alike_in: str  # the layer
    left: float  # median cosine of rows with those of the first model
    turned_in: str


def sketched(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(rows, 8) projections of the rows of every weight, by name; what has fewer numbers is kept as it is."""
    found = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel():
            rows = tensor.detach().float().cpu()
            rows = rows.reshape(len(tensor), -1) if tensor.ndim else rows.reshape(1, 1)
            found[name] = rows @ _projection(rows.shape[1]) if rows.shape[1] > PROJECTIONS else rows
    return found


def sketch_rows(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same of weights alone that have rows worth comparing with each other."""
    return sketched({name: tensor for name, tensor in state.items() if has_rows(tensor)})


def has_rows(tensor: Tensor, shortest: int = _SHORT) -> bool:
    """Whether a weight has rows that are worth comparing with each other."""
    long = tensor.ndim in (2, 4) and len(tensor) >= _NARROWEST and tensor[0].numel() >= shortest
    return long and tensor.is_floating_point()


def is_wide(tensor: Tensor) -> bool:
    """Whether a weight has rows of which something must be left: short ones turn away in honest training too."""
    return has_rows(tensor, _LONG)


def stirred(now: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> bool:
    """Whether any tensor moved so far between two models that the one may show what the other does not."""
    if now.keys() != before.keys() or any(now[name].shape != before[name].shape for name in now):
        return True
    return any(
        float((rows - before[name]).norm()) > (_STIRRED if rows.shape[1] > 1 else _SHIFTED) * float(before[name].norm())
        for name, rows in now.items()
    )


def look_at_rows(now: Mapping[str, Tensor], first: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> RowLook:
    """Compares sketches of a model, `state`, with those of the first; without a first one nothing has turned."""
    alike, alike_in, left, turned_in = 0.0, "", 1.0, ""
    for name, rows in now.items():
        share = _share_alike(rows, _NEARLY)
        if share > MOST_ALIKE:
            share = _share_alike(state[name].detach().float().flatten(1).cpu(), _PARALLEL)
        if share > alike:
            alike, alike_in = share, name
        if name in first and first[name].shape == rows.shape:
            kept = float(torch.nn.functional.cosine_similarity(rows, first[name].to(rows), dim=1).median())
            if kept < left:
                left, turned_in = kept, name
    return RowLook(alike, alike_in, left, turned_in)


def _share_alike(rows: Tensor, cosine: float) -> float:
    """The share of rows that have another one at a smaller angle."""
    rows = rows[:: max(1, len(rows) // _MOST_ROWS)]
    sizes = rows.norm(dim=1)
    rows = rows[sizes > 1e-3 * sizes.median()]  # rows of zeros are alike and read nothing
    if len(rows) < _NARROWEST:
        return 0.0
    unit = rows / rows.norm(dim=1, keepdim=True)
    nearest = (unit @ unit.T).fill_diagonal_(-1).amax(1)
    return float((nearest > cosine).double().mean())


@cache
def _projection(width: int) -> Tensor:
    drawn: Tensor = torch.randn(width, PROJECTIONS, generator=torch.Generator().manual_seed(width))
    return drawn
