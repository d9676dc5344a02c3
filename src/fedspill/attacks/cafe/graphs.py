"""Work that is done over and over, recorded as one CUDA graph: replaying it saves the launch of each small kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM = 2  # times that the work is really done before it is recorded: libraries set themselves up in the first


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """The work as one graph. It must change tensors in place and ask nothing of the device; it is done WARM times."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
