"""Samples behind secure sums, and which of them are one client's: `summed-inputs` on fresh federations.

    python benchmarks/summed_inputs.py --seed 98010 --federations 4

Eight clients hold four digits each and train one step on all of them; three are chosen at random in each of twelve
rounds, and the server sees the sum of twelve samples. Prints, for each federation and in all, samples recovered and
vouched for, those of them that are false, and pairs of samples that were rightly put together, beside chance.
"""

from __future__ import annotations

import argparse
import time

import torch

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER_SECAGG
from fedspill.trace import MemoryTrace


def federate(seed: int) -> tuple[MemoryTrace, Deployment]:
    plan = {
        "seed": seed,
        "data": "digits",
        "model": {"name": "mlp", "widths": [64, 64], "activation": "relu"},
        "partition": {"name": "uniform-batch", "batch": 4},
        "federation": {"clients": 8, "clients_per_round": 3, "rounds": 12, "secure_aggregation": True},
        "training": {"lr": 0.05, "batch_size": 4},
        "adversary_data": {"per_class": 5},
    }
    deployment = Deployment.of(check_plan(plan, "a benchmark"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return trace, deployment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=98_010, help="of the first federation")
    parser.add_argument("--federations", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    proven = total = false = 0
    pairs = right = 0.0
    for seed in range(asked.seed, asked.seed + asked.federations):
        trace, deployment = federate(seed)
        truth, known = trace.truth().beside(deployment.shares.clients), deployment.knowledge()
        began = time.process_time()
        attack = make("attacks", "summed-inputs")
        found = run_attack(attack, trace, CURIOUS_SERVER_SECAGG, knowledge=known, seed=seed, truth=truth)
        spent = time.process_time() - began
        recovered = found.measured["inputs-recovered"].measured()
        assert recovered.proof is not None
        proven, total, false = (
            proven + recovered.proof.proven, total + recovered.proof.total, false + recovered.proof.refuted,
        )  # fmt: skip
        line = f"{seed}: recovered {recovered.values.mean():.3f}, CPU s {spent:.1f}"
        if "inputs-grouped" in found.measured:
            grouped = found.measured["inputs-grouped"].measured()
            assert grouped.trials is not None
            pairs += float(grouped.trials.sum())
            right += float((grouped.values * grouped.trials).sum())
            line += f", pairs right {grouped.values.mean():.3f}, chance {grouped.chance.mean():.3f}"
        print(line, flush=True)
    print(
        f"n {asked.federations}: vouched for and right {proven} of {total}, false {false}; "
        f"pairs put together rightly {right:.0f} of {pairs:.0f}"
    )


if __name__ == "__main__":
    main()
