"""Draws federations of small plans and keeps, for every attack, what each of its origins measured.

    python benchmarks/draws.py PLAN FIRST COUNT     appends to draws/PLAN.jsonl; seeds that are there are left out

One line is one federation: {"seed", "attacks": {name: {"metric", "of": [[round, sender]], "values", "chance",
"trials", "holder"}}}. `holder` names the client of a target record, -1 for a record that no client holds.
Coverage is then a matter of seconds and needs no federation again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fedspill.attack import ActiveAttack
from fedspill.audit.planted_run import run_planted
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import FedspillError
from fedspill.registry import make
from fedspill.seeds import seed_of
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace

FOLDER = Path(__file__).parent / "draws"

_PEOPLE: dict[str, Any] = {
    "data": "made-up-people",
    "model": {"name": "mlp", "widths": [48, 24], "logits": 1},
    "partition": "iid",
    "federation": {"clients": 4, "rounds": 2, "secure_aggregation": True},
    "training": {"lr": 0.05, "batch_size": 32},
    "adversary_data": {"per_class": 20, "shadow": 300},
    "targets": {"attribute": "secret", "members": 32, "others": 32, "after": 2},
}

_MAIN = {"name": "main-labels", "low": 2, "high": 3, "per_label": 20, "reuse": True}

# Per plan: the plan, and the attacks by adversary. The first is that of field_tests.md.
PLANS: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "digits8": (
        {"federation": {"clients": 8, "rounds": 4}, "training": {"lr": 0.1}},
        [(name, "curious-server") for name in ("llbg", "ebi", "llg", "composition-by-counts", "decaf")],
    ),
    # Many clients, so that some of them can be held against all: the population of an interval over clients.
    "digits48": (
        {"federation": {"clients": 48, "rounds": 4}, "training": {"lr": 0.1}},
        [(name, "curious-server") for name in ("llbg", "ebi", "llg", "composition-by-counts", "decaf")],
    ),
    "single48": (
        {
            "model": {"name": "mlp", "widths": [32]},
            "partition": {"name": "uniform-batch", "batch": 8},
            "federation": {"clients": 48, "rounds": 1},
            "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 8},
        },
        [("inputs", "curious-server", {"origins": 48}), ("ebi", "curious-server")],
    ),
    "single": (
        {
            "model": {"name": "mlp", "widths": [32]},
            "partition": {"name": "uniform-batch", "batch": 8},
            "federation": {"clients": 8, "rounds": 2},
            "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 8},
        },
        [("inputs", "curious-server"), ("labels", "curious-server"), ("ebi", "curious-server")],
    ),
    "batch1": (
        {
            "partition": {"name": "uniform-batch", "batch": 1},
            "federation": {"clients": 6, "rounds": 1},
            "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 1},
        },
        [("llbg", "curious-server"), ("ebi", "curious-server"), ("llg", "curious-server")],
    ),
    "people": (_PEOPLE, [("planted", "malicious-server"), ("planted-membership", "malicious-server")]),
    **{
        f"people-noise-{sigma}": (
            {**_PEOPLE, "defenses": [{"name": "clip-noise", "clip": 1.0, "sigma": sigma}]},
            [("planted", "malicious-server"), ("planted-membership", "malicious-server")],
        )
        for sigma in (0.003, 0.01)
    },
    **{
        f"watch-{name}": (
            {
                "model": {"name": "mlp", "widths": [32]},
                "partition": {**_MAIN, "minor": minor},
                "federation": {"clients": 20, "rounds": 12, "clients_per_round": each, "weighting": "uniform"},
                "training": {"lr": lr, "batch_size": 10},
                "adversary_data": {"per_class": 20},
            },
            [("class-sniffing", "curious-client")],
        )
        for name, lr, each, minor in (("easy", 0.02, 3, 0), ("hard", 0.1, 5, 3))
    },
    **{
        f"quantity-{name}": (
            {
                "model": {"name": "mlp", "widths": [32]},
                "partition": {**_MAIN, "minor": minor},
                "federation": {"clients": 30, "rounds": 7, "clients_per_round": 10, "weighting": "uniform"},
                "training": {"lr": lr, "batch_size": 10},
                "adversary_data": {"per_class": known},
            },
            [("quantity-inference", "curious-client")],
        )
        for name, lr, known, minor in (("easy", 0.02, 20, 0), ("hard", 0.2, 10, 3))
    },
}


def draw(name: str, seed: int) -> dict[str, Any]:
    """One federation of the plan: every attack on it, measured by its headline."""
    content, pairs = PLANS[name]
    plan = check_plan({"seed": seed, **content}, name)
    deployment = Deployment.of(plan)
    clients = deployment.shares.clients
    honest = None
    found: dict[str, Any] = {}
    for attack_name, adversary_name, *options in pairs:
        attack, threat = make("attacks", attack_name, *options), adversary(adversary_name)
        key = f"{attack_name}/{adversary_name}"
        began = time.perf_counter()
        try:
            if isinstance(attack, ActiveAttack):
                trace, known = run_planted(attack, threat, deployment)
            else:
                if honest is None:
                    honest = MemoryTrace(deployment.protocol())
                    deployment.federation(honest).run()
                trace, known = honest, deployment.knowledge()
            guess = attack(
                trace.view(threat, me="client:0", knowledge=known), seed=seed_of(seed, attack_name, adversary_name)
            )
            metric = attack.leak.headline
            truth = trace.truth().beside(clients)
            measured = metric.measure(guess, truth)
        except FedspillError as error:
            found[key] = {"error": str(error)}
            continue
        entry: dict[str, Any] = {
            "metric": metric.name,
            "seconds": round(time.perf_counter() - began, 3),
            "of": [list(origin) for origin in guess.of],
            "values": [round(float(v), 9) for v in measured.values],
            "chance": [round(float(v), 9) for v in measured.chance],
            "trials": None if measured.trials is None else [int(v) for v in measured.trials],
        }
        answered = getattr(guess, "answered", None)
        if answered is not None:
            entry["answered"] = [bool(v) for v in answered]
        if metric.name in ("label-asr", "composition-l1"):
            entry["counts"] = [truth.get(o, "label_counts").long().tolist() for o in guess.of]
        if metric.name == "composition-l1":
            entry["shares"] = [[round(float(v), 6) for v in row] for row in guess.shares]
        if metric.name == "label-asr":
            entry["guess"] = guess.counts.tolist()
        if "targets" in content:
            entry["holder"] = [
                int(truth.get(o, "target_holders")[int(p)]) for o, p in zip(guess.of, guess.places, strict=True)
            ]
            entry["scores"] = [round(float(v), 9) for v in guess.scores]
            entry["member"] = [
                int(truth.get(o, "target_members")[int(p)]) for o, p in zip(guess.of, guess.places, strict=True)
            ]
            entry["value"] = [
                int(truth.get(o, "target_values")[int(p)]) for o, p in zip(guess.of, guess.places, strict=True)
            ]
        if metric.name.startswith("presence"):
            from fedspill.leaks.quantity.round_truth import true_owners

            there = true_owners(guess.of, truth, guess.me, "main", guess.present.shape[1]) > 0
            entry["right"] = (guess.present == there).long().tolist()
            entry["there"] = there.long().tolist()
        if metric.name.startswith("inputs"):
            entry["certified"] = [int(c.sum()) for c in guess.certified]
        found[key] = entry
    return {"seed": seed, "attacks": found}


def main() -> None:
    name, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{name}.jsonl"
    done = {json.loads(line)["seed"] for line in file.read_text().splitlines()} if file.exists() else set()
    for seed in range(first, first + count):
        if seed not in done:
            line = json.dumps(draw(name, seed), separators=(",", ":"))
            with file.open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
