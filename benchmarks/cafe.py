"""CAFE: CPU seconds of the attacker, by linear algebra against the published descent, to the same PSNR.

The published algorithm costs the same in every round, so its CPU time to a PSNR is rounds times seconds per round. How
many rounds it takes was measured on a GPU with `papers/001/run_full.py 5@mnist:single` (N = 800, K = 40, seed 2024):
12.0 dB after 4,000 and 24.2 dB after 8,000. With --live it is run here instead, on fewer samples, until it is as good.

    python benchmarks/cafe.py --data-dir DATA [--samples 800 --batch 40] [--live]
    python benchmarks/cafe.py --data-dir DATA --growth 100 200 400
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedspill.dataset import Dataset
from fedspill.federation.batches import membership, plan_batches
from fedspill.leaks.inputs.cafe import first_layers, recover
from fedspill.leaks.inputs.vertical.first_layer import first_layer
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort, PartyFeatures, invert_features
from fedspill.leaks.inputs.vertical.separate_sums import batch_design
from fedspill.registry import paper_tables
from fedspill.reproduce import Run
from fedspill.seeds import generator
from fedspill.training import gradient

ON_A_GPU = {4000: 11.96, 8000: 24.20}  # rounds of Algorithm 4 and the PSNR of tiles it had reached


class Operations(TorchDispatchMode):
    """Counts additions and multiplications of linear algebra by what asked for them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, made = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if name in ("mm", "bmm"):
            left, right = args[0], args[1]
            entries = left._nnz() if left.is_sparse else left.numel()
            self.counts["products"] += 2 * entries * right.shape[-1]
        elif name == "linalg_cholesky_ex":
            self.counts["factors"] += args[0].numel() * args[0].shape[-1] // 3
        elif name in ("linalg_solve_triangular", "cholesky_solve"):
            factor, right = (args[0], args[1]) if name == "linalg_solve_triangular" else (args[1], args[0])
            self.counts["solves"] += (1 if name == "linalg_solve_triangular" else 2) * factor.numel() * right.shape[-1]
        elif name in ("cholesky_inverse", "linalg_inv_ex", "_linalg_eigh", "_linalg_svd"):
            self.counts["other, of cubic cost"] += 1
        return made


def step_one(samples: int, parties: int, seed: int) -> None:
    """Step I by Cholesky costs the same whatever the gradients are: seconds, and operations counted."""
    rng = generator(seed, "growth")
    used = membership(plan_batches("random", samples, 20, samples + 20, rng), samples)
    sums = [used @ torch.randn(samples, 256, dtype=torch.float64, generator=rng) for _ in range(parties)]

    def separated() -> list[Tensor]:
        plan = batch_design(used)
        return [plan.separate(one).values for one in sums]

    began = time.process_time()
    separated()
    seconds = time.process_time() - began
    with Operations() as counted:
        separated()
    factors, other = counted.counts.pop("factors"), counted.counts.pop("other, of cubic cost", 0)
    print(f"N = {samples}: I alone, {parties} parties: {seconds:.3f} CPU s; factors {factors / samples**3:.4f} N^3, "
          f"other cubic {other}, the rest {sum(counted.counts.values()) / samples**2:.0f} N^2", flush=True)  # fmt: skip


