"""What defenses leave of passive membership, and what they cost: members found, and the accuracy of the model.

    python benchmarks/membership_defended.py mnist location30 --seeds 5

Every federation is trained anew with each setting. The adversary is a server that reads updates, or sums where updates
are aggregated securely. Means over federations with Student's 95 % half-widths; changes of accuracy are paired by seed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from membership import Cell, attack_of, federate, measured, plan, said

from fedspill.defense import Defense
from fedspill.leaks.membership.passive.truth_of_asked import counted_answers
from fedspill.registry import make
from fedspill.threat import adversary

_LOCATION = {"name": "location30", "test_share": 0.6}
FEDERATIONS = {
    "mnist": Cell(
        {
            **plan("mnist", {"name": "mlp", "widths": [128]}, 20, 200, 40, 100, 3000, lr=0.2, batch_size=20),
            "membership": {"members": 2000, "others": 3000},
        },
        rounds=(9, 19, 29, 39),
    ),
    "location30": Cell(
        plan(_LOCATION, {"name": "mlp", "widths": [256, 128]}, 10, 100, 40, 16, 3000, momentum=0.9),
        rounds=tuple(range(7, 40, 8)),
    ),
}
NOISES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
SETTINGS: dict[str, tuple[str, dict[str, Any]] | None] = {
    "none": None,
    **{f"clip-noise {sigma:g}": ("clip-noise", {"clip": 10.0, "sigma": sigma}) for sigma in NOISES},
    "dp-sgd 0.3": ("dp-sgd", {"clip": 2.0, "noise_multiplier": 0.3}),
    "dp-sgd 1": ("dp-sgd", {"clip": 1.0, "noise_multiplier": 1.0}),
    "compression 0.9": ("compression", {"drop": 0.9}),
    "secure-aggregation": ("secure-aggregation", {}),
}


def defended(name: str, setting: str, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """Figures of one federation."""
    chosen = SETTINGS[setting]
    defenses: list[Defense] = [] if chosen is None else [make("defenses", *chosen)]
    trace, deployment, right = federate(FEDERATIONS[name], seed, data_dir, defenses)
    who = "curious-server-secagg" if setting == "secure-aggregation" else "curious-server"
    guess = attack_of("membership")(trace.view(adversary(who), knowledge=deployment.knowledge()), seed=seed)
    how = next(note.partition(" was used")[0] for note in guess.notes if " was used" in note)
    return {**measured(counted_answers(guess, trace.truth())), "accuracy": right, "how": how}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("federations", nargs="+", choices=FEDERATIONS)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=9040)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    everything: dict[str, list[dict[str, Any]]] = {}
    for name in asked.federations:
        for setting in asked.settings:
            rows = everything[f"{name}, {setting}"] = []
            for seed in range(asked.first, asked.first + asked.seeds):
                rows.append(defended(name, setting, seed, asked.data_dir))
            base = everything.get(f"{name}, none")
            for row, plain in zip(rows, base or (), strict=False):
                row["change"] = row["accuracy"] - plain["accuracy"]
            print(f"{name:11s} {setting:19s} {said(rows)}, by {', '.join(row['how'] for row in rows)}", flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
