"""On a model of the user's own the positive control runs once more, with that model, and decides nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from audit_kit import audit, controls_of, tiny

from fedspill.attack_run import Outcome
from fedspill.audit.controls import OwnModel, run_control
from fedspill.audit.matrix import Pair, pairs_of
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.result import ControlPart
from fedspill.audit.score_finding import score_finding
from fedspill.audit.sealed_attack import AttackProcess
from fedspill.deployment.plan import Plan

OWN = """
import torch
from torch import nn


def data():
    rng = torch.Generator().manual_seed(3)
    y = torch.multinomial(torch.tensor([8.0, 4.0, 2.0, 1.0]), 600, replacement=True, generator=rng)
    x = torch.randn(4, 7, generator=rng)[y] + torch.randn(600, 7, generator=rng)
    return x[:500], y[:500], x[500:], y[500:]


def few():
    return [part[:6] for part in data()]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(7, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        h = torch.relu(self.norm(self.stem(x)))
        return self.head(h + torch.tanh(h))
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(path for path in sys.path if path)}")
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    return tmp_path


def own_plan(**changes: Any) -> Plan:
    parts = {
        "data": {"name": "custom", "factory": "own_net:data"},
        "model": {"name": "custom", "factory": "own_net:Net"},
    }
    return tiny(**{**parts, "adversaries": ["curious-server"], **changes})


def test_an_audit_of_an_own_model_says_what_its_attacks_find_there(own_code: Path) -> None:
    result = audit(own_plan(attacks=["llbg"]), own_code / "out")
    (control,) = result["controls"]
    assert control["passed"]
    assert control["own_model"]["found"]
    assert control["own_model"]["score"]["n"] > 0
    assert not [note for finding in result["findings"] for note in finding["notes"] if "own model" in note]


def test_an_audit_whose_defenses_concern_none_of_what_leaks_is_complete(own_code: Path) -> None:
    # Secure aggregation hides nothing from another client, so it is not tried, and nothing is missing without it.
    candidates = [{"name": "secure-aggregation", "strengths": [{}]}]
    parts = {"attacks": ["whole-determination"], "adversaries": ["curious-client"], "partition": "iid"}
    plan = own_plan(**parts, adversary_data={"per_class": 5}, candidates=candidates, try_from="low", repeats=3)
    result = audit(plan, own_code / "out")
    assert result["verdict"]["worst"] in ("low", "medium", "high", "critical")
    assert result["verdict"]["complete"]
    assert not [limit for limit in result["cannot_tell"] if "not run yet" in limit]


def test_a_model_of_ours_is_not_checked_twice() -> None:
    (pair,) = [pair for pair in pairs_of(Plan()) if pair.id == PAIR.id]
    assert controls_of(pair).own_model is None


PAIR: Pair = next(pair for pair in pairs_of(Plan()) if pair.attack == "llbg" and pair.adversary == "curious-server")


def test_a_control_that_own_data_cannot_make_says_so_and_the_attack_still_passes(own_code: Path) -> None:
    plan = own_plan(data={"name": "custom", "factory": "own_net:few"})
    process = AttackProcess(())
    try:
        outcome = run_control(PAIR, process, OwnModel(plan, None))
    finally:
        process.close()
    assert not outcome.failure()
    assert outcome.own_model is not None
    assert not outcome.own_model.passed
    assert outcome.own_model.why.startswith("could not run there: ")


def test_what_was_not_found_on_the_own_model_is_said_beside_the_score() -> None:
    good = ControlPart(passed=True, found=True, score=None, why="found what leaks")
    blind = ControlPart(passed=False, found=False, score=None, why="did not find what surely leaks")
    read = [Outcome(status="read", why="nothing is known")]
    for part, said in ((None, 0), (good, 0), (blind, 1)):
        control = ControlOutcome(status="ok", positive=good, negative=good, own_model=part)
        finding = score_finding(PAIR, "", "labels", read, control)
        assert finding.status == "read"
        assert sum("own model" in note for note in finding.notes) == said
