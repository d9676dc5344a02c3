"""Exact recovery of a batch from one linear layer with softmax: every sample is a root of a small system.

With G = D^T X, D = (p - e_y) / B row by row, the row space V of G holds the samples, x = V q, and its column space U
holds what each sends back. So for its label y every true q solves

    (I - U U^T) (softmax(W V q + b) - e_y) = 0,         C - 1 - B equations in B - 1 unknowns

(the bias gradient gives q . c = 1), which tells up to B = 0.4 C samples. A sample that is found is taken out of the
gradient, and what remains is a smaller problem of the same kind. The system does not contain the sample's share of the
batch, which must be 1/B; that is its certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, leading_directions, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import LinearLayer, first_layer, module_chain
from fedspill.leaks.inputs.exact.reckoned_time import MULTIPLICATION, OUT_OF_TIME, VALUE, TimeLeft
from fedspill.leaks.inputs.exact.sample_roots import is_known, usual_scale

MOST_OF_CLASSES = 0.4  # samples for each class; above it equations are few, and false roots were seen
STARTS = 4  # for each label that may occur, in each round; what a round finds is taken out before the next
ROUNDS = 18
ITERATIONS = 60
ROOT = 3e-5  # relative residual of a root; float32 gradients leave some 1e-6
NEARLY_ROOT = 0.05  # the same in what is left of a gradient, at most, before it is polished in all of it
NOWHERE = 1e-3  # |p - e_y| below which a root is p = e_y, far away, of no sample
# As many equations are enough to seek roots in; with 1,000 classes all of them cost eight times as much.
FEWEST_CLASSES, CLASSES_EACH = 128, 4
MOST_VALUES = 5e7  # of the Jacobians of all starts that are moved at once
WHOLE = 1e-3  # distance of a sample's share of the batch from 1/B, relative


@dataclass(frozen=True, eq=False)
class SoftmaxSamples:
    """The samples found (k, d), their labels, and whether each has the share of the batch that it must have."""

    x: Tensor
    labels: Tensor
    certified: Tensor
    why: str = ""  # what was not found, where the time was over


def only_layer(model: nn.Module) -> LinearLayer:
    """The one layer of a network that has no other; raises CannotRecover for all others."""
    layer = first_layer(model)
    parts = [module for _, module in module_chain(model)]
    behind = parts[next(place for place, part in enumerate(parts) if isinstance(part, nn.Linear)) + 1 :]
    if any(not isinstance(module, nn.Identity) for module in behind) or len(layer.weight) < 3:
        raise CannotRecover("the network is not one linear layer with softmax")
    return layer


def recover_softmax_batch(
    layer: LinearLayer,
    gradient: Tensor,
    bias_gradient: Tensor | None,
    samples: int,
    rng: torch.Generator,
    seconds: float = 120.0,
) -> SoftmaxSamples:
    """All samples that the search finds of `gradient` (classes, d); raises CannotRecover where there are too many.

    `seconds` are reckoned (reckoned_time.py).
    """
    classes = len(gradient)
    if samples > MOST_OF_CLASSES * classes:
        most = int(MOST_OF_CLASSES * classes)
        raise CannotRecover(f"{samples} samples are too many for one layer of {classes} classes, which tells {most}")
    if bias_gradient is None:
        raise CannotRecover("the layer has no bias, whose gradient gives the scale of a sample")
    rows = truncated_svd(gradient, samples, rng)
    if rows is None or rows.rank > samples or rows.tail > 1e-2:
        raise CannotRecover(f"the gradient does not have the directions of {samples} samples in one step")
    whole = _System.of(layer, rows, bias_gradient)
    system, found, labels, time = whole, rows.right.new_zeros(0, rows.rank), list[int](), TimeLeft(seconds)
    for _ in range(ROUNDS):
        left = rows.rank - len(found)
        if left <= 0 or time.is_over:
            break
        # What errors of the samples taken out leave in the rest is no sample's, and the whole gradient judges later.
        near = ROOT if system is whole else min(NEARLY_ROOT, max(ROOT, 2 * system.rows.tail))
        roots, of = system.roots(min(left, samples), near, rng, time)
        again = roots @ system.rows.right.T @ rows.right
        for q, label in zip(*whole.polished(again, of, ROOT, time), strict=True):
            if not is_known(q, found) and len(found) < rows.rank:
                found = torch.cat([found, q[None]])
                labels.append(int(label))
        if len(found) and len(found) < rows.rank:
            sent = whole.sent(found, torch.tensor(labels)) / samples
            rest = gradient - sent.T @ (found @ rows.right.T)
            rest_bias = bias_gradient - sent.sum(0)
            system = _System.of(layer, leading_directions(rest, rows.rank - len(found), rng), rest_bias)
    if not len(found):
        late = f": {OUT_OF_TIME}" if time.is_over else ""
        raise CannotRecover(f"no sample is a root of the layer's equations{late}")
    named = torch.tensor(labels)
    share = ((whole.sent(found, named) @ rows.left / rows.sizes) * found).sum(1) / samples
    cut_short = len(found) < rows.rank and time.is_over
    why = f"{len(found)} of {rows.rank} samples were found: {OUT_OF_TIME}" if cut_short else ""
    return SoftmaxSamples(found @ rows.right.T, named, (share - 1).abs() < WHOLE, why)


@dataclass(frozen=True, eq=False)
class _System:
    """The equations in free coordinates: q = particular + free y."""

    rows: TruncatedSvd
    particular: Tensor  # (r,)
    free: Tensor  # (r, r - 1)
    slope: Tensor  # (classes, r - 1) of the logits
    offset: Tensor  # (classes,)

    @staticmethod
    def of(layer: LinearLayer, rows: TruncatedSvd, bias_gradient: Tensor) -> _System:
        equation = (rows.left.T @ bias_gradient) / rows.sizes
        particular = equation / (equation @ equation)
        free = torch.linalg.svd(equation[None], full_matrices=True)[2][1:].T
        seen = layer.weight @ rows.right
        offset = seen @ particular + (0 if layer.bias is None else layer.bias)
        return _System(rows, particular, free, seen @ free, offset)

    def roots(self, wanted: int, tolerance: float, rng: torch.Generator, time: TimeLeft) -> tuple[Tensor, Tensor]:
        """Near roots (k, r) and their labels, each once, from random starts for every label that may occur.

        They are sought in the equations of some classes where there are more than it takes, and judged by whoever asks.
        """
        classes = len(self.offset)
        # A label that occurs leaves its own entry in the column space.
        order = self.rows.left.square().sum(1).argsort(descending=True)
        likely = order[: min(classes, wanted + wanted // 4 + 6)]
        others = order[len(likely) :]
        more = max(0, max(FEWEST_CLASSES, CLASSES_EACH * self.rows.rank) - len(likely))
        some = torch.cat([likely, others[torch.randperm(len(others), generator=rng)[:more]]])
        labels = likely.repeat_interleave(STARTS)
        q = torch.randn(len(labels), self.rows.rank, generator=rng, dtype=torch.float64)
        scales = torch.tensor([0.6, 1.0, 1.6, 2.5], dtype=torch.float64).repeat(len(labels))[: len(labels), None]
        q = q / q.norm(dim=1, keepdim=True) * scales * usual_scale(self.rows.right.shape[0])
        return self.polished(q, labels, tolerance, time, some if len(some) < classes else None)

    def polished(
        self, q: Tensor, labels: Tensor, tolerance: float, time: TimeLeft, some: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Levenberg-Marquardt from q (k, r): the roots that are reached, best first, each once."""
        if not len(q):
            return q, labels
        parts = [
            self._descend((part - self.particular) @ self.free, of, time, some) for part, of in self._parts(q, labels)
        ]
        y, residual = (torch.cat(both) for both in zip(*parts, strict=True))
        found, of = q[:0], list[int]()
        for index in residual.argsort().tolist():
            root = self.particular + self.free @ y[index]
            if not float(residual[index]) < tolerance:
                break
            if not is_known(root, found):
                found = torch.cat([found, root[None]])
                of.append(int(labels[index]))
        return found, torch.tensor(of, dtype=torch.int64)

    def _parts(self, q: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """As many of q (k, r) at once as fit into memory."""
        most = max(1, int(MOST_VALUES // max(1, self.slope.numel())))
        return zip(torch.split(q, most), torch.split(labels, most), strict=True)

    def sent(self, q: Tensor, labels: Tensor) -> Tensor:
        """(k, classes) p - e_y of samples q (k, r)."""
        y = (q - self.particular) @ self.free
        sent: Tensor = (y @ self.slope.T + self.offset).softmax(1)
        sent[torch.arange(len(q)), labels] -= 1
        return sent

    def _descend(self, y: Tensor, labels: Tensor, time: TimeLeft, some: Tensor | None) -> tuple[Tensor, Tensor]:
        """From y (k, r - 1), in the equations of all classes or `some` (c,)."""
        seen = slice(None) if some is None else some
        left = self.rows.left if some is None else torch.linalg.qr(self.rows.left[some])[0]
        slope_seen = self.slope[seen]
        wanted = torch.nn.functional.one_hot(labels, len(self.offset)).to(y)[:, seen]
        classes, unknowns = slope_seen.shape
        seconds_each = VALUE * (classes * unknowns + len(self.offset)) + 3 * MULTIPLICATION * classes * unknowns**2

        def values(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            p = (at @ self.slope.T + self.offset).softmax(1)
            sent = p[:, seen] - wanted
            missed = sent - (sent @ left) @ left.T
            size = sent.norm(dim=1)
            return p, missed, torch.where(size > NOWHERE, missed.norm(dim=1) / size.clamp_min(1e-300), torch.inf)

        damping = y.new_full((len(y),), 1e-2)
        p, missed, residual = values(y)
        for _ in range(ITERATIONS if y.shape[1] else 0):
            time.spend(len(y) * seconds_each)
            if time.is_over:
                break
            jacobian = p[:, seen, None] * (slope_seen[None] - (p @ self.slope)[:, None])
            jacobian = jacobian - left @ (left.T @ jacobian)
            curvature = jacobian.transpose(1, 2) @ jacobian
            slope = (jacobian.transpose(1, 2) @ missed[:, :, None])[:, :, 0]
            diagonal = curvature.diagonal(dim1=1, dim2=2).clamp_min(1e-16)
            ridge = torch.diag_embed(damping[:, None] * diagonal + 1e-15)
            tried = y - torch.linalg.solve_ex(curvature + ridge, slope)[0]
            new_p, new_missed, new_residual = values(tried)
            better = new_residual < residual
            y, p = torch.where(better[:, None], tried, y), torch.where(better[:, None], new_p, p)
            missed = torch.where(better[:, None], new_missed, missed)
            residual = torch.where(better, new_residual, residual)
            damping = torch.where(better, damping * 0.3, damping * 4).clamp(1e-12, 1e8)
            if bool(((residual < 1e-8) | (damping > 1e7)).all()):
                break
        return y, residual
