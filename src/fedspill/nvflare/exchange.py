"""What NVFlare sends, read as tensors: the model or the update in a Shareable, its round, and who sent it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from fedspill.errors import FedspillError, InputRefused

KINDS = (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)


@dataclass(frozen=True, eq=False)
class Parameters:
    """Numbers that came or go, with storage of their own."""

    tensors: dict[str, Tensor]
    is_difference: bool
    meta: Mapping[str, Any]


def parameters_of(shareable: Shareable) -> Parameters:
    """The model or update in it; refused where there is none, or something other than arrays of numbers."""
    try:
        dxo = from_shareable(shareable)
    except Exception as error:
        raise InputRefused(f"it holds no DXO ({type(error).__name__})") from None
    if dxo.data_kind not in KINDS:
        raise InputRefused(f"it holds {str(dxo.data_kind)[:40]}, expected weights or their difference")
    if not isinstance(dxo.data, Mapping) or not dxo.data:
        raise InputRefused("it holds no arrays")
    tensors = {str(name): _tensor(str(name), value) for name, value in dxo.data.items()}
    return Parameters(tensors, dxo.data_kind == DataKind.WEIGHT_DIFF, dxo.meta or {})


def replaced(shareable: Shareable, tensors: Mapping[str, Tensor]) -> Shareable:
    """The same message with these numbers in the place of its own, each in the form that was there."""
    dxo: DXO = from_shareable(shareable)
    for name, tensor in tensors.items():
        dxo.data[name] = tensor if isinstance(dxo.data[name], Tensor) else tensor.numpy()
    changed: Shareable = dxo.update_shareable(shareable)
    return changed


def change_by(parameters: Parameters, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The update: what is sent, or its difference from `start`, of every tensor of floating-point numbers.

    Integers (counters of batch norm) are state and not part of it. Arrays that were not in `start`, or have another
    shape, are passed on as they are, so that the check of the update can name them.
    """
    update = {}
    for name, now in parameters.tensors.items():
        before = start.get(name)
        if before is None or before.shape != now.shape:
            update[name] = now
        elif before.is_floating_point():
            update[name] = now.to(before.dtype) if parameters.is_difference else (now - before).to(before.dtype)
    return update


def sender_of(fl_ctx: FLContext) -> str:
    """The other side's name."""
    peer = fl_ctx.get_peer_context()
    name = peer.get_identity_name() if isinstance(peer, FLContext) else ""
    if not name:
        raise FedspillError("NVFlare does not say who sent it")
    return str(name)


def round_of(shareable: Shareable) -> int | None:
    """From 0, as the server states it."""
    stated = shareable.get_header(AppConstants.CURRENT_ROUND)
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated >= 0 else None


def _tensor(name: str, value: object) -> Tensor:
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray | np.number) and np.asarray(value).dtype.kind in "fiub":
        array = np.array(value)  # a copy: NVFlare may go on to write to its own
        if array.dtype.itemsize <= 8 and array.dtype.isnative:
            return torch.from_numpy(array)
    raise InputRefused(f"it has something other than an array of numbers at {name[:80]!r}")
