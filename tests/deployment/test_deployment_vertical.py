"""A vertical plan is audited from end to end: its own adversary and attacks, controls that pass, no inputs stored."""

from pathlib import Path
from typing import Any

import pytest
from audit_kit import controls_of

from fedspill.audit.matrix import adversaries_of, pairs_of
from fedspill.audit.recordings import Recordings
from fedspill.audit.target import AS_DEPLOYED, Target
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.errors import PlanError, UsageError
from fedspill.federation.vertical import Vertical
from fedspill.trace_folder import FolderRecorder, FolderTrace

VERTICAL: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "vertical-mlp", "parties": 4},
    "federation": {"kind": "vertical", "samples": 30, "rounds": 9, "batches": "anti-twins", "static": True},
    "training": {"batch_size": 10},
}


def plan(**changes: Any) -> Plan:
    return check_plan({**VERTICAL, **changes}, "the plan")


def test_a_vertical_plan_has_the_vertical_server_and_a_horizontal_one_never() -> None:
    assert [threat.name for threat in adversaries_of(plan())] == ["vertical-server"]
    assert "vertical-server" not in [threat.name for threat in adversaries_of(Plan())]
    fitting = {pair.attack for pair in pairs_of(plan()) if not pair.lacks()}
    assert fitting == {"cafe", "cafe-paper"}
    assert all(pair.lacks() for pair in pairs_of(Plan(attacks=["cafe"])))  # type: ignore[arg-type]


def test_its_recording_holds_places_and_never_inputs(tmp_path: Path) -> None:
    deployment = Deployment.of(plan())
    assert "vertical, 4 parties, 30 samples" in deployment.describe()
    recorder = FolderRecorder(tmp_path / "trace", deployment.protocol())
    federation = deployment.federation(recorder)
    assert isinstance(federation, Vertical)
    federation.run()
    facts = FolderTrace(tmp_path / "trace").truth().facts
    assert {name for _, name in facts} == {"used_samples"}
    written = sum(path.stat().st_size for path in (tmp_path / "trace" / "rounds").iterdir())
    assert written == pytest.approx(deployment.recording_bytes(plan().record.keep()), rel=0.2)


def test_both_controls_of_the_exact_attack_pass() -> None:
    (pair,) = [pair for pair in pairs_of(plan()) if pair.attack == "cafe"]
    outcome = controls_of(pair)
    assert outcome.positive.passed, outcome
    assert outcome.negative.passed, outcome


@pytest.mark.slow
def test_both_controls_of_the_published_attack_pass() -> None:
    (pair,) = [pair for pair in pairs_of(plan()) if pair.attack == "cafe-paper"]
    outcome = controls_of(pair)
    assert outcome.positive.passed, outcome
    assert outcome.negative.passed, outcome


@pytest.mark.parametrize(
    ("federation", "says"),
    [
        ({"kind": "vertical", "clients": 4}, "federation.clients: is a setting of horizontal federations"),
        ({"kind": "vertical", "secure_aggregation": True}, "secure_aggregation: is a setting of horizontal"),
        ({"samples": 30}, 'federation.samples: is a setting of vertical federations: set kind = "vertical"'),
        ({"kind": "vertical", "samples": 4}, "training.batch_size: asks for 10 of 4 samples"),
        ({"kind": "vertical", "samples": 30, "batches": "circulant"}, "as many rounds as samples"),
        ({"kind": "diagonal"}, "should be 'horizontal' or 'vertical'"),
    ],
)
def test_mixed_up_plans_are_refused_by_name(federation: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(federation=federation)


def test_a_model_without_towers_and_more_samples_than_there_are_are_refused() -> None:
    with pytest.raises(UsageError, match="towers and a head"):
        Deployment.of(plan(model={"name": "mlp"}))
    with pytest.raises(UsageError, match="90000 samples were asked for"):
        Deployment.of(plan(federation={**VERTICAL["federation"], "samples": 90_000}))


def test_no_budget_is_claimed_where_the_server_names_the_batches(tmp_path: Path) -> None:
    """DP-SGD's accountant counts on who samples; here it is the adversary."""
    defended = plan(defenses=[{"name": "dp-sgd", "noise_multiplier": 1.0}])
    outcome = Recordings(Target(defended, tmp_path, "")).record(AS_DEPLOYED, defended.seed)
    assert outcome.status == "ok"
    assert outcome.epsilon is None