def growth(tables: ModuleType, dataset: Dataset, run: Run, sizes: list[int]) -> None:
    """CPU seconds of Steps I and II, by intersection and by Cholesky, and of 20 evaluations of Step III, by N.

    Step I by Cholesky is also timed, and its operations counted, alone, up to four times as many samples.
    """
    for samples in [*sizes, 2 * sizes[-1], 4 * sizes[-1]]:
        for parties in (1, 4):
            step_one(samples, parties, run.seed)
    for samples in sizes:
        seconds = {}
        for route, rounds in (("anti-twins", 3 * samples // 20), ("random", samples + 20)):
            setup = tables.federation.Setup("mnist", samples=samples, batch=20, rounds=rounds, batches=route, whole=60)
            seen, _ = tables.federation.observed(dataset, setup, run)
            began = time.process_time()
            layers, _ = first_layers(seen, generator(run.seed, "attack"), first_layer)
            seconds[route] = time.process_time() - began
        tower, layer = seen.nets(0).tower(0), layers[0]
        start = torch.full((samples, 1, 14, 14), 0.5)
        began = time.process_time()
        known = PartyFeatures(tower.front, layer.h, torch.zeros(samples), start)
        _, evaluations = invert_features(
            [known], (1, 14, 14), InversionEffort(plain=20, retry_blurs=()), generator(run.seed, "attack")
        )
        third = time.process_time() - began
        chosen, random = seconds["anti-twins"], seconds["random"]
        print(f"N = {samples}: I and II {chosen:.2f} CPU s chosen, {random:.2f} random; III, one "
              f"party, {third:.2f} CPU s for {evaluations} evaluations", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=6, help="of Step III, for a result like that of the descent")
    parser.add_argument("--rounds", type=int, default=4, help="of the descent that are timed")
    parser.add_argument("--live", action="store_true", help="run the descent until it is as good, or 8,000 rounds")
    parser.add_argument("--growth", type=int, nargs="+", help="time the steps at these numbers of samples instead")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tables = paper_tables("001")
    run = Run("full", asked.data_dir, "cpu", 2024)
    dataset, why_not = tables.federation.load("mnist", run)
    if dataset is None:
        sys.exit(why_not)
    if asked.growth:
        growth(tables, dataset, run, asked.growth)
        return
    setup = tables.federation.Setup(
        "mnist", samples=asked.samples, batch=asked.batch, rounds=3 * -(-asked.samples // asked.batch)
    )
    seen, examples = tables.federation.observed(dataset, setup, run)
    ours = []
    for label, effort in (
        ("as good", InversionEffort(plain=asked.iterations, retry_blurs=())),
        ("to the end", InversionEffort()),
    ):
        if label == "to the end" and asked.samples > 200:
            continue
        began = time.process_time()
        found = recover(seen, replace(effort, decoder=600), generator(run.seed, "attack"))
        seconds = time.process_time() - began
        psnr = tables.outcome.outcome(found, examples, setup).score().value
        ours.append((label, seconds, psnr))
        print(f"cafe, {label}: {seconds:.1f} CPU s for {psnr:.1f} dB in {setup.rounds} rounds", flush=True)
    planned = tables.descent.Planned("mnist", {}, stages=((8000 if asked.live else asked.rounds + 1, (1, 2, 3)),))
    descent = tables.descent.Descent(dataset, setup, run, planned)
    marks: list[tuple[int, float, float]] = []
    while descent.done < planned.total and (not marks or marks[-1][2] < ours[0][2]):
        descent.forward(500 if asked.live else 1)
        marks.append((descent.done, time.process_time(), float(descent.tiles().mean())))
        if asked.live:
            print(f"descent: round {descent.done}, {marks[-1][2]:.1f} dB", flush=True)
    per_round = (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])
    began = time.process_time()
    for batch in seen.batches[: asked.rounds]:
        gradient(seen.nets(0).requires_grad_(True), examples.take(batch))
    victims = (time.process_time() - began) / asked.rounds
    print(f"cafe-paper: {1e3 * (per_round - victims):.0f} CPU ms a round, and {1e3 * victims:.0f} for the victims")
    per_round -= victims
    rounds, reached = (marks[-1][0], marks[-1][2]) if asked.live else (8000, ON_A_GPU[8000])
    total = rounds * per_round
    print(f"to {reached:.1f} dB: {total:.0f} CPU s against {ours[0][1]:.1f} CPU s for {ours[0][2]:.1f} dB: "
          f"{total / ours[0][1]:.0f} times")  # fmt: skip


if __name__ == "__main__":
    main()
