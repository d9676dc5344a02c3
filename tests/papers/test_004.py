"""Paper 004: every table from a small generated federation to its rows, and what the figures are made of."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedspill.attacks.active.experiment import PUBLISHED, Setting
from fedspill.data.base import Dataset
from fedspill.data.made_up_people import MadeUpPeople
from fedspill.partitions.iid import IID
from fedspill.registry import paper_tables
from fedspill.reproduce import Run, tables

NAMES = ("004/10", "004/15", "004/2", "004/4", "004/6", "004/8")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tables, with one data set more: few generated people."""
    found = paper_tables("004")
    settings, people = found.measuring("settings"), MadeUpPeople(people=700).load()

    def load(data: str, seed: int, folder: Path) -> Dataset:
        return people

    monkeypatch.setitem(settings.SETTINGS, "people", Setting(IID(), 6, (150, 40), 200, 3))
    monkeypatch.setitem(settings.ATTRIBUTES, "people", ("secret",))
    monkeypatch.setattr(settings, "load", load)
    monkeypatch.setattr(found.measuring("benign"), "load", load)
    return found


def test_every_table_has_its_code() -> None:
    assert {entry.name for entry in tables() if entry.paper == "004"} == set(NAMES)


@pytest.mark.parametrize("kind", ["Theory", "Practice", "Recovery", "Detection", "FalseAlarms", "Several"])
def test_every_table_goes_from_data_to_rows(
    code: ModuleType, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(getattr(code, kind), "data", ("people",))
    monkeypatch.setattr(code, "SHORT", 3)
    rows = list(getattr(code, kind)().rows(Run("quick", tmp_path)))
    assert rows
    assert {row.cell["data"] for row in rows} == {"people"}
    for row in rows:
        assert row.measured is not None
        assert row.n >= 2
        assert row.chance is not None
        json.dumps(row.as_json())


def test_the_closed_form_reads_members_and_the_guard_sees_it(code: ModuleType, tmp_path: Path) -> None:
    case = code.measuring("settings").Case("people", True, 0, per_cell=4)
    figures = code.measuring("figures")
    lines = [code.measuring("readings").read(case, tmp_path, ("closed",))]
    areas = {(one.cell.get("setting"), one.cell.get("who")): one.value for one in figures.inference(lines)}
    assert min(areas[setting, "members"] for setting in ("pooled", "sgd", "adam")) > 90
    seen = code.measuring("watching").detect(case, tmp_path, ("closed", "frozen row"), (2, 3), PUBLISHED)
    ours = [one for one in figures.detection([seen]) if one.cell["guard"] == "guard"]
    assert [(one.value, one.n) for one in ours] == [(100.0, 32), (100.0, 32)]


def test_benign_events_are_no_alarm_and_lock_nobody_out(code: ModuleType, tmp_path: Path) -> None:
    benign, case = code.measuring("benign"), code.measuring("settings").Case
    lines = [
        benign.benign(case("people", elu, number), tmp_path, 18, share, event)
        for number, (elu, share, event) in enumerate(
            [
                (True, 1.0, "learning rate drops"),
                (False, 1.0, "new cohort"),
                (True, 1.0, "server restarts"),
                (False, 0.5, "none"),
            ]
        )
    ]
    assert [line["alarms"] for line in lines] == [[]] * 4
    assert [line["pairs"] for line in lines[:3]] == [17] * 3
    assert lines[3]["pairs"] == 18 * 3 - 6, "each client's first model has nothing before it"


def test_attackers_who_know_the_guard_are_measured(
    code: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptive = code.measuring("adaptive")
    monkeypatch.setattr(adaptive, "SLOW", 2)
    monkeypatch.setattr(adaptive, "SHARES", (0.1, 1.0))
    monkeypatch.setattr(adaptive, "COPIES", 4)
    found = adaptive.adapt(code.measuring("settings").Case("people", True, 0, per_cell=2), tmp_path)
    assert all(found["small"]["1.0"]["alarms"])
    assert max(found["just below"]["shares"]) < 0.2
    assert all(found["claims a later round"])
    names = {one.cell["way"] for one in code.measuring("figures").hidden([found, found])}
    assert {"just below", "spread", "spread, just below", "gated", "slowly", "slowly, weaker"} <= names
    assert found["gated"]["gated"] == [0.0] * 4, "a gated client tells nothing of a full plant"


def test_intervals_of_means_and_shares(code: ModuleType) -> None:
    figures = code.measuring("figures")
    one: Any = figures.mean_of({}, "fedspill", "x", [50.0, 54.0, 58.0], 50.0)
    assert one.value == 54
    assert one.high - one.value == pytest.approx(2.920 * 4 / math.sqrt(3), abs=0.01)  # t with two degrees of freedom
    none, half = figures.share_of({}, "fedspill", "x", 0, 300), figures.share_of({}, "fedspill", "x", 5, 10)
    assert (none.low, none.value) == (0, 0)
    assert none.high == pytest.approx(100 * (1 - 0.05 ** (1 / 300)))
    assert half.low < 50 < half.high
