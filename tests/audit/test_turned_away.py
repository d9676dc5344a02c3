"""Honest models that configured defenses turn away are counted, from the federation to the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_kit import audit, tiny

from fedspill.audit.turned_away import over_federations, turned_away
from fedspill.trace import Event

DISTRUST = """
from dataclasses import dataclass
from typing import ClassVar, final

from fedspill.defense import ACCEPT, Defense, Verdict


@final
@dataclass(frozen=True)
class Distrust(Defense):
    \"\"\"Refuses the second model.\"\"\"

    name: ClassVar[str] = "distrust"
    title: ClassVar[str] = "Refuses the second model"
    paper: ClassVar[str] = ""

    def incoming(self, message, previous, client):
        return ACCEPT if previous is None else Verdict("refuse", "seen before")
"""


def verdict(number: int, party: str, action: str) -> Event:
    return Event(number, party, f"guard: {action}, odd", "guard", action)


def test_verdicts_are_counted_by_defense_and_other_events_are_not() -> None:
    events = [
        Event(0, "client:0", "did not answer"),
        verdict(1, "client:0", "refuse"),
        verdict(1, "client:1", "repair"),
        verdict(2, "client:0", "refuse"),
    ]
    (one,) = turned_away(events)
    assert (one.defense, one.refused, one.repaired, one.clients, one.rounds) == ("guard", 2, 1, 2, 2)
    assert one.first == "round 1, client:0: guard: refuse, odd"
    (both,) = over_federations([one, one])
    assert (both.refused, both.repaired, both.clients, both.rounds) == (4, 2, 4, 4)


def test_an_audit_counts_what_a_configured_defense_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "distrusting.py").write_text(DISTRUST)
    monkeypatch.syspath_prepend(str(tmp_path))
    defenses = [{"name": "distrusting:Distrust"}]
    result = audit(tiny(defenses=defenses, attacks=["ebi"], adversaries=["curious-server"]), tmp_path / "out")
    (one,) = result["turned_away"]
    assert (one["defense"], one["refused"], one["repaired"]) == ("distrust", 12, 0)
    assert (one["clients"], one["rounds"]) == (12, 1)
