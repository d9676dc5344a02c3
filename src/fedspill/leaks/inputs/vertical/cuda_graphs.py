"""Work that is done over and over, recorded as one CUDA graph: replaying it saves the launch of each small kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM = 2  # times that the work is really done before it is recorded: libraries set themselves up in the first


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """The work as one graph. It must change tensors in place and ask nothing of the device; it is done WARM times."""
    for _ in range(WARM):
        work()
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    # Libraries keep scratch memory for each stream: graphs that are to run side by side are recorded in their own.
    with torch.cuda.graph(graph, stream=None if here == torch.cuda.default_stream() else here):
        work()
    return graph.replay
