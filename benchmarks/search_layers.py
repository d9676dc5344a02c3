"""What one convolution costs a search on a GPU, by shape and by the way it is done, each as a CUDA graph.

    python benchmarks/search_layers.py [--batches 1 4] [--side 32] [--kernels]

The layers of ResNet18. Each way does what a search asks of a layer: outputs, the gradients of inputs and weights, and
the derivative of those by inputs and incoming gradients. Microseconds are of replays, launches not counted; in brackets
the number of kernels. Convolutions are cuDNN's by its own choice, by trial, and by trial with channels last; products
are the matrix products of fedspill, with the sum over inputs whole or cut into parts that are added afterwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from fedspill.cuda_graphs import record_graph
from fedspill.leaks.inputs.search.product_convolutions import product_convolution
from fedspill.placement import use_full_precision

Layer = Callable[[Tensor, Tensor], Tensor]
REPEATS = 10  # within one graph


def cut_product(parts: int, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The product with the sum over input channels in parts, which fill the GPU where outputs are few."""
    batch, channels, _, _ = x.shape
    side = weight.shape[2]
    planes = x.transpose(0, 1).reshape(1, channels * batch, *x.shape[2:])
    cut = nn.functional.unfold(planes, (side, side), 1, side // 2, stride)
    places = cut.shape[2]
    windows = cut.view(channels, batch, side * side, places).transpose(1, 2).reshape(parts, -1, batch * places)
    rows = weight.flatten(1).view(len(weight), parts, -1).transpose(0, 1)
    size = x.shape[2] // stride
    return (rows @ windows).sum(0).view(len(weight), batch, size, -1).transpose(0, 1)


def convolution(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return nn.functional.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)


def product(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    edge = weight.shape[2] // 2
    return product_convolution(x, weight, None, (stride, stride), (edge, edge), (1, 1))


def ways(channels: int) -> Iterator[tuple[str, bool, bool, Callable[[Tensor, Tensor, int], Tensor]]]:
    """Name, whether cuDNN tries its algorithms, whether channels lie last, and the layer."""
    yield "convolution", False, False, convolution
    yield "tuned", True, False, convolution
    yield "tuned, channels last", True, True, convolution
    yield "product", False, False, product
    for parts in (4, 16):
        if channels % parts == 0:
            yield f"product in {parts}", False, False, partial(cut_product, parts)


def shapes(side: int) -> list[tuple[int, int, int, int, int, int]]:
    """Input channels, outputs, window, stride, side of the image, and how many such layers there are."""
    found = [(3, 64, 3, 1, side, 1), (64, 64, 3, 1, side, 4)]
    for width in (64, 128, 256):
        found += [(width, 2 * width, 3, 2, side, 1), (width, 2 * width, 1, 2, side, 1)]
        side //= 2
        found += [(2 * width, 2 * width, 3, 1, side, 3)]
    return found


def measured(layer: Layer, x: Tensor, weight: Tensor, *, report: bool) -> tuple[list[float], int]:
    """Microseconds of outputs alone, with first and with second derivatives; and kernels of all."""
    x, weight = x.requires_grad_(), weight.requires_grad_()
    up = torch.randn_like(layer(x, weight)).requires_grad_()
    along = torch.randn_like(x), torch.randn_like(weight)

    def outputs() -> None:
        layer(x, weight)

    def first() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x, weight), [x, weight], up, create_graph=True)

    def second() -> None:
        torch.autograd.grad(first(), [x, up], along)

    times = []
    for work in (outputs, first, second):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):

            def repeated(work: Callable[[], object] = work) -> None:
                for _ in range(REPEATS):
                    work()

            replay = record_graph(repeated)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            replay()
            begin.record()
            for _ in range(5):
                replay()
            end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (5 * REPEATS))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        second()
        torch.cuda.synchronize()
    table = [event for event in seen.key_averages() if event.self_device_time_total]
    if report:
        for event in sorted(table, key=lambda e: -e.self_device_time_total):
            print(f"    {event.count:3d} x {event.self_device_time_total / event.count:7.1f} us  {event.key[:110]}")
    return times, sum(event.count for event in table)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    options.add_argument("--side", type=int, default=32)
    options.add_argument("--kernels", action="store_true", help="name the kernels of each")
    asked = options.parse_args()
    use_full_precision()
    print("| batch | layer | way | outputs, us | first derivatives | second | kernels | apart |")
    print("|---|---|---|---|---|---|---|---|")
    for batch in asked.batches:
        totals: dict[str, float] = {}
        for channels, out, window, stride, side, count in shapes(asked.side):
            torch.manual_seed(0)
            x = torch.randn(batch, channels, side, side, device="cuda")
            weight = torch.randn(out, channels, window, window, device="cuda") / (channels * window**2) ** 0.5
            reference = convolution(x.double(), weight.double(), stride)
            for name, tuned, last, layer in ways(channels):
                torch.backends.cudnn.benchmark = tuned
                form = torch.channels_last if last else torch.contiguous_format
                mine = x.to(memory_format=form), weight.to(memory_format=form)
                done: Layer = partial(layer, stride=stride)
                apart = float((done(*mine) - reference).abs().max())
                times, kernels = measured(
                    done, mine[0].detach().clone(), mine[1].detach().clone(), report=asked.kernels
                )
                totals[name] = totals.get(name, 0.0) + count * times[2]
                shown = " | ".join(f"{one:.1f}" for one in times)
                shape = f"{count} x {channels} to {out}, {window} x {window} by {stride}, {side} px"
                print(f"| {batch} | {shape} | {name} | {shown} | {kernels} | {apart:.1g} |", flush=True)
        print(f"batch {batch}, all layers, ms:", {name: round(value / 1e3, 3) for name, value in totals.items()})


if __name__ == "__main__":
    main()
