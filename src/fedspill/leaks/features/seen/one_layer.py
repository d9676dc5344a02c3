"""Inverting one layer: the row behind an embedding, and whether any other row in the box could be behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, lsq_linear

Numbers = NDArray[np.float64]

BAND = 2e-6  # relative: what float32 leaves of an equality
DIRECTIONS = 3  # in which the set of possible rows is measured
# A set that is wider than NARROW somewhere looks narrower than a hundredth of that in one random direction once in 125
# times, so in three of them once in two million.
NARROW = 0.05  # of a column's range, as rows are scored
_SEEN_AS_NARROW = 0.01 * NARROW
# Equations and values at the ends of their ranges that a certified row must have beyond as many as it has unknowns. A
# corner of the possible rows has as many by itself, whatever noise is on the output.
BEYOND = 2
_AT_END = 1e-5  # of a range


@dataclass(frozen=True, eq=False)
class LayerRow:
    """A row (features,) that explains an embedding, and whether it is surely the only one."""

    row: Numbers
    certain: bool


def invert_layer(
    weight: Numbers, bias: Numbers, output: Numbers, low: Numbers, high: Numbers, *, relu: bool, noise: float, seed: int
) -> LayerRow:
    """The row x between low and high (features,) with weight (units, features) x + bias = output (units,).

    Behind a ReLU, a unit that is off says that its sum is not positive. Of several possible rows the one with the least
    sum of values is taken, each counted from its lower end: what is rare is mostly zero. `noise` is the deviation of
    noise on the output, which makes bands of the equalities and ends all certainty.
    """
    span = np.maximum(high - low, 1e-12)
    scaled, target = weight * span, output - bias - weight @ low  # rows in units of their ranges: 0 to 1
    room = BAND * (1 + np.abs(output)) + 4 * noise
    on = output > 4 * noise if relu else np.ones(len(output), dtype=bool)
    sides = np.concatenate([scaled[on], -scaled[on], scaled[~on]])
    ends = np.concatenate([(target + room)[on], (room - target)[on], (target + room)[~on]])
    features = len(low)

    def least(cost: Numbers) -> Numbers | None:
        found = linprog(cost, A_ub=sides, b_ub=ends, bounds=(0, 1), method="highs")
        return found.x if found.status == 0 else None

    direct = _overdetermined(scaled[on], target[on], room[on]) if not noise else None
    if direct is not None and np.all(direct > -NARROW) and np.all(direct < 1 + NARROW):
        return LayerRow(low + span * np.clip(direct, 0, 1), True)
    first = least(np.ones(features))
    if first is None:  # noise that nobody told of: the nearest row there is
        nearest = lsq_linear(scaled[on], target[on], (0, 1)).x if on.any() else np.full(features, 0.5)
        return LayerRow(low + span * nearest, False)
    at_end = int(((first < _AT_END) | (first > 1 - _AT_END)).sum())
    redundant = int(on.sum()) < features and int(on.sum()) + at_end >= features + BEYOND
    return LayerRow(low + span * first, not noise and redundant and _is_only(least, features, seed))


def _overdetermined(matrix: Numbers, target: Numbers, room: Numbers) -> Numbers | None:
    """The one solution of more equations than unknowns, if they agree and leave it no room; else None.

    With as many equations as unknowns there always is a solution, and noise would pass for a row: more are needed.
    """
    equations, unknowns = matrix.shape
    if equations < unknowns + BEYOND:
        return None
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    if values[-1] <= 0 or np.linalg.norm(room) / values[-1] > NARROW / 2:
        return None
    found: Numbers = right.T @ ((left.T @ target) / values)
    return found if np.all(np.abs(matrix @ found - target) <= room) else None


def _is_only(least: Callable[[Numbers], Numbers | None], features: int, seed: int) -> bool:
    """Whether the possible rows lie so close together that they are one: measured in random directions."""
    rng = np.random.default_rng(seed)
    for _ in range(DIRECTIONS):
        direction = rng.normal(size=features)
        ends = least(direction), least(-direction)
        if ends[0] is None or ends[1] is None or abs(direction @ (ends[1] - ends[0])) > _SEEN_AS_NARROW:
            return False
    return True
