"""Who is exposed most: figures of clients for everybody, records only for who may see them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from audit_kit import answered, typed
from torch import Tensor

from fedspill.audit.run_audit import Request
from fedspill.deployment.plan import check_plan
from fedspill.evidence import Clients, ExposedRecords, from_json
from fedspill.leaks.membership.leak import PASSIVE_CONTROL
from fedspill.leaks.membership.passive.exposure import exposed_clients, exposed_records
from fedspill.leaks.membership.passive.truth_of_asked import CountedAnswers
from fedspill.report import html


def counted(members: list[tuple[int, int, float]], outsiders: Tensor) -> CountedAnswers:
    """Members as (client, place, score)."""
    n, m = len(members), len(outsiders)
    places = torch.tensor([[client, place] for client, place, _ in members] + [[-1, -1]] * m)
    return CountedAnswers(
        scores=torch.cat([torch.tensor([score for *_, score in members], dtype=torch.double), outsiders.double()]),
        labels=torch.zeros(n + m, dtype=torch.int64),
        member=torch.arange(n + m) < n,
        label_only=torch.zeros(n + m).double(),
        sender=torch.cat([places[:n, 0], torch.arange(m) % 2]),
        places=places,
        senders=("client:0", "client:1"),
    )


def test_clients_differ_by_how_many_of_their_members_are_found() -> None:
    members = [(0, place, 300.0 if place < 6 else 0.0) for place in range(8)] + [(1, p, 0.0) for p in range(8)]
    (shown,) = exposed_clients(counted(members, torch.arange(200.0)))
    assert isinstance(shown, Clients)
    assert (shown.names, shown.values, shown.private) == (["client:0", "client:1"], [0.75, 0.0], False)


def test_no_figure_rests_on_a_few_members_or_on_too_few_outsiders() -> None:
    many = [(0, place, 1.0) for place in range(8)]
    assert exposed_clients(counted([*many, (1, 0, 1.0)], torch.arange(200.0))) == []
    assert exposed_clients(counted(many + [(1, p, 1.0) for p in range(8)], torch.arange(50.0))) == []


def test_the_most_exposed_records_are_named_in_order_with_the_outsiders_that_score_as_high() -> None:
    (shown,) = exposed_records(counted([(0, 4, 2.0), (1, 7, 9.0)], torch.tensor([1.0, 2.0, 3.0])))
    assert isinstance(shown, ExposedRecords)
    assert shown.private
    assert (shown.clients, shown.records, shown.outsiders) == (["client:1", "client:0"], [7, 4], [0, 2])
    assert from_json(shown.as_json()) == shown


@pytest.mark.slow
@pytest.mark.parametrize("show_data", [True, False])
def test_an_audit_names_records_on_request_only(show_data: bool, tmp_path: Any) -> None:
    plan = {**PASSIVE_CONTROL, "attacks": ["membership"], "adversaries": ["curious-server"], "candidates": []}
    result = answered(Request(check_plan(plan, "a test"), tmp_path / "audit", show_data=show_data))
    (finding,) = result["findings"]
    assert finding["status"] == "ok"
    named = [item for item in finding["evidence"] if item["kind"] == "records"]
    assert len(named) == show_data
    assert ("outsiders that score as high" in html.render(typed(result))) is show_data
    if show_data:
        assert len(named[0]["records"]) == 20
        assert all(outsiders == 0 for outsiders in named[0]["outsiders"]), "exact span tells them from everybody"
