"""Shares read from the whole change of the last layer, with what make-believe clients around all clients sent.

Readings have one number for each class. The whole layer has many more, and in most of them the order of a client's
samples and the samples themselves leave noise that is alike in all clients. So one model serves a whole federation:
around each client the change is linear in the shares, and what that leaves is noise with one covariance, that of all
make-believe clients of the round. It is drawn to equal variances as far as clients that were not fitted to want it.
A client's shares are then the most likely ones (generalised least squares), not drawn to the centre that the
make-believe clients were drawn around: that centre was found from the same update, with the same noise.

Each round gives one estimate, and how their errors hang together is seen on make-believe clients, which hold the same
samples in all rounds as real ones do. What rounds say together is weighed by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.observe.simplex import simplex_fits

SHRINKS = (0.03, 0.1, 0.3, 0.6)  # of the noise's covariance, towards equal variances (convention)
LEAST_ROWS = 2  # make-believe clients of a fold, for each class: fewer leave no noise to see (convention)
MOST_NUMBERS = 20_000_000  # of a round: 160 MB (convention)
WEAK = 0.01  # precision of the draw to the centre over that of the make-believe clients: for classes nobody has
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Surroundings:
    """One client and the make-believe clients around it."""

    known: Tensor  # (make-believe clients, classes) their shares
    folds: Tensor  # (make-believe clients,) numbers 0 and 1
    played: Sequence[Tensor]  # of each round (make-believe clients, numbers): the layer's change
    asked: Sequence[Tensor]  # of each round (numbers,): the client's own
    possible: Tensor  # (make-believe clients, classes) bool: classes that may have been there
    allowed: Tensor  # (classes,) bool: the same of the client


@dataclass(frozen=True, eq=False)
class LayerShares:
    """What the whole layer says of one client."""

    shares: Tensor  # (classes,)
    errors: Tensor  # (make-believe clients, classes) of the shares of those that were not fitted to
    by_round: Tensor  # (rounds,) how far off each round by itself is, for make-believe clients of all

    @property
    def error(self) -> float:
        """The mean L1 distance of such shares."""
        return float(self.errors.abs().sum(1).mean())


def can_be_read(clients: Sequence[Surroundings]) -> bool:
    """Whether there are enough make-believe clients for a covariance, and not too many numbers."""
    rows, classes = sum(len(one.known) for one in clients), clients[0].known.shape[1]
    numbers = rows * max(len(asked) for asked in clients[0].asked)
    return rows // 2 >= LEAST_ROWS * classes and numbers <= MOST_NUMBERS


def read_whole_layer(clients: Sequence[Surroundings]) -> list[LayerShares]:
    """Shares of clients that took part in the same rounds."""
    centres = torch.stack([one.known.mean(0) for one in clients])
    of = torch.repeat_interleave(torch.arange(len(clients)), torch.tensor([len(one.known) for one in clients]))
    known, folds = torch.cat([one.known for one in clients]), torch.cat([one.folds for one in clients])
    off = (known - centres[of])[:, :-1]  # shares add up to 1: the last one follows
    seen, told = [], []
    for number in range(len(clients[0].played)):
        played = torch.cat([one.played[number] - one.played[number].mean(0) for one in clients])
        asked = torch.stack([one.asked[number] - one.played[number].mean(0) for one in clients])
        unseen, answer = _one_round(played, off, folds, asked)
        seen.append(unseen)
        told.append(answer)
    information, unseen, answer = _over_rounds(torch.stack(seen), torch.stack(told), off)
    found = on_simplex(information, answer + centres[:, :-1], torch.stack([one.allowed for one in clients]))
    again = on_simplex(information, unseen + centres[of][:, :-1], torch.cat([one.possible for one in clients]))
    errors, by_round = again - known, (torch.stack(seen) - off).abs().sum(2).mean(1)
    return [LayerShares(shares, errors[of == index], by_round) for index, shares in enumerate(found)]


def _one_round(played: Tensor, off: Tensor, folds: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """What a round says of how far off the centre make-believe clients unseen and real clients are, each (n, m)."""
    tried = []
    for shrink in SHRINKS:
        unseen = torch.zeros_like(off)
        for fold in (0, 1):
            inside = folds == fold
            unseen[inside] = _fitted(played[~inside], off[~inside], played[inside], shrink)
        tried.append((float((unseen - off).abs().sum()), shrink, unseen))
    _, shrink, unseen = min(tried, key=lambda one: one[0])
    return unseen, _fitted(played, off, asked, shrink)


def _fitted(changes: Tensor, off: Tensor, asked: Tensor, shrink: float) -> Tensor:
    """The most likely offsets (n, m) of asked (n, numbers), by changes (k, numbers) of clients with offsets (k, m)."""
    m, spread = off.shape[1], off.T @ off / len(off)
    room = TINY * torch.eye(m, dtype=off.dtype)
    slopes = torch.linalg.solve(off.T @ off + len(off) * room, off.T @ changes)  # (m, numbers)
    left = changes - off @ slopes
    free = max(len(off) - m, 1)
    level = left.square().sum().clamp_min(TINY**2) / free / left.shape[1]
    # The covariance is (1 - shrink) left' left / free + shrink level, inverted among the clients (Woodbury).
    gram = (1 - shrink) / free * (left @ left.T) + shrink * level * torch.eye(len(left), dtype=left.dtype)
    seen = left.T @ torch.linalg.solve(gram, left @ slopes.T)  # (numbers, m)
    whitened = (slopes.T - (1 - shrink) / free * seen) / (shrink * level)
    information = slopes @ whitened + WEAK * torch.linalg.inv(spread + room)
    answer: Tensor = torch.linalg.solve(information, (asked @ whitened).T).T
    return answer


def _over_rounds(unseen: Tensor, told: Tensor, off: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of estimates (rounds, n, m): their information together (m, m), and make-believe and real clients' estimates."""
    rounds, _, m = unseen.shape
    errors = (unseen - off).transpose(0, 1).flatten(1)  # (n, rounds * m)
    covariance = errors.T @ errors / len(errors)
    covariance = covariance + torch.diag(0.01 * covariance.diagonal() + TINY)
    weights = torch.linalg.inv(covariance) @ torch.eye(m, dtype=off.dtype).repeat(rounds, 1)  # (rounds * m, m)
    information = weights.view(rounds, m, m).sum(0)
    information = (information + information.T) / 2
    both = [torch.linalg.solve(information, (one.transpose(0, 1).flatten(1) @ weights).T).T for one in (unseen, told)]
    return information, both[0], both[1]


def on_simplex(information: Tensor, wanted: Tensor, allowed: Tensor) -> Tensor:
    """The likeliest shares (n, m + 1) where all but the last are estimated (n, m), with such information (m, m)."""
    n, m = wanted.shape
    values, vectors = torch.linalg.eigh(information)
    root = vectors * values.clamp_min(TINY * float(values.max())).sqrt()
    columns = torch.cat([root, root.new_zeros(1, m)])  # of each class, the last is where coordinates begin
    stacked = torch.cat([columns.expand(n, m + 1, m), (wanted @ root)[:, None]], 1)
    shares, _ = simplex_fits(stacked @ stacked.transpose(1, 2), allowed)
    return shares
