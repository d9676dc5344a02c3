"""A leak, an attack, a defense and a metric in one file outside the package: used, listed, and known to attacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit_kit import Ended, audit, here, tiny, write_plan

from fedspill.deployment.deployment import Deployment
from fedspill.registry import find, load_leak
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace

MINE = '''
"""Everything of somebody else's in one file."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.defense import Defense
from fedspill.guess import Guess
from fedspill.leak import Leak, of_hundred
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.metric import Measured, Metric
from fedspill.threat import needs


@final
@dataclass(frozen=True, eq=False)
class Sizes(Guess):
    """How many samples each origin trained on."""

    of: list
    samples: Tensor
    notes: tuple = ()

    def check(self) -> None:
        assert len(self.samples) == len(self.of)


@final
@dataclass(frozen=True)
class SizesRight(Metric[Sizes]):
    """Share of origins whose size is right."""

    name: ClassVar[str] = "sizes-right"
    title: ClassVar[str] = "Sizes right"
    guesses = Sizes
    perfect: ClassVar[float] = 1.0

    def measure(self, guess, truth):
        real = torch.stack([truth.get(origin, "label_counts").sum() for origin in guess.of])
        return Measured((guess.samples == real).double(), torch.zeros(len(real)), torch.ones(len(real)))


SIZES = Leak(
    name="sizes",
    title="Size of a client's data",
    question="How many samples does a client hold?",
    guess=Sizes,
    metrics=(SizesRight(),),
    control={
        "model": {"name": "mlp", "widths": [8]},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "federation": {"clients": 8, "rounds": 1},
    },
    figure=of_hundred("clients"),
    sentence="the size of {figure} is known",
)


@final
@dataclass(frozen=True)
class Announced(Attack):
    """Reads the size that a client announces with its update."""

    name: ClassVar[str] = "announced"
    title: ClassVar[str] = "Sizes as announced"
    paper: ClassVar[str] = "none"
    needs = needs(sees=["update"])
    leak = SIZES

    def run(self, view, rng):
        sent = view.get("update")
        from fedspill.trace import Origin
        return Sizes([Origin(m.round, m.sender) for m in sent], torch.tensor([m.info["examples"] for m in sent]))


@final
@dataclass(frozen=True)
class Halved(Defense):
    """Sends half of every number."""

    name: ClassVar[str] = "halved"
    title: ClassVar[str] = "Half of every number"
    strengths = ({},)

    def outgoing(self, message, rng):
        return replace(message, tensors={name: tensor / 2 for name, tensor in message.tensors.items()})


@final
@dataclass(frozen=True)
class LargestClass(Metric[LabelCounts]):
    """Share of batches whose largest class is right."""

    name: ClassVar[str] = "largest-class"
    title: ClassVar[str] = "Largest class right"
    guesses = LabelCounts
    perfect: ClassVar[float] = 1.0

    def measure(self, guess, truth):
        real = torch.stack([truth.get(origin, "label_counts") for origin in guess.of])
        right = (guess.counts.argmax(1) == real.argmax(1)).double()
        return Measured(right, torch.full((len(right),), 0.1), torch.ones(len(right)))
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_of_test.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


PLAN = {
    "attacks": ["mine_of_test:Announced", "llbg"],
    "metrics": ["mine_of_test:LargestClass"],
    "adversaries": ["curious-server"],
}


def test_all_of_it_is_used_when_a_plan_names_it(mine: Path) -> None:
    candidates = ["mine_of_test:Halved"]
    result = audit(tiny(**PLAN, candidates=candidates, try_from="low"), mine / "out")
    found = {finding["attack"]: finding for finding in result["findings"]}
    own, llbg = found["mine_of_test:Announced"], found["llbg"]
    assert (own["status"], own["family"], own["title"]) == ("ok", "sizes", "Sizes as announced")
    assert own["score"]["metric"] == "sizes-right"
    assert own["score"]["value"] == 1.0
    assert [control["passed"] for control in result["controls"] if control["attack"] == own["attack"]] == [True]
    assert [score["metric"] for score in llbg["other_scores"]] == ["label-count-error", "largest-class"]
    assert [trial["setting"] for trial in llbg["defenses"]["tried"]] == ["mine_of_test:Halved()"]


def test_it_is_listed_and_explained_with_title_and_docstring(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fedspill(*words: str | Path) -> Ended:
        return here(*words, monkeypatch=monkeypatch, capsys=capsys)

    plan = write_plan(mine / "plan.toml", **PLAN, defenses=["mine_of_test:Halved"])
    for family, name, title, about in (
        ("attacks", "Announced", "Sizes as announced", "Reads the size that a client announces with its update."),
        ("defenses", "Halved", "Half of every number", "Sends half of every number."),
        ("metrics", "LargestClass", "Largest class right", "Share of batches whose largest class is right."),
    ):
        ended = fedspill("list", family, "--plan", plan, "--json", mine / "list.json")
        assert ended.code == 0, ended.err
        assert title in ended.out
        listed = {item["name"]: item for item in json.loads((mine / "list.json").read_text())}
        assert listed[f"mine_of_test:{name}"]["about"] == about
        explained = fedspill("explain", f"mine_of_test:{name}")
        assert explained.code == 0, explained.err
        assert title in explained.out
        assert about in explained.out
    entry = find("leaks", "mine_of_test:SIZES")
    assert (entry.title, entry.about) == ("Size of a client's data", "How many samples does a client hold?")
    assert load_leak("mine_of_test:SIZES").name == "sizes"


def test_attacks_that_may_know_defenses_are_told_of_a_strange_one_too(mine: Path) -> None:
    deployment = Deployment.of(tiny(defenses=["mine_of_test:Halved"]))
    view = MemoryTrace(deployment.protocol()).view(adversary("curious-server"), knowledge=deployment.knowledge())
    assert [type(defense).__name__ for defense in view.knows("defense")] == ["Halved"]


def test_one_attack_of_others_runs_from_the_command_line(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(mine / "plan.toml")
    assert here("simulate", plan, "--trace", mine / "trace", monkeypatch=monkeypatch, capsys=capsys).code == 0
    ended = here(
        *("attack", "mine_of_test:Announced", "--trace", mine / "trace"), monkeypatch=monkeypatch, capsys=capsys
    )
    assert ended.code == 0, ended.err
    assert "sizes-right" in ended.out
    words = ("attack", "llbg", "--trace", mine / "trace", "--metric", "mine_of_test:LargestClass")
    ended = here(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert "largest-class" in ended.out


def test_a_faulty_attack_is_named_and_the_others_are_scored(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "faulty_of_test.py").write_text(
        MINE.replace("import torch\n", "import torch\nraise RuntimeError('no')\n", 1)
    )
    plan = tiny(**PLAN).model_copy(update={"attacks": None})
    broken = type(plan).model_validate({**plan.model_dump(), "attacks": ["faulty_of_test:Announced", "llbg"]})
    found = {finding["attack"]: finding for finding in audit(broken, mine / "out")["findings"]}
    assert found["llbg"]["status"] == "ok"
    assert found["faulty_of_test:Announced"]["status"] == "errored"
    assert "The plug-in 'faulty_of_test:Announced' cannot be imported" in found["faulty_of_test:Announced"]["why"]
