"""Paper 004: every table from a small generated federation to its rows, and what the figures are made of."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedspill.data.made_up_people import MadeUpPeople
from fedspill.dataset import Dataset
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

    monkeypatch.setitem(settings.SETTINGS, "people", settings.FederationSetting(IID(), 6, (150, 40), 200, 3))
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
    seen = code.measuring("watching").detect(
        case, tmp_path, ("closed", "frozen row"), (2, 3), code.measuring("experiment").PUBLISHED
    )
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


@pytest.mark.parametrize("elu", [True, False])
def test_attackers_who_know_the_guard_are_measured(
    code: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elu: bool
) -> None:
    adaptive = code.measuring("adaptive")
    monkeypatch.setattr(adaptive, "SLOW", 2)
    monkeypatch.setattr(adaptive, "SHARES", (0.1, 1.0))
    monkeypatch.setattr(adaptive, "COPIES", 4)
    monkeypatch.setattr(adaptive, "_HALVINGS", 6)
    monkeypatch.setattr(adaptive, "WEAKER", dict(list(adaptive.WEAKER.items())[:1]))
    case = code.measuring("settings").Case("people", elu, 0, per_cell=1)
    found, slow = adaptive.adapt(case, tmp_path), adaptive.slow(case, tmp_path)
    assert all(found["small"]["1.0"]["alarms"])
    assert max(found["just below"]["shares"]) < 0.2
    assert all(found["claims a later round"])
    assert all(len(way) == 2 for way in slow["slowly"]["shares"])
    names = {one.cell["way"] for one in code.measuring("figures").hidden([found, found, slow])}
    assert {"just below", "spread", "spread, just below", "gated", "slowly", "slowly, weaker"} <= names
    assert ("slowly, all larger" in names) == (not elu)
    assert found["gated"]["gated"] == [0.0] * 2, "a gated client tells nothing of a full plant"


def test_larger_neurons_everywhere_predict_the_same(code: ModuleType, tmp_path: Path) -> None:
    settings, adaptive = code.measuring("settings"), code.measuring("adaptive")
    rep = settings.trained(settings.Case("people", False, 0, per_cell=2), tmp_path)
    honest = rep.history[-1]
    larger = adaptive._all_larger(rep, honest, honest)
    before, after = (rep.dense.pre_activations(state, rep.pool.x, rep.dense.hidden) for state in (honest, larger))
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-4)
    assert float(larger["fc1.weight"].norm() / honest["fc1.weight"].norm()) == pytest.approx(adaptive.LARGER)


def test_after_a_roll_back_the_benign_run_is_near_and_nothing_is_read(code: ModuleType, tmp_path: Path) -> None:
    case, readings = code.measuring("settings").Case, code.measuring("readings")
    lines = [readings.rolled_back(case("people", True, number, per_cell=4), tmp_path) for number in range(3)]
    found = {(one.metric, one.cell.get("who")): one for one in code.measuring("figures").after_roll_back(lines)}
    assert len(found) == 4
    for line in lines:
        assert line["hold"][0] == line["kept"][1], "the benign model of the attacked round is what a server keeps"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Loads a script of the paper's folder, with its measure/ as the one it imports."""
    place = Path(__file__).parents[2] / "papers" / "004"
    monkeypatch.syspath_prepend(str(place))
    for name in [name for name in sys.modules if name.partition(".")[0] == "measure"]:
        monkeypatch.delitem(sys.modules, name)  # another paper may have a folder of that name

    def load(script: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{script}_004", place / f"{script}.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, found)
        spec.loader.exec_module(found)
        return found

    return load


def test_parts_of_the_full_run_have_their_repetitions(beside: Callable[[str], ModuleType]) -> None:
    full = beside("run_full")
    on_device, on_processor = full.jobs(["detect=60:62", "benign=60:61"], ["adult", "celeba"], 1.0)
    assert {job.case.number for job in on_device} == {60, 61}
    assert {job.case.data for job in on_processor} == {"adult"}
    assert sum(job.what == "detect" for job in on_device) == 2 * 2 * 2
    ours, _ = full.jobs(["detect=60:61"], ["adult"], 1.0, published=False, per_cell=3)
    assert all(job.options["published"] is False and job.case.per_cell == 3 for job in ours)
    everything = full.jobs(list(full.PARTS), list(full.ATTRIBUTES), 0.05)
    assert all(jobs == sorted(jobs, key=lambda job: job.when) for jobs in everything)
    assert min(job.case.number for job in everything[0]) == -3, "recipes are compared on development seeds"


def test_figures_are_written_beside_what_the_paper_prints(
    beside: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"what": "detect", "data": "adult", "elu": True, "attacks": {"closed": {"2": {"guard": [True, False]}}}}
    lines, known = tmp_path / "lines.jsonl", tmp_path / "expected.json"
    lines.write_text(json.dumps(line) + "\n")
    known.write_text(json.dumps({"8": {"wadm": "about 100"}, "measured": {"old": 1}}))
    monkeypatch.setattr(sys, "argv", ["summary.py", str(lines), "--write", str(known)])
    beside("summary").main()
    found = json.loads(known.read_text())
    assert found["8"] == {"wadm": "about 100"}
    assert "old" not in found["measured"]
    assert found["measured"]["8"]["adult, elu, closed, guard, detected, %"]["value"] == 50


def test_guessing_has_more_than_half_where_few_are_asked(code: ModuleType) -> None:
    figures, rng = code.measuring("figures"), torch.Generator().manual_seed(0)
    for many in (3, 8, 40):
        true = [1] * 8 + [0] * many
        areas = [figures.area(true, torch.rand(8 + many, generator=rng).tolist()) for _ in range(1000)]
        error = torch.tensor(areas).std() / math.sqrt(1000)
        assert abs(sum(areas) / 1000 - figures.guessed(many)) < 4 * error
    assert figures.guessed(8) == pytest.approx(52.38, abs=0.01)
    assert figures.guessed(10_000) == pytest.approx(50, abs=0.01)


def test_intervals_of_means_and_shares(code: ModuleType) -> None:
    figures = code.measuring("figures")
    one: Any = figures.mean_of({}, "fedspill", "x", [50.0, 54.0, 58.0], 50.0)
    assert one.value == 54
    assert one.high - one.value == pytest.approx(2.920 * 4 / math.sqrt(3), abs=0.01)  # t with two degrees of freedom
    few: Any = figures.mean_of({}, "fedspill", "x", [100.0, 86.0], 50.0, figures.PERCENT)
    assert (few.low, few.high) == (pytest.approx(93 - 6.314 * 7, abs=0.1), 100)  # no area is above 100 %
    none, half = figures.share_of({}, "fedspill", "x", 0, 300), figures.share_of({}, "fedspill", "x", 5, 10)
    assert (none.low, none.value) == (0, 0)
    assert none.high == pytest.approx(100 * (1 - 0.05 ** (1 / 300)))
    assert half.low < 50 < half.high
