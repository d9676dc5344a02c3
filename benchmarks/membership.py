"""Passive membership on fresh federations: members found at 1 % and 0.1 % false alarms, published attacks and ours.

    python benchmarks/membership.py location30 --seeds 5
    python benchmarks/membership.py all --seeds 5 --json membership.json

One line per attack: the mean over federations, and Student's 95 % interval over them. Each federation draws its own
clients, model and outsiders. A record counts once: members as asked of their own client, outsiders of one client each.
`held` is the share of clients whose false alarms at the stated rate of 1 % lie within what that rate allows, over all
outsiders (95 % two-sided binomial, widened by the auxiliary records that the rate was counted on).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from fedmia import alexnet
from scipy import stats
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.defense import Defense
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.federation.local import accuracy
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.metrics import shares_beaten
from fedspill.leaks.membership.passive.exposure import share_above
from fedspill.leaks.membership.passive.truth_of_asked import CountedAnswers, counted_answers
from fedspill.registry import make
from fedspill.roc_area import restricted_area
from fedspill.seeds import seed_of
from fedspill.threat import adversary
from fedspill.trace import Keep, MemoryTrace

PUBLISHED = ("avg-cosine", "fedmia-ii")
OURS = ("membership",)


@dataclass(frozen=True)
class Cell:
    """One federation, and what is tried on it."""

    plan: dict[str, Any]
    attacks: tuple[str, ...] = (*PUBLISHED, *OURS)
    who: str = "curious-server"
    rounds: tuple[int, ...] | None = None  # recorded ones
    network: Callable[[], nn.Module] | None = None
    bars: dict[str, float] = field(default_factory=dict)


def images_network() -> nn.Module:
    """Three convolutions and 1024 -> 256 -> 100, as in research/membership.md."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 100))


def plan(
    data: Any, model: Any, clients: int, samples: int, rounds: int, aux: int, others: int, **training: Any
) -> dict[str, Any]:
    return {
        "data": data,
        "model": model,
        "partition": {"name": "iid", "samples": samples},
        "federation": {"clients": clients, "rounds": rounds},
        "training": {"lr": 0.1, "batch_size": 20, **training},
        "adversary_data": {"per_class": aux},
        "membership": {"members": clients * samples, "others": others},
    }


_LOCATION = {"name": "location30", "test_share": 0.6}
_WIDE = {"name": "mlp", "widths": [256, 128]}
CELLS: dict[str, Cell] = {
    "location30": Cell(
        plan(_LOCATION, _WIDE, 10, 100, 24, 16, 3000),
        ("fedmia-i", "fedmia-ii", "rmia", "membership", "membership:whitened gradient"),
        rounds=(3, 7, 11, 15, 19, 23),
    ),
    "fashion": Cell(
        plan("fashion-mnist", {"name": "mlp", "widths": [128]}, 5, 500, 16, 50, 4000, batch_size=50),
        rounds=tuple(range(1, 16, 2)),
    ),
    "adult": Cell(plan("adult", {"name": "mlp", "widths": [64]}, 10, 60, 12, 250, 4000), rounds=tuple(range(1, 12, 2))),
    "adult-few": Cell(
        plan("adult", {"name": "mlp", "widths": [64]}, 10, 20, 12, 250, 4000, batch_size=10),
        rounds=tuple(range(1, 12, 2)),
    ),
    "cifar100": Cell(
        plan("cifar100", _WIDE, 6, 200, 12, 8, 1000, momentum=0.9, lr=0.05),
        rounds=(3, 7, 11),
        network=images_network,
        attacks=("fedmia-ii", *OURS),
    ),
    "cifar100-soft": Cell(
        plan("cifar100", _WIDE, 5, 450, 20, 10, 1000, momentum=0.9, lr=0.05, batch_size=25),
        ("fedmia-ii", *OURS),
        rounds=tuple(range(1, 20, 2)),
        network=images_network,
    ),
    "cifar100-convolutions": Cell(
        plan("cifar100", _WIDE, 10, 400, 60, 10, 1000, momentum=0.9, weight_decay=5e-4, batch_size=100),
        OURS,
        rounds=(19, 29, 39, 49, 59),
        network=alexnet,
    ),
    "sum-fits": Cell(
        plan(_LOCATION, _WIDE, 4, 100, 20, 16, 3000, momentum=0.9),
        ("avg-cosine", "membership"),
        "curious-server-secagg",
        tuple(range(1, 20, 2)),
    ),
    "sum-twice": Cell(
        plan(_LOCATION, _WIDE, 9, 100, 20, 16, 3000, momentum=0.9),
        ("avg-cosine", "membership"),
        "curious-server-secagg",
        tuple(range(1, 20, 2)),
    ),
    "client-fits": Cell(
        plan(_LOCATION, _WIDE, 4, 100, 20, 16, 3000, momentum=0.9),
        ("loss-series", "rmia", "zari", "membership"),
        "curious-client",
    ),
}


def measured(found: CountedAnswers) -> dict[str, float]:
    """Figures of one federation."""
    inside, outside = found.scores[found.member], found.scores[~found.member]
    figures = {"auc": restricted_area(found.member, found.scores, 1.0), "tpr1": share_above(inside, outside, 0.01)}
    figures["tpr01"] = share_above(inside, outside, 0.001) if len(outside) >= 1000 else math.nan
    return figures


