"""Noise: normal and Laplace numbers from a generator that can be repeated, or from the system's secure source.

A privacy guarantee holds only for noise that nobody can repeat. A seed that is written in a plan makes an audit
repeatable and a guarantee void, so the two exclude each other.

Whether noise is there can be refuted: half of its numbers lie within its median absolute value, and whatever training
adds only moves them out. Where surely more than half lie within, there is no such noise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedspill.errors import UsageError

Law: TypeAlias = Literal["gaussian", "laplace"]
Source: TypeAlias = Literal["seeded", "secure"]

_MEDIAN: dict[Law, float] = {"gaussian": 0.67449, "laplace": 0.49013}  # of the absolute value, at deviation 1
_SURE = 6.0  # standard deviations above half: one honest tensor in 10^9


def refuse_claim(claim: bool, source: Source, what: str) -> None:
    """A claim and a fixed seed exclude each other."""
    if claim and source != "secure":
        raise UsageError(
            f"{what} cannot claim a guarantee with seeded noise: whoever knows the seed can take the noise off.",
            remedy="Set noise = 'secure', or leave the claim out.",
        )


def unit_noise(like: Tensor, law: Law, source: Source, rng: torch.Generator) -> Tensor:
    """Independent numbers of mean 0 and standard deviation 1, of the shape, type and device of `like`."""
    if source == "secure":
        return _secure(like.shape, law).to(like)
    rng = _on(like.device, rng)
    noise = torch.randn(like.shape, generator=rng, device=like.device)
    if law == "laplace":
        # A normal whose variance is a unit exponential is Laplace of unit variance.
        noise = noise * torch.empty(like.shape, device=like.device).exponential_(generator=rng).sqrt()
    return noise.to(like)


def lacking(tensors: Mapping[str, Tensor], sigma: float, law: Law) -> tuple[str, float] | None:
    """The tensor that surely has no noise of that deviation on it, and how far it spreads; None where none is found.

    Small tensors say little each, so all of them together are looked at as well.
    """
    bound = sigma * _MEDIAN[law]
    within = {name: (int((tensor.abs() < bound).sum()), tensor.numel()) for name, tensor in tensors.items()}
    for name, (inside, number) in within.items():
        if inside > number / 2 + _SURE * number**0.5 / 2:
            return name, float(tensors[name].abs().flatten().median()) / _MEDIAN[law]
    inside, number = (sum(part) for part in zip(*within.values(), strict=True))
    if inside > number / 2 + _SURE * number**0.5 / 2:
        every = torch.cat([tensor.abs().flatten() for tensor in tensors.values()])
        return "all tensors", float(every.median()) / _MEDIAN[law]
    return None


def _on(device: torch.device, rng: torch.Generator) -> torch.Generator:
    """The generator itself on the CPU; elsewhere one of that device, seeded from it."""
    if device.type == "cpu":
        return rng
    seed = int(torch.randint(2**62, (1,), generator=rng))
    return torch.Generator(device).manual_seed(seed)


def _secure(shape: torch.Size, law: Law) -> Tensor:
    """From os.urandom. Four draws are added up, so that the low bits of a float betray none of them (Holohan 2021)."""
    if law == "laplace":
        return _secure_once(shape.numel(), law).reshape(shape)
    return torch.stack([_secure_once(shape.numel(), law) for _ in range(4)]).sum(0).reshape(shape) / 2


def _secure_once(number: int, law: Law) -> Tensor:
    words = np.frombuffer(os.urandom(8 * number), dtype=np.uint64)
    uniform = torch.from_numpy(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    if law == "gaussian":
        normal: Tensor = torch.special.ndtri(uniform)
        return normal
    tail = (2 * torch.minimum(uniform, 1 - uniform)).log()
    return torch.sign(uniform - 0.5) * -tail / 2**0.5
