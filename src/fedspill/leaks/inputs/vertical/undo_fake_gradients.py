"""The attacker who knows of fake gradients (paper 001, section 3.4): a low-rank matrix from the order of its entries.

The upload keeps the order of all entries, and the true gradient of a batch of K has rank K. So: project on rank K, give
the projection's sorted values to the entries in the observed order, and repeat.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.server_observations import PartyUploads, ServerObservations, replayed

_AT_ONCE = 1 << 25  # entries


def undo_fake_gradients(observed: ServerObservations, iterations: int, rng: torch.Generator) -> ServerObservations:
    """The same rounds with every weight gradient replaced by the low-rank matrix of the same order and norm."""
    return replace(observed, uploads=tuple(_undone(uploads, observed, iterations, rng) for uploads in observed.uploads))


def _undone(uploads: PartyUploads, observed: ServerObservations, iterations: int, rng: torch.Generator) -> PartyUploads:
    found: dict[int, Tensor] = {}
    waiting: list[tuple[int, Tensor]] = []
    for place, total in uploads.products():
        waiting.append((place, total))
        if len(waiting) * total.numel() >= _AT_ONCE:
            found |= _low_rank(waiting, observed, iterations, rng)
            waiting = []
    if waiting:
        found |= _low_rank(waiting, observed, iterations, rng)
    return replace(uploads, products=replayed(found))


def _low_rank(
    waiting: list[tuple[int, Tensor]], observed: ServerObservations, iterations: int, rng: torch.Generator
) -> dict[int, Tensor]:
    sent = torch.stack([total for _, total in waiting])
    rank = max(len(observed.batches[place]) for place, _ in waiting)
    norms = sent.flatten(1).norm(dim=1)[:, None, None]
    made = low_rank_in_same_order(sent, rank, iterations, rng)
    return {place: one for (place, _), one in zip(waiting, made * norms, strict=True)}


def low_rank_in_same_order(sent: Tensor, rank: int, iterations: int, rng: torch.Generator) -> Tensor:
    """Matrices (t, d1, d2) of that rank, nearly, and unit norm, whose entries are in the order of those in `sent`."""
    order = sent.flatten(1).argsort(1)
    z = sent / sent.flatten(1).norm(dim=1)[:, None, None].clamp_min(1e-30)
    basis = torch.linalg.qr(torch.randn(len(z), z.shape[2], rank, generator=rng).to(z))[0]
    for _ in range(iterations):
        basis = torch.linalg.qr(z.transpose(1, 2) @ (z @ basis))[0]
        projected = (z @ basis) @ basis.transpose(1, 2)
        values = projected.flatten(1).sort(1).values
        z = torch.empty_like(values).scatter_(1, order, values).reshape(z.shape)
        z = z / values.norm(dim=1)[:, None, None].clamp_min(1e-30)
    projected = (z @ basis) @ basis.transpose(1, 2)
    found: Tensor = projected / projected.flatten(1).norm(dim=1)[:, None, None].clamp_min(1e-30)
    return found
