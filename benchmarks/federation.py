"""CPU seconds per round of a federation: ours against a plain loop, pfl, FedJAX and Flower's simulation, in one run.

    python benchmarks/federation.py [--quick] [--only mlp lr cnn] [--peers PYTHON] [--json FILE]

Peers run in an environment of their own, made by benchmarks/peers.sh; a missing one is skipped and named. Contenders of
this process take turns round by round; peers run once per block, between ours. A ratio is taken within each block, and
the table shows its median and range over the blocks. Start-up and one warm-up round (Flower: three) are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleaved
from torch import nn
from workloads import WORKLOADS, Workload

from fedspill.dataset import Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.training import LocalTraining

HERE = Path(__file__).resolve().parent
PEERS = {
    "pfl": ["peer_pfl.py"],
    "fedjax": ["peer_fedjax.py"],
    "flower": ["-c", "import peer_flower; peer_flower.main()"],  # importable, so that actors do not get it pickled
}
# (workload, numerator, denominator, "at least" or "at most", bar)
BARS = [
    ("mlp", "ours", "plain", "at most", 0.75),
    ("cnn", "ours", "plain", "at most", 1.05),
    ("mlp", "pfl", "ours", "at least", 2.0),
    ("lr", "pfl", "ours", "at least", 2.0),
    ("mlp", "fedjax", "ours", "at least", 1.0),
    ("lr", "fedjax", "ours", "at least", 1.0),
    ("mlp", "flower", "ours", "at least", 10.0),
    ("lr", "flower", "ours", "at least", 10.0),
]
Seconds = dict[str, list[float]]


def plain(work: Workload) -> Callable[[], None]:
    """The loop that one would write by hand: one model trained in place, the mean change added to the global one."""
    model, (x, y) = work.model(), work.data()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=work.lr)

    def round_() -> None:
        start = [parameter.detach().clone() for parameter in parameters]
        total = [torch.zeros_like(tensor) for tensor in start]
        for client in torch.randperm(work.clients)[: work.cohort].tolist():
            with torch.no_grad():
                for parameter, tensor in zip(parameters, start, strict=True):
                    parameter.copy_(tensor)
            for batch in torch.randperm(work.samples).split(work.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[client, batch]), y[client, batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for change, parameter, tensor in zip(total, parameters, start, strict=True):
                    change += (parameter - tensor) / work.cohort
        with torch.no_grad():
            for parameter, tensor, change in zip(parameters, start, total, strict=True):
                parameter.copy_(tensor + change)

    return round_


def ours(work: Workload, engine: str) -> Callable[[], None]:
    """Our federation as `fedspill simulate` runs it, nothing recorded."""
    x, y = work.data()
    federation = Horizontal(
        work.model(),
        [Examples(*client) for client in zip(x, y, strict=True)],
        Settings(clients_per_round=work.cohort, training=LocalTraining(lr=work.lr, batch_size=work.batch_size)),
        seed=0,
        classes=10,
        engine=engine,
    )
    numbers = count()

    def round_() -> None:
        done = federation.round(next(numbers))
        assert len(done.clients) == work.cohort, done.events

    return round_


def peer(name: str, python: Path, kind: str, rounds: int) -> list[float]:
    """The CPU seconds per round that a peer reports from its own process."""
    with tempfile.TemporaryDirectory(prefix="peer") as home:
        quiet = {
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "PYTHONPATH": str(HERE),
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
            "PEER_WORKLOAD": kind,
            "PEER_ROUNDS": str(rounds),
        }
        command = [str(python), *PEERS[name], *([] if name == "flower" else [kind, str(rounds)])]
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env=os.environ | quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=1800)
        finally:
            kill_group(process.pid)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise RuntimeError(f"{name} failed: {err[-2000:]}")
    return list(json.loads(lines[-1])["seconds"])


def kill_group(group: int) -> None:
    """Ends whatever a peer left behind in its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def missing(name: str, python: Path) -> str | None:
    """Why a peer cannot run, or None."""
    if not python.exists():
        return f"no {python}: run benchmarks/peers.sh"
    module = {"pfl": "pfl", "fedjax": "fedjax", "flower": "flwr.simulation, ray"}[name]
    tried = subprocess.run([str(python), "-c", f"import torch, {module}"], capture_output=True, text=True)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else None


def measure(kind: str, blocks: int, rounds: int, peers: list[str], python: Path) -> Iterator[Seconds]:
    """Per block the CPU seconds of every round of every contender."""
    work = WORKLOADS[kind]
    here = {"plain": plain(work)}
    here |= {"ours" if engine == "auto" else engine: ours(work, engine) for engine in ("auto", "loop", "stacked")}
    for _ in range(blocks):
        seconds = interleaved(here, rounds)
        for name in peers:
            seconds[name] = peer(name, python, kind, rounds)
        yield seconds


def ratio(blocks: list[Seconds], numerator: str, denominator: str) -> dict[str, float]:
    """Of the medians, within each block: median, lowest and highest over the blocks."""
    ratios = [np.median(block[numerator]) / np.median(block[denominator]) for block in blocks]
    return {"median": float(np.median(ratios)), "low": float(min(ratios)), "high": float(max(ratios))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one block of few rounds")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="workloads to run")
    parser.add_argument("--contenders", nargs="*", choices=PEERS, default=list(PEERS), help="peers to run")
    parser.add_argument("--peers", type=Path, default=HERE / ".venv-peers/bin/python", help="the peers' interpreter")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    why_not = {name: missing(name, options.peers) for name in options.contenders}
    for name, why in why_not.items():
        if why:
            print(f"{name} is skipped: {why}")
    peers = [name for name, why in why_not.items() if not why]
    results: dict[str, Any] = {}
    for kind in options.only:
        work = WORKLOADS[kind]
        rounds = max(2, work.rounds // 4) if options.quick else work.rounds
        blocks = list(measure(kind, 1 if options.quick else options.blocks, rounds, peers, options.peers))
        print(f"\n{work.title}: {len(blocks)} blocks of {rounds} rounds")
        print(f"  {'':10} {'CPU s/round':>12}   {'relative to ours':>18}")
        relative = {name: ratio(blocks, name, "ours") for name in blocks[0]}
        for name, figures in relative.items():
            seconds = np.median([second for block in blocks for second in block[name]])
            print(f"  {name:10} {seconds:12.4f}   {show(figures):>18}", flush=True)
        results[kind] = {"title": work.title, "blocks": blocks, "relative_to_ours": relative}
        write(results, options.json)

    failed = 0
    print("\nBars")
    for kind, numerator, denominator, sense, bar in BARS:
        blocks = results.get(kind, {}).get("blocks", [])
        if not blocks or numerator not in blocks[0]:
            print(f"  {kind:4} {numerator} / {denominator} {sense} {bar}: not measured")
            continue
        found = ratio(blocks, numerator, denominator)
        met = found["median"] >= bar if sense == "at least" else found["median"] <= bar
        failed += not met
        verdict = "met" if met else "NOT MET"
        print(f"  {kind:4} {numerator} / {denominator} {sense} {bar}: {show(found)} {verdict}")
        results[kind].setdefault("bars", []).append(
            {"of": numerator, "to": denominator, sense: bar, **found, "met": met}
        )
    write(results, options.json)
    return 1 if failed else 0


def write(results: dict[str, Any], path: Path | None) -> None:
    """After every workload, so that a run that is cut short keeps what it has."""
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")


def show(figures: dict[str, float]) -> str:
    return f"{figures['median']:.2f} [{figures['low']:.2f}, {figures['high']:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
