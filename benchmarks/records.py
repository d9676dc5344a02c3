"""Records of tables on fresh federations: fields right, whole records, certificates, ours beside TabLeak and chance.

    python benchmarks/records.py adult-8 adult-fedavg-8 --seed 96000 --federations 5 --clients 4
    python benchmarks/records.py adult-8 --attacks records tableak --seed 96000
    python benchmarks/records.py adult-64 adult-80 --attacks planted-records --seed 72000

One line per cell and attack. Each federation draws its own model and clients, and each client's one message is
attacked: n is the number of messages. Intervals are 95 %, over federations where there are at least three. Chance is
the best of modes and medians, those of the record's class, and others' records. TabLeak runs as published: 30 starts,
1,500 steps. `planted-records` is a malicious server's: it runs each federation with its plant.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedspill.attack_run import metrics_of, run_attack
from fedspill.audit.planted_run import run_planted
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.leaks.records.leak import RECORDS
from fedspill.metric import Measured
from fedspill.registry import make
from fedspill.seeds import seed_of
from fedspill.threat import CURIOUS_SERVER, MALICIOUS_SERVER_UPDATES
from fedspill.trace import MemoryTrace

PLANTED = "planted-records"
OPTIONS = {"tableak": {"starts": 30, "steps": 1500}, PLANTED: {"rounds_read": 1}}
SHOWN = ("record-fields", "records-whole")


@dataclass(frozen=True)
class Cell:
    """A client's batch of a table, and how it is trained on."""

    data: Any
    samples: int
    training: dict[str, Any]
    auxiliary: int = 100  # records of each class that the adversary has


def fedsgd(data: Any, samples: int, **more: Any) -> Cell:
    return Cell(data, samples, {"algorithm": "fedsgd", "lr": 0.01, "batch_size": samples}, **more)


def fedavg(data: Any, samples: int, batch: int, lr: float, momentum: float = 0.0, **more: Any) -> Cell:
    return Cell(data, samples, {"lr": lr, "batch_size": batch, "epochs": 5, "momentum": momentum}, **more)


CELLS = {
    **{f"adult-{samples}": fedsgd("adult", samples) for samples in (8, 16, 32, 48, 64, 80)},
    "adult-fedavg-8": fedavg("adult", 8, 8, 0.01),
    "adult-fedavg-8-lr.1": fedavg("adult", 8, 8, 0.1),
    "adult-fedavg-8-of-4": fedavg("adult", 8, 4, 0.01),
    "adult-fedavg-8-momentum": fedavg("adult", 8, 8, 0.01, 0.9),
    "adult-fedavg-16": fedavg("adult", 16, 16, 0.01),
    "location30-8": fedsgd("location30", 8, auxiliary=10),
    "location30-fedavg-8": fedavg("location30", 8, 8, 0.05, auxiliary=10),
    "android-8": fedsgd("android-permissions", 8),
    "android-fedavg-8": fedavg("android-permissions", 8, 8, 0.05),
}


def federate(cell: Cell, clients: int, seed: int, data_dir: Path | None) -> tuple[MemoryTrace, Deployment]:
    plan = {
        "seed": seed,
        "data": cell.data,
        "model": {"name": "mlp", "widths": [100, 100]},  # TabLeak's network
        "partition": {"name": "uniform-batch", "batch": cell.samples},
        "federation": {"clients": clients, "rounds": 1},
        "training": cell.training,
        "adversary_data": {"per_class": cell.auxiliary},
    }
    deployment = Deployment.of(check_plan(plan, "a benchmark"), data_dir)
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return trace, deployment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", choices=[*CELLS, "all"])
    parser.add_argument("--attacks", nargs="+", default=["records"], choices=["records", "tableak", PLANTED])
    parser.add_argument("--seed", type=int, default=96_000, help="of the first federation")
    parser.add_argument("--federations", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4, help="of each federation")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    metrics, everything = metrics_of(RECORDS), {}
    for name in CELLS if "all" in asked.cells else asked.cells:
        found: dict[str, dict[str, list[Measured]]] = {attack: {} for attack in asked.attacks}
        spent, unanswered = dict.fromkeys(asked.attacks, 0.0), dict.fromkeys(asked.attacks, 0)
        for seed in range(asked.seed, asked.seed + asked.federations):
            trace, deployment = federate(CELLS[name], asked.clients, seed, asked.data_dir)
            truth, known = trace.truth().beside(deployment.shares.clients), deployment.knowledge()
            for attack in asked.attacks:
                many = {} if attack == PLANTED else {"origins": asked.clients}
                made = make("attacks", attack, {**many, **OPTIONS.get(attack, {})})
                recording, threat = trace, CURIOUS_SERVER
                if attack == PLANTED:
                    (recording, known), threat = (
                        run_planted(made, MALICIOUS_SERVER_UPDATES, deployment),
                        MALICIOUS_SERVER_UPDATES,
                    )
                    truth = recording.truth().beside(deployment.shares.clients)
                began = time.process_time()
                outcome = run_attack(made, recording, threat, knowledge=known, seed=seed_of(seed, attack), truth=truth)
                spent[attack] += time.process_time() - began
                answered = len(outcome.measured[SHOWN[0]].values) if outcome.measured else 0
                unanswered[attack] += asked.clients - answered
                for metric in SHOWN if outcome.measured else ():
                    found[attack].setdefault(metric, []).append(outcome.measured[metric].measured())
        for attack, parts in found.items():
            line, row = [], {}
            for metric in parts:
                score = metrics[metric].summarise(Measured.join(parts[metric]))
                line.append(f"{metric} {score.value:.3f} [{score.low:.3f}, {score.high:.3f}] chance {score.chance:.3f}")
                row[metric] = [score.value, score.low, score.high, score.chance, score.n]
                if score.proof is not None:
                    proof = score.proof
                    line.append(f"proven {proof.proven}/{proof.total} false {proof.refuted}")
                    row["proof"] = [proof.proven, proof.total, proof.refuted]
            n = asked.federations * asked.clients
            each = spent[attack] / n
            note = f" unanswered {unanswered[attack]}" if unanswered[attack] else ""
            print(f"{name:24} {attack:8} n {n}: {'; '.join(line)}; CPU s each {each:.2f}{note}", flush=True)
            everything[f"{name}/{attack}"] = row | {"n": n, "cpu_s": each, "unanswered": unanswered[attack]}
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
