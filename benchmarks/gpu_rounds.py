"""Rounds of a federation on a GPU: ours against a plain loop whose model and data are there, in one run.

    python benchmarks/gpu_rounds.py [--only lenet resnet18] [--rounds 5] [--places 1 2 4 8] [--json FILE]

All contenders compute in full precision and take turns; the last one is a plain loop in TF32, as torch has convolutions
by default. The figure is the median of the seconds of the clock for a round, and the ratio to the plain loop, turn by
turn. Kernels busy is the time in which at least one kernel ran, of the time of a round. `--places` also tries how many
clients should be side by side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from workloads import WORKLOADS, Workload, mlp

from fedspill.dataset import Examples
from fedspill.federation import trainers
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.stacked import why_not_stackable
from fedspill.models.lenet5 import LeNet5
from fedspill.models.resnet import ResNet18
from fedspill.placement import use_full_precision
from fedspill.trace import NoRecorder, Recorder
from fedspill.trace_folder import FolderRecorder
from fedspill.training import LocalTraining

PICTURE = (3, 32, 32)
CASES = {
    "lenet": Workload(
        "LeNet-5, 20 clients, 5 steps of 10", lambda: LeNet5().module(PICTURE, 10), PICTURE, 20, 20, 50, 5
    ),
    "cnn": Workload("CNN 1.63 M, 20 clients, 5 steps of 10", WORKLOADS["cnn"].build, PICTURE, 20, 20, 50, 5),
    "resnet18": Workload(
        "ResNet18, 10 clients, 5 steps of 16", lambda: ResNet18().module(PICTURE, 10), PICTURE, 10, 10, 80, 5, 16
    ),
    "mlp": Workload("MLP 784-64-10, 50 clients, 5 steps of 10", mlp, (784,), 50, 50, 50, 5),
    "resnet18 256": Workload(
        "ResNet18, 4 clients, 2 steps of 256", lambda: ResNet18().module(PICTURE, 10), PICTURE, 4, 4, 512, 5, 256
    ),
}
BARS = {"lenet": 3.0, "cnn": 3.0, "resnet18": 1.5}
BUSY = 0.6
Round = Callable[[], object]


def plain(work: Workload, tf32: bool) -> Round:
    """The loop that one would write by hand: model, data and indices are on the GPU, nothing is waited for."""
    model = work.model().cuda()
    x, y = (part.cuda() for part in work.data())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    own = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}

    def round_() -> None:
        with precision(tf32):
            start = {name: tensor.clone() for name, tensor in own.items()}
            total = [torch.zeros_like(tensor) for tensor in own.values()]
            for client in range(work.clients):
                torch._foreach_copy_(list(own.values()), list(start.values()))
                for batch in torch.randperm(work.samples, device="cuda").split(work.batch_size):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x[client, batch]), y[client, batch]).backward()
                    optimizer.step()
                changes = torch._foreach_sub(list(own.values()), list(start.values()))
                torch._foreach_add_(total, changes, alpha=1 / work.clients)
            torch._foreach_add_(total, list(start.values()))
            torch._foreach_copy_(list(own.values()), total)

    return round_


@contextmanager
def precision(tf32: bool) -> Iterator[None]:
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = False


def ours(work: Workload, engine: str, recorder: Recorder | None = None, places: int | None = None) -> Round:
    x, y = work.data()
    federation = Horizontal(
        work.model(),
        [Examples(*client) for client in zip(x, y, strict=True)],
        Settings(training=LocalTraining(lr=work.lr, batch_size=work.batch_size)),
        seed=0,
        classes=10,
        engine=engine,
        device="cuda",
        recorder=recorder or NoRecorder(),
    )
    numbers, usual = count(), trainers._CLIENTS_SIDE_BY_SIDE

    def round_() -> None:
        trainers._CLIENTS_SIDE_BY_SIDE = places or usual
        done = federation.round(next(numbers))
        trainers._CLIENTS_SIDE_BY_SIDE = usual
        assert len(done.clients) == work.clients, done.events

    return round_


def seconds_of(round_: Round) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    round_()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def busy_seconds(round_: Round) -> float:
    """In which at least one kernel or copy ran, of one round."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        round_()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    total = end = 0.0
    for first, last in spans:
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total / 1e6


def measure(name: str, rounds: int, places: list[int]) -> dict[str, Any]:
    work = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        turns: dict[str, Round] = {"plain": plain(work, False), "ours": ours(work, "auto")}
        turns["launched loop"] = ours(work, "loop")
        probe = Examples(torch.rand(1, *work.shape), torch.zeros(1, dtype=torch.int64))
        if why_not_stackable(work.model(), probe, LocalTraining()) is None:
            turns["stacked"] = ours(work, "stacked")
        turns["ours, recorded"] = ours(work, "auto", FolderRecorder(Path(folder) / "trace", {}))
        turns |= {f"{many} side by side": ours(work, "replayed", places=many) for many in places}
        turns["plain, TF32"] = plain(work, True)
        first = {way: seconds_of(round_) for way, round_ in turns.items()}  # graphs are recorded here
        for round_ in turns.values():
            seconds_of(round_)
        seconds: dict[str, list[float]] = {way: [] for way in turns}
        for _ in range(rounds):
            for way, round_ in turns.items():
                seconds[way].append(seconds_of(round_))
        found: dict[str, Any] = {"case": work.title}
        print(f"\n{work.title}, {rounds} rounds\n")
        print("| | s a round | times a plain loop | busy | first round, s |\n|---|---|---|---|---|")
        for way, round_ in turns.items():
            middle = statistics.median(seconds[way])
            ratios = [one / other for one, other in zip(seconds["plain"], seconds[way], strict=True)]
            busy = min(1.0, busy_seconds(round_) / middle)  # watched, kernels take a little longer
            found[way] = {"seconds": seconds[way], "first": first[way], "ratios": ratios, "busy": busy}
            spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
            print(f"| {way} | {middle:.4f} | {spread} | {busy:.0%} | {first[way]:.2f} |", flush=True)
    if name in BARS:
        ratio, busy = statistics.median(found["ours"]["ratios"]), found["ours"]["busy"]
        met = ratio >= BARS[name] and busy >= BUSY
        print(f"\nasked: {BARS[name]} times, busy {BUSY:.0%}: {'met' if met else 'NOT MET'}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--places", type=int, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    use_full_precision()
    print(torch.cuda.get_device_name(), torch.__version__)
    results = {}
    for name in asked.only:
        results[name] = measure(name, asked.rounds, asked.places)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
