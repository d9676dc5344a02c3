"""Inside a feed-forward part: a layer four times as wide as the model, so that four times as many inputs can be told.

The gradient of its last matrix has one row for each of the model's dimensions, and every row is a mixture of what that
matrix read. With more inputs than rows no input lies wholly in the row space, but one that was there lies in it by
rows / inputs of its length on average, another one by a quarter. Inputs that are known are added to the space: as soon
as those that are not known are fewer than the rows, the others lie in it wholly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

_WEAKEST = 1e-4  # share of the largest variance below which a direction counts as if it had this one
_ROUNDED = 3e-6  # share of the largest singular value below which a direction is rounding
_NEW = 2e-3  # share of a vector's usual length that must be new for it to add a direction
_FULL = 0.95  # share of the dimensions that may be filled


@dataclass(frozen=True, eq=False)
class InnerSpace:
    """What was sent of one block, and inputs that are known to have been there, in the metric of usual inputs."""

    metric: Tensor  # (inner, inner) gives usual inputs unit covariance; float64
    rows: Tensor  # (inner, rank) orthonormal, of the gradient
    basis: Tensor  # (inner, k) orthonormal: the rows, and what is known beside them

    @staticmethod
    def of(gradient: Tensor, covariance: Tensor) -> InnerSpace:
        """From the gradient (width, inner) of the last matrix and the covariance (inner, inner) of usual inputs."""
        variances, directions = torch.linalg.eigh(covariance.double())
        metric = (directions * variances.clamp_min(_WEAKEST * float(variances[-1])) ** -0.5) @ directions.T
        sent = gradient.double()
        sent = sent / sent.norm(dim=1, keepdim=True).clamp_min(1e-300)
        _, values, right = torch.linalg.svd(sent @ metric, full_matrices=False)
        rows = right[values > _ROUNDED * values[0]].T.contiguous()
        return InnerSpace(metric, rows, rows)

    @property
    def room(self) -> int:
        """How many more inputs may be known."""
        return int(_FULL * len(self.basis)) - self.basis.shape[1]

    def screen(self) -> Tensor:
        """(inner, inner + k) of float32, for `shares`."""
        return torch.cat([self.metric, self.metric @ self.basis], 1).float()

    def shares(self, inputs: Tensor, screen: Tensor) -> Tensor:
        """(n,) how much of the squared length of each of inputs (n, inner) lies in the space."""
        # Half precision is enough for a share of a sum of squares, and sixteen times faster on a GPU.
        sizes = ((inputs.half() @ screen.half()).float() if inputs.is_cuda else inputs @ screen).square()
        inside: Tensor = sizes[:, len(self.metric) :].sum(1) / sizes[:, : len(self.metric)].sum(1).clamp_min(1e-30)
        return inside

    def knowing(self, inputs: Tensor) -> InnerSpace:
        """The same when inputs (n, inner) are known to have been there."""
        new = inputs[: max(0, self.room)].double() @ self.metric
        if not len(new):
            return self
        for _ in range(2):  # twice, against rounding
            new = new - (new @ self.basis) @ self.basis.T
        squares, mixtures = (part.to(new) for part in torch.linalg.eigh((new @ new.T).cpu()))
        fresh = squares > _NEW**2 * len(self.metric)
        added = new.T @ (mixtures[:, fresh] / squares[fresh].sqrt())
        return replace(self, basis=torch.cat([self.basis, added], 1))

    def support(self, inputs: Tensor) -> Tensor:
        """(n,) how much more of the rows each of inputs (n, inner) explains beside the others than chance would: F.

        It is about 1 for an input that was not there, and large for one that was, the more so the fewer are missing.
        """
        known, rows = inputs.double() @ self.metric, self.rows.T
        gram = known @ known.T
        ridge = 1e-9 * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
        inverse = torch.linalg.inv(gram + ridge)
        weights = rows @ known.T @ inverse  # (rank, n)
        left = (rows - weights @ known).square().sum() / (len(rows) * max(1, len(self.metric) - len(known)))
        explained: Tensor = weights.square().sum(0) / inverse.diagonal() / (len(rows) * left.clamp_min(1e-300))
        return explained
