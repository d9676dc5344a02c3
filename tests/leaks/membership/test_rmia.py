"""RMIA: its score is the published ratio, it finds what was learnt by heart, and it says where it cannot be run."""

from __future__ import annotations

import pytest
import torch
from audit_kit import controls_of

from fedspill.attack_run import run_attack
from fedspill.audit.matrix import Pair
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.leaks.membership.leak import PASSIVE_CONTROL
from fedspill.leaks.membership.rmia import Rmia, rmia_scores
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace


def test_the_score_is_the_share_of_other_records_that_are_beaten_by_gamma() -> None:
    """By hand: x has .9 against ((1.3 * .5) + .7) / 2 = .675, a ratio of 4/3; the others have 1/2, 2/3 and 1."""
    target, references = torch.tensor([0.9]), torch.tensor([[0.4], [0.6]])
    others, of_others = torch.tensor([0.3, 0.4, 0.6]), torch.tensor([[0.6, 0.6, 0.6]])
    assert rmia_scores(target, references, others, of_others, 2.0, 0.3).item() == pytest.approx(2 / 3)
    assert rmia_scores(target, references, others, of_others, 1.3, 0.3).item() == pytest.approx(1.0)
    assert rmia_scores(target, references, others, of_others, 3.0, 0.3).item() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("who", ["curious-server", "curious-client"])
def test_both_controls_pass(who: str) -> None:
    found = controls_of(Pair("rmia", who, {}))
    assert found.failure() == ""


def test_too_few_records_for_reference_models_are_said() -> None:
    plan = check_plan({**PASSIVE_CONTROL, "adversary_data": {"per_class": 4}}, "a test")
    deployment = Deployment.of(plan)
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    with pytest.raises(NotApplicable, match="Reference models take 20 records"):
        run_attack(Rmia(), trace, adversary("curious-server"), knowledge=deployment.knowledge(), seed=1)