def rate_held(guess: Membership, places: Tensor, auxiliary: int) -> tuple[int, int, float]:
    """Clients whose share of alarms at a stated 1 % is as it may be, all clients, and the mean share."""
    outsider = places[guess.places][:, 0] < 0
    senders = sorted({origin.sender for origin in guess.of})
    held, shares = 0, []
    for sender in senders:
        mine = outsider & torch.tensor([origin.sender == sender for origin in guess.of])
        n, alarms = int(mine.sum()), int((guess.scores[mine] >= 2).sum())
        # The threshold is an order statistic of the auxiliary records: alarms are beta-binomial.
        above = 0.01 * (auxiliary + 1)
        law = stats.betabinom(n, above, auxiliary + 1 - above)
        held += int(law.ppf(0.025) <= alarms <= law.ppf(0.975))
        shares.append(alarms / n)
    return held, len(senders), sum(shares) / len(shares)


def attack_of(name: str) -> Attack:
    base, _, only = name.partition(":")
    made: Attack = make("attacks", base, {"only": only} if only else {})
    return made


def federate(
    cell: Cell, seed: int, data_dir: Path | None, defenses: Sequence[Defense] = ()
) -> tuple[MemoryTrace, Deployment, float]:
    """The recording, what was deployed, and the share of test records that the last model has right."""
    checked = check_plan({"seed": seed, **cell.plan}, "a benchmark")
    deployment = Deployment.of(checked, data_dir).with_defenses(*defenses)
    if cell.network is not None:
        made = cell.network

        def build() -> nn.Module:
            with torch.random.fork_rng():
                torch.manual_seed(seed_of(seed, "model"))
                return made()

        deployment = replace(deployment, build_model=build)
    trace = MemoryTrace(deployment.protocol())
    if cell.rounds is not None:
        trace = MemoryTrace(deployment.protocol(), Keep(rounds=frozenset(cell.rounds)))
    federation = deployment.federation(trace)
    federation.run()
    return trace, deployment, accuracy(federation.model, deployment.dataset.test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", choices=[*CELLS, "all"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=9000, help="the first seed")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    everything: dict[str, Any] = {}
    for name in CELLS if "all" in asked.cells else asked.cells:
        cell, rows = CELLS[name], {}
        for seed in range(asked.first, asked.first + asked.seeds):
            began = time.process_time()
            trace, deployment, _ = federate(cell, seed, asked.data_dir)
            trained = time.process_time() - began
            truth, known = trace.truth(), deployment.knowledge()
            places = next(v for (_, fact), v in truth.facts.items() if fact == "asked_places")
            for attack in cell.attacks:
                began = time.process_time()
                view = trace.view(adversary(cell.who), me="client:0", knowledge=known)
                guess = attack_of(attack)(view, seed=seed)
                assert isinstance(guess, Membership)
                found = counted_answers(guess, truth)
                pairs = counted_answers(guess, truth, of_every_client=True)
                row = (
                    measured(found)
                    | {"matched": float(shares_beaten(pairs.scores, pairs)[0].mean())}
                    | {"seconds": time.process_time() - began, "n": float(len(found.scores))}
                )
                row["outsiders"] = float((~found.member).sum())
                if attack.startswith("membership"):
                    left_out = len(known["aux_data"]) // 2
                    held, clients, share = rate_held(guess, places, left_out)
                    row |= {"held": held, "clients": clients, "false alarms": share}
                    row["how"] = next(note.partition(" was used")[0] for note in guess.notes if " was used" in note)
                rows.setdefault(attack, []).append(row)
            only = {
                "auc": restricted_area(found.member, found.label_only, 1.0),
                "matched": float(shares_beaten(pairs.label_only, pairs)[0].mean()),
            }
            rows.setdefault("label only", []).append(only)
            print(
                f"# {name} seed {seed}: trained {trained:.0f} s, "
                + str(
                    {
                        a: {k: (round(v, 3) if isinstance(v, float) else v) for k, v in r[-1].items()}
                        for a, r in rows.items()
                    }
                ),
                flush=True,
            )
        everything[name] = rows
        for attack, found_rows in rows.items():
            print(f"{name:14s} {attack:30s} " + said(found_rows), flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(everything))


def said(rows: list[dict[str, Any]]) -> str:
    parts = []
    for figure in ("accuracy", "change", "auc", "matched", "tpr1", "tpr01", "false alarms", "seconds"):
        values = torch.tensor([row[figure] for row in rows if figure in row], dtype=torch.double)
        if len(values):
            half = (
                float(stats.t.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5)
                if len(values) > 1
                else math.nan
            )
            parts.append(f"{figure} {float(values.mean()):.4f} +- {half:.4f}")
    held, clients = (sum(row.get(word, 0) for row in rows) for word in ("held", "clients"))
    return (
        ", ".join(parts)
        + (f", rate held in {held} of {clients} clients" if clients else "")
        + f", {len(rows)} federations"
    )


if __name__ == "__main__":
    main()
