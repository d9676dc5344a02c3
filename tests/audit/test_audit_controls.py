"""Controls: every attack passes them; a broken one and a cheating one do not; where nothing leaks, nothing is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from audit_kit import HEAD, attack_code, audit, controls_of, plug_in, tiny

from fedspill.attack_run import Outcome, run_attack
from fedspill.audit.controls import Swapped, swapped
from fedspill.audit.matrix import Pair, pairs_of
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.result import ControlPart
from fedspill.audit.score_finding import score_finding
from fedspill.audit.severity import Severity
from fedspill.deployment.deployment import OFFERED, Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.partitions.dirichlet import Dirichlet
from fedspill.partitions.shares import share_out
from fedspill.registry import load_leak, make
from fedspill.seeds import generator, seed_of
from fedspill.threat import KNOWLEDGE
from fedspill.trace import MemoryTrace, Origin, Trace

RUNNABLE = [pair for pair in pairs_of(Plan()) if not pair.lacks()]
GOOD = ControlPart(passed=True, found=None, score=None, why="")
PASSED = ControlOutcome(status="ok", positive=GOOD, negative=GOOD)


def attacked(pair: Pair, trace: Trace, deployment: Deployment, seed: int) -> Outcome:
    attack, seed = make("attacks", pair.attack, pair.options), seed_of(seed, pair.attack, pair.adversary)
    return run_attack(attack, trace, pair.threat, knowledge=deployment.knowledge(), seed=seed)


LONG = ("lamp", "tag", "tableak")  # searches over texts and tables


@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, id=pair.id, marks=[pytest.mark.slow] * (pair.attack in LONG)) for pair in RUNNABLE],
)
def test_every_attack_passes_its_controls(pair: Pair) -> None:
    outcome = controls_of(pair)
    assert outcome.status == "ok", outcome.why
    assert outcome.positive.passed, outcome.positive
    assert outcome.negative.passed, outcome.negative


FLIPPED = attack_code(
    "Flipped",
    "flipped",
    """
counts = llbg_counts(-layer.require_bias("theirs"), per_step, layer.samples, zeros)
return LabelCounts(layer.of, counts)
""",
)
CHEAT = attack_code(
    "Cheat",
    "cheat",
    """
truth = view._View__source.truth()
return LabelCounts(layer.of, torch.stack([truth.get(origin, "label_counts") for origin in layer.of]))
""",
)


def test_a_sign_flipped_attack_is_unscored_not_nothing_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(tmp_path, monkeypatch, HEAD + FLIPPED + CHEAT, {"flipped": "Flipped", "cheat": "Cheat"})
    result = audit(tiny(attacks=["flipped", "cheat", "llbg"], adversaries=["curious-server"]), tmp_path / "out")
    found = {finding["attack"]: finding for finding in result["findings"]}
    assert found["flipped"]["status"] == "unscored"
    assert "positive control failed" in found["flipped"]["why"]
    assert found["flipped"]["score"]["value"] is None
    assert found["cheat"]["status"] == "errored"  # there is no truth in its process to reach for
    assert "AttributeError" in found["cheat"]["why"]
    assert found["llbg"]["status"] == "ok"
    assert result["verdict"]["complete"] is False


def false_alarms(seeds: range) -> int:
    """Audits of federations whose messages stand beside the truth of others: runs with a medium finding or worse."""
    alarms = 0
    pairs = [pair for pair in RUNNABLE if pair.adversary == "curious-server" and pair.leak.name == "labels"]
    plan = tiny(federation={"clients": 8, "rounds": 1}, training={"lr": 0.05, "algorithm": "fedsgd"})
    loaded = Deployment.of(plan)
    for seed in seeds:
        shares = share_out(loaded.dataset, Dirichlet(), 8, auxiliary=10, rng=generator(seed, "shares"))
        deployment = replace(loaded, plan=plan.with_seed(seed), shares=shares)
        trace = MemoryTrace(deployment.protocol())
        deployment.federation(trace, engine="loop").run()
        outcomes = [(pair, attacked(pair, Swapped(trace), deployment, seed)) for pair in pairs]
        found = [score_finding(pair, "", "labels", [outcome], PASSED) for pair, outcome in outcomes]
        assert all(finding.status == "ok" for finding in found)
        alarms += any(finding.level >= Severity.MEDIUM for finding in found)
    return alarms


@pytest.mark.slow
def test_where_nothing_can_leak_nothing_is_found() -> None:
    assert false_alarms(range(20)) <= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_where_nothing_can_leak_at_most_one_in_twenty_of_200() -> None:
    assert false_alarms(range(200)) <= 10


def test_a_deployment_hands_out_what_it_says_it_offers() -> None:
    plans = [
        {"adversary_data": {"shadow": 20}, "defenses": ["compression"]},
        *(load_leak(name).control for name in ("features", "sample_labels")),  # of vertical federations
    ]
    given = set()
    for plan in plans:
        planned = Deployment.of(check_plan(dict(plan), "a plan"))
        known = {**planned.protocol(), **planned.knowledge()}
        given |= {word for word, value in known.items() if value is not None}
    assert given & KNOWLEDGE.keys() == OFFERED


def test_what_leaves_nothing_to_guess_is_skipped_not_a_failure() -> None:
    """Every label in every round: presence asks nothing, and the audit is whole without it."""
    plan = check_plan({"partition": "iid", "federation": {"clients": 3, "rounds": 2}}, "a plan")
    deployment = Deployment.of(plan)
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    pair = next(pair for pair in RUNNABLE if pair.attack == "class-sniffing")
    outcome = attacked(pair, trace, deployment, 1)
    assert outcome.status == "skipped"
    assert "nothing to tell apart" in outcome.why


def test_a_recording_without_truth_is_read_and_not_scored() -> None:
    deployment = Deployment.of(tiny())
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    told = MemoryTrace.of(trace.messages(), trace.protocol)
    pair = next(pair for pair in RUNNABLE if pair.id == "llbg/curious-server")
    outcome = attacked(pair, told, deployment, 1)
    assert outcome.status == "read"
    assert "nothing is known of the labels" in outcome.why
    assert not outcome.measured


def test_swapping_renames_classes_and_keeps_clients_with_their_labels() -> None:
    facts = {}
    for number in range(3):
        origin = Origin(number, "aggregator")
        facts[origin, "label_counts_by_client"] = torch.arange(20).view(2, 10) + 100 * number
        facts[origin, "clients"] = torch.tensor([number, number + 5])
    handed = swapped(facts)
    for number in range(3):
        origin = Origin(number, "aggregator")
        source = int(handed[origin, "clients"][0])
        assert source != number
        renamed, original = (
            handed[origin, "label_counts_by_client"],
            facts[Origin(source, "aggregator"), "label_counts_by_client"],
        )
        assert not torch.equal(renamed, original)
        assert torch.equal(renamed.sort(1).values, original)  # within a client, the same amounts
