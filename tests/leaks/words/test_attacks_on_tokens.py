"""Attacks that are made for images and tables meet clients who write: they answer or skip, and never fail."""

from typing import Any

import pytest
import text_kit
from spine import attempt, fitting_adversary

from fedspill.errors import AttackFailed, FedspillError
from fedspill.leaks.membership.passive.asked_records import AskedRecords
from fedspill.planting.targets import Targets
from fedspill.registry import entries, load, make
from fedspill.threat import ADVERSARIES

QUICK: dict[str, dict[str, Any]] = {
    "inputs": {"origins": 1},
    "lamp": {"origins": 1, "turns": 1, "steps": 3},
    "tag": {"origins": 1, "steps": 3},
}
NAMES = [e.name for e in entries("attacks") if not any("batch" in g for g in load("attacks", e.name).needs.sees)]


def knowledge(objective: str) -> dict[str, Any]:
    test, train = text_kit.sentences().test, text_kit.sentences().train
    targets = Targets(test.x[:2], test.y[:2], first=0, column=None, masked=())
    return {
        **text_kit.knowledge(objective),
        "shadow_data": train,
        "targets": targets,
        "asked_records": AskedRecords(train.x[:12], train.y[:12]),
        "labels_per_client": (1, 2),
    }


@pytest.mark.parametrize("objective", ["class", "next"])
@pytest.mark.parametrize("name", NAMES)
def test_an_attack_answers_or_says_why_not(name: str, objective: str) -> None:
    attack = make("attacks", name, QUICK.get(name, {}))
    trace = text_kit.recorded(objective)
    for threat in (fitting_adversary(attack), *ADVERSARIES.values()):
        if threat.missing(attack.needs):
            continue
        view = trace.view(threat, me="client:0", knowledge=knowledge(objective))
        result = attempt(lambda view=view: attack(view, seed=1, limit=60))
        if isinstance(result, FedspillError):
            assert not isinstance(result, AttackFailed), f"{threat.name}: {result} from {result.__cause__!r}"
