"""How often the twins' interval holds a recording's real score, and how often twins of wrong facts are called unlike.

    python benchmarks/twins.py [kinds] [seeds] [attacks]

Each recording is made by one plan, its truth is held back, and its twins are made of other data of the kind: the two
halves of the training data share no sample.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedspill.attack_run import Outcome, run_attack
from fedspill.audit.likeness import compared, likeness_checks
from fedspill.audit.twin_scores import twin_figures
from fedspill.dataset import Dataset
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.deployment.quantities import quantities_of
from fedspill.deployment.twin import Twin
from fedspill.errors import FedspillError, NoTwin
from fedspill.partitions.shares import share_out
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace, Trace

TWINS = 5
KINDS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "federation": {"clients": 10, "rounds": 4, "clients_per_round": 6},
        "training": {"lr": 0.1, "batch_size": 16},
    },
    "gradients": {
        "data": "digits",
        "model": "logistic",
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "federation": {"clients": 12, "rounds": 4},
        "training": {"algorithm": "fedsgd", "lr": 0.1, "batch_size": 32},
    },
    "people": {
        "data": "made-up-people",
        "model": {"name": "mlp", "widths": [32], "activation": "tanh"},
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "federation": {"clients": 10, "rounds": 5, "clients_per_round": 5},
        "training": {"lr": 0.05, "batch_size": 20, "epochs": 2},
    },
    "images": {
        "data": {"name": "digits"},
        "model": {"name": "cnn", "width": 4},
        "partition": "iid",
        "federation": {"clients": 8, "rounds": 3},
        "training": {"lr": 0.05, "batch_size": 25, "optimizer": "sgd", "momentum": 0.5},
    },
}
WRONG: dict[str, dict[str, Any]] = {  # what the twin is told, or made of
    "learning rate x 3": {"protocol": {"local_lr": 3.0}},
    "learning rate / 3": {"protocol": {"local_lr": 1 / 3}},
    "another activation": {"model": {"name": "mlp", "widths": [32], "activation": "sigmoid"}},
    "another width": {"model": {"name": "mlp", "widths": [48]}},
    "other data": {"turned": True},
}


@dataclass(frozen=True, eq=False)
class Halves:
    """One half of the data for the recording, the other as proxy."""

    recorded: Dataset
    proxy: Dataset

    @staticmethod
    def of(plan: Plan) -> Halves:
        whole: Dataset = make("datasets", plan.data.name, plan.data.options).load(None)
        order = torch.randperm(len(whole.train), generator=generator(plan.seed, "halves"))
        middle = len(order) // 2
        one, other = whole.train.take(order[:middle]), whole.train.take(order[middle:])
        return Halves(replace(whole, train=one), replace(whole, train=other))


def recording_of(plan: Plan, dataset: Dataset) -> tuple[MemoryTrace, Deployment]:
    partition = make("partitions", plan.partition.name, plan.partition.options)
    rng = generator(plan.seed, "shares")
    shares = share_out(dataset, partition, plan.federation.clients, auxiliary=10, rng=rng)
    deployment = replace(Deployment.of(plan), dataset=dataset, shares=shares)
    heard = MemoryTrace({**deployment.protocol(), "plan": None})
    deployment.federation(heard).run()
    return heard, deployment


def twins_of(trace: Trace, plan: Plan, proxy: Dataset) -> tuple[Twin, list[MemoryTrace]]:
    twin = Twin.of(trace, plan, dataset=proxy)
    heard = [MemoryTrace(trace.protocol) for _ in range(TWINS)]
    for seed, one in enumerate(heard):
        twin.run(one, seed)
    return twin, heard


def unlike(trace: Trace, twins: Sequence[Trace]) -> list[str]:
    mine, others = compared(quantities_of(trace), [quantities_of(twin) for twin in twins])
    return [check.name for check in likeness_checks(mine, others) if not check.alike]


def attacked(name: str, trace: Trace, deployment: Deployment) -> Outcome:
    try:
        threat = adversary("curious-server")
        truth = trace.truth().beside(deployment.shares.clients)
        return run_attack(make("attacks", name), trace, threat, knowledge=deployment.knowledge(), seed=1, truth=truth)
    except FedspillError as error:
        return Outcome(status="skipped", why=str(error))


def right(kinds: Sequence[str], seeds: Sequence[int], attacks: Sequence[str]) -> None:
    held = {name: 0 for name in attacks}
    asked = dict(held)
    alarms = recordings = 0
    for kind in kinds:
        for seed in seeds:
            plan = check_plan({**KINDS[kind], "seed": seed}, kind)
            halves = Halves.of(plan)
            trace, deployment = recording_of(plan, halves.recorded)
            twin, heard = twins_of(trace, check_plan({**KINDS[kind], "seed": 1000 + seed}, kind), halves.proxy)
            why = unlike(trace, heard)
            recordings += 1
            alarms += bool(why)
            for name in attacks:
                real = attacked(name, trace, deployment)
                others = [attacked(name, one, twin.deployment(number)) for number, one in enumerate(heard)]
                leak = make("attacks", name).leak
                figures = twin_figures(leak, others, (), like=True)
                score = real.scores.get(leak.headline.name)
                if figures is None or score is None or figures.low is None or figures.high is None:
                    print(kind, seed, name, "not scored", real.why, others[0].why)
                    continue
                inside = figures.low <= score.value <= figures.high
                asked[name] += 1
                held[name] += inside
                print(
                    kind, seed, name, f"real {score.value:.3f} twins {figures.low:.3f} to {figures.high:.3f}",
                    "inside" if inside else "OUTSIDE", "unlike: " + ", ".join(why) if why else "", flush=True,
                )  # fmt: skip
    print("held", {name: f"{held[name]} of {asked[name]}" for name in attacks}, f"alarms {alarms} of {recordings}")


def wrong(kinds: Sequence[str], seeds: Sequence[int]) -> None:
    found = tried = 0
    for kind in kinds:
        for seed in seeds:
            for name, lie in WRONG.items():
                if "model" in lie and kind not in ("digits", "people"):
                    continue
                plan = check_plan({**KINDS[kind], "seed": seed}, kind)
                halves = Halves.of(plan)
                trace, _ = recording_of(plan, halves.recorded)
                for word, factor in lie.get("protocol", {}).items():
                    trace.protocol = {**trace.protocol, word: trace.protocol[word] * factor}
                model = {"model": lie["model"]} if "model" in lie else {}
                proxy = halves.proxy
                if lie.get("turned"):
                    train = replace(proxy.train, x=proxy.train.x.flip(-1).roll(2, -1) * 0.5 + 0.25)
                    proxy = replace(proxy, train=train)
                try:
                    _, heard = twins_of(trace, check_plan({**KINDS[kind], **model, "seed": 1000}, kind), proxy)
                    why = unlike(trace, heard)
                except NoTwin as error:
                    why = [str(error)]
                tried += 1
                found += bool(why)
                print(kind, seed, name, "unlike: " + ", ".join(why) if why else "NOT FOUND", flush=True)
    print(f"found {found} of {tried}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds = sys.argv[1].split(",") if len(sys.argv) > 1 else list(KINDS)
    seeds = [int(seed) for seed in sys.argv[2].split(",")] if len(sys.argv) > 2 else [1, 2, 3, 4, 5]
    attacks = sys.argv[3].split(",") if len(sys.argv) > 3 else ["ebi", "llbg", "labels"]
    right(kinds, seeds, attacks)
    wrong(["digits"], seeds[:2])
