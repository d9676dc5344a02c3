"""The input of one convolution from its output and its kernel's gradient: least squares over two linear systems.

With u the input, a the output before the activation and delta what is sent back to it,

    conv(u; K) = a - b,         sum over places of delta(place) patch(u, place)^T = grad K.

The second is the same matrix for every input channel. Alone each may be singular; together, with each value weighted by
how precisely it is known, their condition numbers were a few hundred in our runs, which conjugate gradients handle
without forming a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor, nn
from torch.nn import functional

MOST_ITERATIONS = 700  # of conjugate gradients; they take as long as one dense solve of 3,072 values
SOLVED = 3e-8  # relative gradient of the squares; float32 gradients carry little more precision


@dataclass(frozen=True, eq=False)
class ConvolutionSystems:
    """Both systems, their rows brought to mean norm 1, for an input of `channels` planes of s pixels."""

    channels: int
    forward: sparse.csr_matrix  # (values, channels * s)
    right: np.ndarray  # (values,)
    backward: np.ndarray  # (kernels * cells, s), alike for all channels
    seen: np.ndarray  # (kernels * cells, channels)

    def diagonal(self) -> np.ndarray:
        """(channels * s,) of the normal equations."""
        both: np.ndarray = np.tile(np.square(self.backward).sum(0), self.channels)
        both += np.asarray(self.forward.multiply(self.forward).sum(0)).ravel()
        return both

    def apply(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.forward @ u, self.backward @ u.reshape(self.channels, -1).T

    def apply_transposed(self, values: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """The transpose of `apply`."""
        both: np.ndarray = (self.backward.T @ cells).T.ravel()
        both += self.forward.T @ values
        return both


def convolution_input(
    layer: nn.Conv2d, z: Tensor, slope: Tensor, where: Tensor, delta: Tensor, gradient: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """(*shape) the input of a convolution with output z and kernel gradient `gradient`, in float64.

    A value before the activation is known as well as the activation's slope allows, so that is its weight; `where` says
    whether it is known at all.
    """
    systems = _systems(layer, z, slope * where, delta, gradient, shape)
    found = _conjugate_gradients(systems)
    return torch.from_numpy(_dense_solve(systems) if found is None else found).reshape(shape)


def _conjugate_gradients(systems: ConvolutionSystems) -> np.ndarray | None:
    """(channels * s,) by conjugate gradients on the normal equations, scaled by their diagonal; None if not in time."""
    diagonal = systems.diagonal()
    scale = 1 / np.maximum(diagonal, 1e-12 * max(float(diagonal.max()), 1e-300))
    u = np.zeros_like(scale)
    values, cells = systems.right.copy(), systems.seen.copy()
    slope = systems.apply_transposed(values, cells)
    ahead = scale * slope
    size = first = float(slope @ ahead)
    for _ in range(MOST_ITERATIONS):
        if not size > SOLVED**2 * first:
            return u if np.isfinite(size) else None
        moved = systems.apply(ahead)
        length = size / float(np.square(moved[0]).sum() + np.square(moved[1]).sum())
        u += length * ahead
        values -= length * moved[0]
        cells -= length * moved[1]
        slope = systems.apply_transposed(values, cells)
        before, size = size, float(slope @ (scale * slope))
        ahead = scale * slope + (size / before) * ahead
    return None


def _dense_solve(systems: ConvolutionSystems) -> np.ndarray:
    """(channels * s,) by a dense factor of the normal equations; two refinements undo what squaring loses."""
    normal = (systems.forward.T @ systems.forward).toarray()
    pixels = systems.backward.shape[1]
    again = systems.backward.T @ systems.backward
    for first in range(0, len(normal), pixels):
        normal[first : first + pixels, first : first + pixels] += again
    normal[np.diag_indices_from(normal)] += max(1e-13 * float(np.trace(normal)) / len(normal), 1e-300)
    factor = cho_factor(normal, lower=True, overwrite_a=True)
    u = np.zeros(len(normal))
    for _ in range(3):
        values, cells = systems.apply(u)
        u = u + cho_solve(factor, systems.apply_transposed(systems.right - values, systems.seen - cells))
    return u


def _systems(
    layer: nn.Conv2d, z: Tensor, weight: Tensor, delta: Tensor, gradient: Tensor, shape: tuple[int, ...]
) -> ConvolutionSystems:
    channels, height, width = shape
    kernel = layer.weight.detach().double().flatten(1)
    count, size = len(kernel), channels * height * width
    bias = layer.bias.detach().double() if layer.bias is not None else kernel.new_zeros(count)
    places = _patches(layer, channels, height, width)
    length, cells = places.shape[1], len(places) // channels
    trust = (weight / weight.max().clamp_min(1e-300)).reshape(count, 1, length).numpy()
    rows = np.broadcast_to(np.arange(count)[:, None, None] * length + np.arange(length), (count, *places.shape))
    inside, columns = (np.broadcast_to(table, rows.shape) for table in (places >= 0, places))
    taps = (kernel.numpy()[:, :, None] * trust)[inside]
    forward = sparse.csr_matrix((taps, (rows[inside], columns[inside])), shape=(count * length, size))
    right = (z.reshape(count, length) - bias[:, None]).numpy() * trust[:, 0]
    # One column more takes what falls into the padding.
    backward = np.zeros((count, cells, height * width + 1))
    sent = delta.reshape(count, 1, length).numpy()
    backward[np.arange(count)[:, None, None], np.arange(cells)[None, :, None], places[None, :cells]] = sent
    backward = backward.reshape(count * cells, -1)[:, :-1]
    seen = gradient.reshape(count, channels, cells).transpose(1, 2).reshape(count * cells, channels).numpy()
    norm = 1 / max(float(np.sqrt(forward.multiply(forward).sum(1)).mean()), 1e-300)
    other = 1 / max(float(np.sqrt(np.square(backward).sum(1)).mean()), 1e-300)
    return ConvolutionSystems(channels, forward * norm, right.ravel() * norm, backward * other, seen * other)


def _patches(layer: nn.Conv2d, channels: int, height: int, width: int) -> np.ndarray:
    """(channels * k * k, L) the flat input index under each kernel cell at each place, -1 in the padding."""
    index = torch.arange(1, channels * height * width + 1, dtype=torch.float64).reshape(1, channels, height, width)
    padding = layer.padding
    assert not isinstance(padding, str)
    cut = functional.unfold(index, layer.kernel_size, padding=padding, stride=layer.stride)[0]
    return cut.round().long().numpy() - 1
