"""A function of one row applied to many: at once where vmap can run it, else row after row with the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


def row_by_row(function: Callable[..., Any], in_dims: Sequence[int | None]) -> Callable[..., Any]:
    """Like torch.func.vmap; `in_dims` holds 0 for each argument that has rows and None for each that all rows share.

    A model that branches on its values, or has a layer without a batching rule (recurrent ones), cannot be run by vmap.
    The first refusal is remembered, so that a search of many steps pays for it once.
    """
    by_vmap = vmap(function, in_dims=tuple(in_dims), randomness="different")
    refused = False

    def run(*arguments: Any) -> Any:
        nonlocal refused
        if not refused:
            try:
                return by_vmap(*arguments)
            except (RuntimeError, NotImplementedError):  # what is wrong with the function itself is raised again below
                refused = True
        return one_after_the_other(function, in_dims, arguments)

    return run


def one_after_the_other(function: Callable[..., Any], in_dims: Sequence[int | None], arguments: Sequence[Any]) -> Any:
    """What vmap would return, by a loop over the rows; results are tensors in any nest of dictionaries and lists."""
    having_rows = [argument for argument, dim in zip(arguments, in_dims, strict=True) if dim is not None]
    rows = len(tree_flatten(having_rows)[0][0])
    found = []
    for row in range(rows):
        own = [
            argument if dim is None else tree_map(lambda tensor, row=row: tensor[row], argument)
            for argument, dim in zip(arguments, in_dims, strict=True)
        ]
        found.append(tree_flatten(function(*own)))
    shape = found[0][1]
    return tree_unflatten([torch.stack(parts) for parts in zip(*(leaves for leaves, _ in found), strict=True)], shape)
