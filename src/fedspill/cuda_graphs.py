"""Work that is done over and over, recorded as one CUDA graph: replaying it saves the launch of each small kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM = 2  # times that the work is done before it is recorded, since libraries initialise themselves in the first


def record_graph(work: Callable[[], object]) -> Callable[[], None]:
    """The work as one graph. It must change tensors in place and never wait for the device; it is done WARM times."""
    for _ in range(WARM):
        work()
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    # Libraries keep scratch memory for each stream, so graphs that run side by side need streams of their own.
    with torch.cuda.graph(graph, stream=None if here == torch.cuda.default_stream() else here):
        work()
    return graph.replay


def replayed(measure: Callable[[Tensor], tuple[Tensor, ...]], like: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """`measure`, which takes tensors like `like`, as a graph; as it is where it cannot be one."""
    # Autograd goes back on the stream that it came on, which must be the graph's.
    stream = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        here = like.detach().clone()
        found = tuple(part.clone() for part in measure(here))

        def work() -> None:
            for old, new in zip(found, measure(here), strict=True):
                old.copy_(new)

        try:
            replay = record_graph(work)
        except RuntimeError:  # it waits for the device somewhere: control flow on values, or a copy to the CPU
            torch.cuda.synchronize()
            record_graph(lambda: here.zero_())  # one that ends well, or random numbers are taken to be recorded still
            return measure
    torch.cuda.current_stream().wait_stream(stream)

    def again(at: Tensor) -> tuple[Tensor, ...]:
        here.copy_(at)
        replay()
        return tuple(part.clone() for part in found)

    return again
