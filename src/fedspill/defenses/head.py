"""The last layer, found on the wire: which tensors of an update belong to it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def head_names(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names of the last two-dimensional tensor and, where it follows, its bias; empty if there is no such tensor."""
    names = list(tensors)
    weights = [index for index, name in enumerate(names) if tensors[name].ndim == 2]
    if not weights:
        return ()
    last = weights[-1]
    found = [names[last]]
    if last + 1 < len(names) and tensors[names[last + 1]].shape == tensors[names[last]].shape[:1]:
        found.append(names[last + 1])
    return tuple(found)


def head_module(model: nn.Module) -> nn.Module | None:
    """The last linear layer of a model, in the order of its definition."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None
