"""A vertical plan is audited from end to end: its own adversary and attacks, controls that pass, no inputs stored."""

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_kit import controls_of

from fedspill.audit.defense_frontier import candidates_of
from fedspill.audit.matrix import adversaries_of, pairs_of
from fedspill.audit.recordings import Recordings
from fedspill.audit.target import AS_DEPLOYED, Target
from fedspill.audit.why_not import lacking
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


PRIVATE: dict[str, Any] = {
    "data": {"name": "made-up-customers", "people": 300},
    "model": {"name": "vertical-mlp", "widths": [8], "columns": [["visits", "basket", "district"], ["the rest"]]},
    "federation": {"kind": "vertical", "towers": "private", "samples": 60, "rounds": 6, "predictions": 20},
    "training": {"batch_size": 10},
    "adversary_data": {"known_labels": 2, "pairs": 5},
}


def private(**changes: Any) -> Plan:
    return check_plan({**PRIVATE, **changes}, "the plan")


def test_private_towers_have_adversaries_and_leaks_of_their_own() -> None:
    assert [threat.name for threat in adversaries_of(private())] == ["curious-party", "malicious-party", "active-party"]
    pairs = pairs_of(private())
    assert {pair.leak.name for pair in pairs} == {"sample_labels", "features"}
    runnable = {pair.id for pair in pairs if not pair.lacks()}
    assert runnable == {
        *(f"{name}/curious-party" for name in (
            "cone", "direct-labels", "gradient-direction", "gradient-norm", "gradient-similarity", "model-completion",
        )),
        "active-completion/malicious-party",
        *(f"{name}/active-party" for name in (
            "equality-solving", "generative-regression", "linear-program", "ridge-pairs",
        )),
    }  # fmt: skip
    for other in (Plan(), plan()):
        assert not {pair.leak.name for pair in pairs_of(other)} & {"sample_labels", "features"}
        assert not {threat.name for threat in adversaries_of(other)} & {"curious-party", "active-party"}


def test_only_defenses_of_what_travels_there_are_tried() -> None:
    of_private = {setting.chosen[0].name for setting in candidates_of(private())}
    of_others = {setting.chosen[0].name for setting in candidates_of(Plan())}
    assert {"marvell", "max-norm", "embedding-noise"} <= of_private
    assert not of_private & of_others


def test_what_the_plan_does_not_set_aside_is_not_known() -> None:
    bare = private(adversary_data={"known_labels": 0, "pairs": 0})
    lacks = {pair.id: " ".join(pair.lacks()) for pair in pairs_of(bare)}
    assert "this plan sets none aside" in lacks["ridge-pairs/active-party"]
    assert "this plan sets none aside" in lacks["gradient-similarity/curious-party"]
    assert lacks["cone/curious-party"] == "", "it can do without"
    assert Deployment.of(bare).knowledge().keys().isdisjoint({"few_labels", "paired_aux"})


def test_who_holds_the_labels_is_not_said_to_be_kept_from_them() -> None:
    of_holder = [pair for pair in pairs_of(private()) if pair.adversary == "active-party"]
    said = {lacking(pair).short for pair in of_holder if pair.leak.name == "sample_labels"}
    assert said == {"holds it itself"}


def test_what_adversaries_are_given_is_theirs() -> None:
    deployment = Deployment.of(private())
    known, (stock,) = deployment.knowledge(), deployment.shares.clients
    few, pairs = known["few_labels"], known["paired_aux"]
    assert torch.equal(stock.y[few.indices], few.values)
    assert torch.bincount(few.values).tolist() == [2, 2]
    shop = [deployment.dataset.columns.index(name) for name in ("visits", "basket")]
    assert torch.equal(known["party_features"][:, :2], stock.x[:, shop])
    assert known["party_features"].shape[1] == 6, "a district is four columns"
    assert torch.equal(pairs.values, known["party_features"][pairs.indices])
    assert int(pairs.indices.max()) < 20, "pairs are of samples that are asked about"


def test_a_private_recording_holds_places_and_is_as_large_as_was_said(tmp_path: Path) -> None:
    deployment = Deployment.of(private())
    assert "towers and head private" in deployment.describe()
    recorder = FolderRecorder(tmp_path / "trace", deployment.protocol())
    deployment.federation(recorder).run()
    facts = FolderTrace(tmp_path / "trace").truth().facts
    assert {name for _, name in facts} == {"used_samples"}
    said = sum(message.nbytes for message in FolderTrace(tmp_path / "trace").messages() if message.kind != "model")
    assert said == pytest.approx(deployment.recording_bytes(private().record.keep()), rel=0.1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"federation": {**PRIVATE["federation"], "static": True}}, 'static: is a setting of towers = "shared"'),
        ({"federation": {"kind": "vertical", "hand_over": True}}, 'hand_over: is a setting of towers = "private"'),
        ({"federation": {"towers": "private"}}, "federation.towers: is a setting of vertical federations"),
    ],
)
def test_settings_of_the_other_kind_of_towers_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        private(**changes)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([["visits"], ["visits", "the rest"]], "visits is given to two"),
        ([["visits"], ["basket"]], "columns are given to no party"),
        ([["visit"], ["the rest"]], "Did you mean 'visits'"),
        ([["the rest"], ["the rest"]], "Only one party"),
    ],
)
def test_columns_that_are_not_there_or_twice_are_refused_by_name(columns: list[list[str]], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Deployment.of(private(model={"name": "vertical-mlp", "widths": [8], "columns": columns}))


def test_a_csv_of_one_s_own_is_split_by_the_names_of_its_columns(tmp_path: Path) -> None:
    lines = [f"{age},{'abc'[age % 3]},{age % 2},{'yes' if age % 5 else 'no'}" for age in range(20, 80)]
    (tmp_path / "own.csv").write_text("\n".join(["age,job,married,late", *lines]), encoding="utf-8")
    data = {"name": "csv", "path": str(tmp_path / "own.csv"), "label": "late"}
    model = {"name": "vertical-mlp", "widths": [4], "columns": [["job", "married"], ["age"]]}
    federation = {"kind": "vertical", "towers": "private", "samples": 20, "rounds": 2}
    deployment = Deployment.of(
        private(data=data, model=model, federation=federation, adversary_data={"per_class": 0, "pairs": 0})
    )
    assert deployment.dataset.classes == ("no", "yes")
    assert deployment.knowledge()["party_features"].shape == (20, 4)
    with pytest.raises(UsageError, match="no column 'lat'"):
        Deployment.of(private(data={**data, "label": "lat"}))


@pytest.mark.parametrize("attack", ["cone", "linear-program", "ridge-pairs", "equality-solving", "gradient-norm"])
def test_both_controls_of_attacks_on_private_towers_pass(attack: str) -> None:
    (pair,) = [pair for pair in pairs_of(private()) if pair.attack == attack and not pair.lacks()]
    outcome = controls_of(pair)
    assert outcome.positive.passed, outcome
    assert outcome.negative.passed, outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        "active-completion", "direct-labels", "generative-regression", "gradient-direction", "gradient-similarity",
        "model-completion",
    ],
)  # fmt: skip
def test_both_controls_of_published_attacks_on_private_towers_pass(attack: str) -> None:
    (pair,) = [pair for pair in pairs_of(private()) if pair.attack == attack and not pair.lacks()]
    outcome = controls_of(pair)
    assert outcome.positive.passed, outcome
    assert outcome.negative.passed, outcome


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
