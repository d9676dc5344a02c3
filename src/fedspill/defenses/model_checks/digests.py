"""The digest of a model: what clients compare to find out whether all of them were handed the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def digest_of(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and values, in the order of names. It gives nothing of the model away but
    whether two are equal.
    """
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return found.hexdigest()


def disagreement(own: str, others: Iterable[str]) -> str:
    """What is wrong where somebody was handed another model; nothing where all agree. Who is lied to is not told."""
    others = list(others)
    different = sum(digest != own for digest in others)
    if not different:
        return ""
    return (
        f"{different} of {len(others)} other clients were handed another model for this round: clients are told apart, "
        "so that each one's samples could be read out of the sum"
    )
