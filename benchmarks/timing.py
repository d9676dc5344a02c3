"""CPU time of functions, taken in turns so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    calls: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """CPU seconds of each function, `repeats` times in turn after one warm-up; short ones are called several times."""
    calls = calls or {}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            many = calls.get(name, 1)
            start = clock()
            for _ in range(many):
                function()
            if turn:
                seconds[name].append((clock() - start) / many)
    return seconds


def spread(values: Sequence[float] | np.ndarray, scale: float = 1.0) -> str:
    """Median, and the middle half in brackets."""
    low, middle, high = np.percentile(np.asarray(values) * scale, [25, 50, 75])
    return f"{middle:.3g} [{low:.3g}, {high:.3g}] (n={len(values)})"
