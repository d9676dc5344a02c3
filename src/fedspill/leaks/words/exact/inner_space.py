"""Inside a feed-forward part: a layer four times as wide as the model, so that many more inputs can be told.

The gradient of its last matrix has one row for each of the model's dimensions, and every row is a mixture of what that
matrix read. With more inputs than rows no input lies wholly in the row space. Another one lies in it by a quarter of
its length squared, one that was there by a quarter and rows / inputs of the rest: its own part beside the chance of all
others. That holds also where inputs are more than the layer has dimensions. Inputs that are known are taken out of
both: as soon as those that are not known are fewer than the rows, the others lie in it wholly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

_WEAKEST = 1e-4  # share of the mean variance that every direction is given beside its own
_ROUNDED = 3e-6  # share of a row that must be left of it when the others are taken out, else it is rounding
_NEW = 2e-3  # share of a vector's usual length that must be new for it to add a direction
_KNOWN_COUNTS = 1e-3  # weight of what is known in a share: it matters where hardly anything else is left of an input
_KNOWN_DRAWN = 32  # directions among the known ones that a screen looks at
_FULL = 0.95  # share of the dimensions that may be filled


@dataclass(frozen=True, eq=False)
class InnerSpace:
    """What was sent of one block, and inputs that are known to have been there, in the metric of usual inputs.

    It may be of the first so many numbers of the inner layer alone: as much is told of them, at less work. Inputs may
    be given whole.
    """

    metric: Tensor  # (inner, inner) gives usual inputs unit covariance; float32
    sent: Tensor  # (inner, rank) orthonormal, of the gradient's rows; float64
    known: Tensor  # (inner, k) orthonormal: inputs that were there
    rows: Tensor  # (inner, at most rank) orthonormal: what is left of the rows when these are taken out

    @staticmethod
    def of(gradient: Tensor, covariance: Tensor) -> InnerSpace:
        """From the gradient (width, inner) of the last matrix and the covariance (inner, inner) of usual inputs."""
        usual = covariance + _WEAKEST * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
        lower = torch.linalg.cholesky(usual)
        metric = torch.linalg.solve_triangular(lower, torch.eye(len(usual)).to(usual), upper=False).T.contiguous()
        rows = gradient[:, : len(metric)].double()
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
        sent = _orthonormal(rows @ metric.double())
        return InnerSpace(metric, sent, sent[:, :0], sent)

    @property
    def room(self) -> int:
        """How many more inputs may be known."""
        return int(_FULL * len(self.sent)) - self.known.shape[1] - self.rows.shape[1]

    def screen(self, many: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """(inner, m) directions and (m, 2) what the square along each counts for: within the rows, and at all.

        Of the rows, and of the dimensions that are neither known nor rows, at most `many` are drawn each, of the known
        ones some: so that `shares` can be told at a part of its price.
        """
        free = len(self.sent) - self.known.shape[1] - self.rows.shape[1]
        held, rows = self.known.float(), self.rows.float()
        many = min(many, max(1, rows.shape[1]))
        fill = torch.randn(len(self.sent), min(many, free), generator=rng).to(rows)
        outside = torch.linalg.qr(fill - held @ (held.T @ fill) - rows @ (rows.T @ fill))[0]
        if many < rows.shape[1]:
            rows = rows @ torch.linalg.qr(torch.randn(rows.shape[1], many, generator=rng).to(rows))[0]
        known = held @ torch.randn(held.shape[1], _KNOWN_DRAWN, generator=rng).to(rows) / _KNOWN_DRAWN**0.5
        weights = [
            torch.tensor([[self.rows.shape[1] / max(1, rows.shape[1])] * 2]).expand(rows.shape[1], 2),
            torch.tensor([[0.0, free / max(1, outside.shape[1])]]).expand(outside.shape[1], 2),
            torch.full((_KNOWN_DRAWN, 2), _KNOWN_COUNTS),
        ]
        directions = torch.cat([rows, outside, known], 1)
        return self.metric @ directions, torch.cat(weights).to(directions)

    def _turned(self, inputs: Tensor) -> Tensor:
        return inputs[:, : len(self.metric)].float() @ self.metric

    def shares(self, inputs: Tensor) -> Tensor:
        """(n,) how much of the squared length of each of inputs (n, inner), beside what is known, lies in the rows.

        What lies wholly in what is known has no rest to speak of, and a share of 1.
        """
        every = self._turned(inputs)
        known, rows = self.known.float(), self.rows.float()
        along = every @ known
        rest = every - along @ known.T
        had = _KNOWN_COUNTS * along.square().sum(1)
        inside: Tensor = ((rest @ rows).square().sum(1) + had) / (rest.square().sum(1) + had).clamp_min(1e-30)
        return inside

    def knowing(self, inputs: Tensor) -> InnerSpace:
        """The same when inputs (n, inner) are known to have been there."""
        new = self._turned(inputs[: max(0, self.room)]).double()
        if not len(new):
            return self
        for _ in range(2):  # twice, against rounding
            new = new - (new @ self.known) @ self.known.T
        squares, mixtures = (part.to(new) for part in torch.linalg.eigh((new @ new.T).cpu()))
        fresh = squares > _NEW**2 * len(self.metric)
        added = new.T @ (mixtures[:, fresh] / squares[fresh].sqrt())
        return replace(self, known=torch.cat([self.known, added], 1), rows=_without(self.rows, added))

    def support(self, inputs: Tensor) -> Tensor:
        """(n,) how much more of the rows each of inputs (n, inner) explains beside the others than chance would: F.

        It is about 1 for an input that was not there, and large for one that was, the more so the fewer are missing.
        """
        known, rows = self._turned(inputs).double(), self.sent.T
        gram = known @ known.T
        ridge = 1e-9 * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
        inverse = torch.linalg.inv(gram + ridge)
        weights = rows @ known.T @ inverse  # (rank, n)
        left = (rows - weights @ known).square().sum() / (len(rows) * max(1, len(self.metric) - len(known)))
        explained: Tensor = weights.square().sum(0) / inverse.diagonal() / (len(rows) * left.clamp_min(1e-300))
        return explained


def _without(basis: Tensor, added: Tensor) -> Tensor:
    """(inner, rank) orthonormal: what basis (inner, n) spans when the orthonormal directions (inner, k) are taken out.

    With the singular values c of basis' added, the rest has lengths sqrt(1 - c^2) along the directions of these, and
    1 along all others: only as many as were added need to be turned.
    """
    turned, shared, _ = (part.to(basis) for part in torch.linalg.svd((basis.T @ added).cpu(), full_matrices=True))
    lengths = torch.ones(basis.shape[1]).to(basis)
    lengths[: len(shared)] = (1 - shared.square()).clamp_min(0).sqrt()
    there = lengths > _ROUNDED
    mixed = basis @ turned[:, there]
    left: Tensor = (mixed - added @ (added.T @ mixed)) / lengths[there]
    return left


def _orthonormal(rows: Tensor) -> Tensor:
    """(inner, rank) a basis of what rows (n, inner) span, in float64; of lengths about 1."""
    squares, mixtures = (part.to(rows) for part in torch.linalg.eigh((rows @ rows.T).cpu()))
    there = squares > _ROUNDED**2 * squares[-1]
    basis: Tensor = rows.T @ (mixtures[:, there] / squares[there].sqrt())
    return basis
