"""Zari et al.: known members teach what growing sure looks like; only who has known members can run it."""

from __future__ import annotations

import pytest
import torch
from audit_kit import controls_of

from fedspill.attack_run import run_attack
from fedspill.audit.matrix import Pair
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import PASSIVE_CONTROL
from fedspill.leaks.membership.zari import Zari, taught_scores
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace


def federation() -> tuple[Deployment, MemoryTrace]:
    plan = {**PASSIVE_CONTROL, "federation": {"clients": 4, "rounds": 3}, "membership": {"members": 60, "others": 20}}
    deployment = Deployment.of(check_plan(plan, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return deployment, trace


def test_the_classifier_learns_which_series_are_of_members_whatever_their_number() -> None:
    """Members grow sure, outsiders stay in doubt; ten times as many outsiders do not outweigh members."""
    rng = torch.Generator().manual_seed(0)
    rising, flat = torch.linspace(0.1, 0.9, 5), torch.full((5,), 0.2)
    inside = rising + 0.05 * torch.randn(12, 5, generator=rng)
    outside = flat + 0.05 * torch.randn(120, 5, generator=rng)
    scores = taught_scores(inside, outside, torch.stack([rising, flat]), 16, 0.01, rng)
    assert scores[0] > 0 > scores[1]


def test_of_its_own_records_it_says_nothing_and_of_all_others_something() -> None:
    deployment, trace = federation()
    known = deployment.knowledge()
    found = run_attack(Zari(), trace, adversary("curious-client"), knowledge=known, seed=1).guess
    assert isinstance(found, Membership)
    places = next(v for (_, name), v in trace.truth().facts.items() if name == "asked_places")
    assert torch.equal(found.places, (places[:, 0] != 0).nonzero().flatten())


def test_too_few_known_members_are_said() -> None:
    deployment, trace = federation()
    own = deployment.knowledge()["own_data"]
    known = {**deployment.knowledge(), "own_data": Examples(own.x[:3], own.y[:3])}
    with pytest.raises(NotApplicable, match="it has 3 of its own"):
        run_attack(Zari(), trace, adversary("curious-client"), knowledge=known, seed=1)


def test_a_server_has_no_known_members() -> None:
    for who in ("curious-server", "curious-server-secagg", "eavesdropper"):
        assert any("own_data" in lack for lack in adversary(who).missing(Zari.needs)), who


@pytest.mark.slow
def test_both_controls_pass() -> None:
    assert controls_of(Pair("zari", "curious-client", {})).failure() == ""
