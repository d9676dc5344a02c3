"""Work that is done over and over, recorded as one CUDA graph: replaying it saves the launch of each small kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import torch
from torch import Tensor

WARM = 2  # times that the work is done before it is recorded, since libraries initialise themselves in the first
TIMED = 3  # replays by which ways are compared
CLEARLY = 0.1  # the share of the time that another way must save

Measure: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]


def record_graph(work: Callable[[], object], warm: int = WARM) -> Callable[[], None]:
    """The work as one graph. It must change tensors in place and never wait for the device; it is done `warm` times."""
    for _ in range(warm):
        work()
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    # Libraries keep scratch memory for each stream, so graphs that run side by side need streams of their own.
    with torch.cuda.graph(graph, stream=None if here == torch.cuda.default_stream() else here):
        work()
    return graph.replay


def replayed(ways: Sequence[Measure], like: Tensor) -> Measure:
    """The quickest of `ways`, which measure the same of tensors like `like`, as a graph; the first where none can be.

    Later ways must save a tenth of the time, so that it is not chance that decides and rounding stays the same.
    """
    chosen, least = None, math.inf
    for way in ways:
        graph = _Recorded.of(way, like)
        if graph is not None and (took := graph.seconds()) < (1 - CLEARLY) * least:
            chosen, least = graph, took
    return ways[0] if chosen is None else chosen


@final
class _Recorded:
    """A measure as a graph, which reads one tensor and writes others, all of them its own."""

    def __init__(self, here: Tensor, found: tuple[Tensor, ...], replay: Callable[[], None]) -> None:
        self.here, self.found, self.replay = here, found, replay

    @staticmethod
    def of(measure: Measure, like: Tensor) -> _Recorded | None:
        """None where it cannot be recorded."""
        # Autograd goes back on the stream that it came on, which must be the graph's.
        stream = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            here = like.detach().clone()
            try:
                found = tuple(part.clone() for part in measure(here))
                replay = record_graph(lambda: _copy(measure(here), found), warm=0)  # that was the warming up
            except RuntimeError:  # it waits for the device (a branch on values, a copy to the CPU), or is too large
                torch.cuda.synchronize()
                record_graph(here.zero_)  # one that ends well, or random numbers are taken to be recorded still
                return None
        torch.cuda.current_stream().wait_stream(stream)
        return _Recorded(here, found, replay)

    def __call__(self, at: Tensor) -> tuple[Tensor, ...]:
        self.here.copy_(at)
        self.replay()
        return tuple(part.clone() for part in self.found)

    def seconds(self) -> float:
        """Of one replay: the least of a few, since others may use the device too."""
        self.replay()
        least = math.inf
        for _ in range(TIMED):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            self.replay()
            end.record()
            end.synchronize()
            least = min(least, begin.elapsed_time(end) / 1e3)
        return least


def _copy(values: tuple[Tensor, ...], into: tuple[Tensor, ...]) -> None:
    for old, new in zip(into, values, strict=True):
        old.copy_(new)
