"""Passive membership: who is told from outsiders by what was sent, how surely, and that nothing is made up."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import PASSIVE_CONTROL
from fedspill.leaks.membership.membership import chosen
from fedspill.leaks.membership.metrics import LabelMatchedAuc, MembershipTpr1, shares_beaten
from fedspill.leaks.membership.passive import own_statistics
from fedspill.leaks.membership.passive.calibration import surprise
from fedspill.leaks.membership.passive.exact_span import leading_directions, nearness
from fedspill.leaks.membership.passive.gradient_products import gradient_products
from fedspill.leaks.membership.passive.published_tables import against_others
from fedspill.leaks.membership.passive.sample_layers import records_at_layers
from fedspill.leaks.membership.passive.truth_of_asked import counted_answers
from fedspill.leaks.membership.passive.whitened_gradient import whitened_products, without_labels
from fedspill.metric import Measured
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace
from fedspill.training import gradient


@cache
def federation(seed: int = 5, alpha: float | None = None) -> tuple[Deployment, MemoryTrace]:
    changes = {} if alpha is None else {"partition": {"name": "dirichlet", "alpha": alpha}}
    plan = check_plan({"seed": seed, **PASSIVE_CONTROL, **changes}, "a test")
    deployment = Deployment.of(plan)
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return deployment, trace


def outcome(name: str, who: str = "curious-server", seed: int = 5, **options: Any) -> Outcome:
    deployment, trace = federation(seed)
    truth = trace.truth().beside(deployment.shares.clients)
    knowledge = deployment.knowledge()
    return run_attack(make("attacks", name, options), trace, adversary(who), knowledge=knowledge, seed=1, truth=truth)


def guess_of(found: Outcome) -> Membership:
    assert isinstance(found.guess, Membership)
    return found.guess


@pytest.mark.parametrize("who", ["curious-server", "curious-server-secagg", "curious-client"])
def test_fewer_records_than_inputs_are_all_found(who: str) -> None:
    found = outcome("membership", who)
    assert found.scores["membership-auc"].value > 0.99
    assert found.scores["label-matched-auc"].value > 0.99
    if who == "curious-server":
        assert any("exact span was used" in note for note in found.notes)


@pytest.mark.parametrize("only", ["soft span", "whitened gradient"])
def test_the_other_statistics_find_members_too(only: str) -> None:
    score = outcome("membership", only=only).scores["membership-auc"]
    assert score.low > score.chance


def test_records_that_do_not_fit_at_once_score_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    together = guess_of(outcome("membership", only="whitened gradient")).scores
    monkeypatch.setattr(own_statistics, "_NUMBERS_AT_ONCE", 500)
    assert torch.allclose(guess_of(outcome("membership", only="whitened gradient")).scores, together, atol=1e-6)


def test_a_rate_is_not_printed_that_so_few_outsiders_cannot_show() -> None:
    found = outcome("membership")
    assert "membership-tpr-1" not in found.scores
    _, trace = federation()
    score = MembershipTpr1().score(guess_of(found), trace.truth())
    assert score.status == "unscored"
    assert "outsiders cannot show a rate of 0.01" in score.why


def test_members_found_are_those_above_the_outsiders_of_the_rate() -> None:
    outside, inside = torch.arange(1000.0), torch.tensor([988.5, 989.5, 990.5, 999.5])
    measured = Measured(
        torch.cat([outside, inside]).double(), torch.zeros(1004).double(), (torch.arange(1004) >= 1000).long()
    )
    assert MembershipTpr1().summarise(measured).value == 0.75  # ten outsiders lie above 989


def test_labels_alone_tell_nothing_among_records_of_one_label() -> None:
    deployment, trace = federation(alpha=0.3)
    knowledge = deployment.knowledge()
    view = trace.view(adversary("curious-server"), knowledge=knowledge)
    guess = make("attacks", "loss")(view, seed=1)
    found = counted_answers(guess, trace.truth(), of_every_client=True)
    assert torch.allclose(shares_beaten(found.label_only, found)[0], torch.tensor(0.5).double())


def test_the_label_matched_area_is_what_counting_pairs_gives() -> None:
    deployment, trace = federation()
    guess = guess_of(outcome("avg-cosine"))
    places = next(v for (_, name), v in trace.truth().facts.items() if name == "asked_places").tolist()
    table = {(o.sender, p): float(s) for o, p, s in zip(guess.of, guess.places.tolist(), guess.scores, strict=True)}
    labels = deployment.knowledge()["asked_records"].y.tolist()
    shares = []
    for record, (client, _) in enumerate(places):
        others = [o for o, (who, _) in enumerate(places) if who < 0 and labels[o] == labels[record]]
        if client >= 0 and others:
            mine = table[f"client:{client}", record]
            theirs = [table[f"client:{client}", other] for other in others]
            shares.append(sum((mine > one) + 0.5 * (mine == one) for one in theirs) / len(theirs))
    score = LabelMatchedAuc().score(guess, trace.truth())
    assert score.value == pytest.approx(sum(shares) / len(shares))
    assert score.n == len(shares)


def test_a_stated_rate_of_false_alarms_holds_on_outsiders() -> None:
    """At 1 in 21 (20 auxiliary records), over 8 federations of 4 clients: more than 12 % comes once in 10,000."""
    alarms = asked = 0
    for seed in range(8):
        _, trace = federation(seed)
        guess = guess_of(outcome("membership", seed=seed))
        places = next(v for (_, name), v in trace.truth().facts.items() if name == "asked_places")
        outsider = places[guess.places][:, 0] < 0
        alarms += int((guess.scores[outsider] >= -math.log10(1 / 21)).sum())
        asked += int(outsider.sum())
    assert alarms / asked < 0.12


def test_nobody_is_told_who_is_a_member_and_outsiders_are_held_by_nobody() -> None:
    deployment, trace = federation()
    asked = deployment.knowledge()["asked_records"]
    assert {name for name in vars(asked)} == {"x", "y"}
    places = next(v for (_, name), v in trace.truth().facts.items() if name == "asked_places")
    held = {tuple(record.tolist()) for own in deployment.shares.clients for record in own.x}
    for record, (client, sample) in zip(asked.x, places.tolist(), strict=True):
        if client >= 0:
            assert torch.equal(record, deployment.shares.clients[client].x[sample])
        else:
            assert tuple(record.tolist()) not in held


def test_gradients_in_factors_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 7), nn.ReLU(), nn.Linear(7, 4)
    )
    records = Examples(torch.randn(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 1]))
    changes = [{name: torch.randn_like(p) for name, p in convolutional.named_parameters()} for _ in range(2)]
    found = gradient_products(convolutional, records.x, records.y, changes)
    for row in range(5):
        own = gradient(convolutional, records.take(torch.tensor([row])))
        square = sum(float(tensor.double().square().sum()) for tensor in own.values())
        assert float(found.squares[row]) == pytest.approx(square, rel=1e-4)
        for column, change in enumerate(changes):
            product = sum(float((own[name].double() * change[name].double()).sum()) for name in own)
            assert float(found.with_changes[row, column]) == pytest.approx(product, rel=1e-4, abs=1e-5)


def test_whitening_is_the_inverse_covariance() -> None:
    """Woodbury's way against the covariance written out."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    layers = records_at_layers(model, x, y)
    change = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    asked, known = records_at_layers(model, x[:10], y[:10]), records_at_layers(model, x[10:], y[10:])
    found = whitened_products(asked, known, [change])
    whole = torch.cat([torch.einsum("no,ni->noi", a.signals, a.inputs).flatten(1) for a in layers], 1)
    moved = -torch.cat([a.matrix(change).flatten() for a in layers])
    own, aux = whole[:10] - whole[10:].mean(0), whole[10:] - whole[10:].mean(0)
    ridge = 0.1 * aux.square().sum(1).mean()
    inverse = torch.linalg.inv(aux.T @ aux + ridge * torch.eye(whole.shape[1])) * ridge
    expected = (own @ inverse @ moved) / (own @ inverse * own).sum(1).sqrt()
    assert torch.allclose(found[:, 0], expected, rtol=1e-5)


def test_the_space_of_a_change_holds_its_records_and_no_other() -> None:
    rng = torch.Generator().manual_seed(2)
    inputs = torch.randn(10, 40, generator=rng, dtype=torch.double)
    change = torch.randn(30, 10, generator=rng, dtype=torch.double) @ inputs
    for records in (10, None):
        found = leading_directions(change.T @ change, records)
        assert found is not None
        assert found.basis.shape[1] == 10
        assert float(nearness(found, inputs).min()) > 20
        assert float(nearness(found, torch.randn(50, 40, generator=rng, dtype=torch.double)).max()) < 3
    assert leading_directions(change.T @ change, 40) is None, "no room beyond the records"


def test_fedmia_compares_with_the_other_clients_alone() -> None:
    table = torch.tensor([[[3.0, 1.0, 2.0, torch.nan]], [[1.0, 1.0, 5.0, 4.0]]]).double()
    found = against_others(table)
    first = [(3.0, [1.0, 2.0]), (1.0, [1.0, 5.0, 4.0])]
    expected = 0.0
    for value, others in first:
        there = torch.tensor(others).double()
        expected += float(torch.special.ndtr((value - there.mean()) / (there.std(correction=0) + 1e-4))) / 2
    assert float(found[0, 0]) == pytest.approx(expected, rel=1e-6)


def test_surprise_of_outsiders_is_uniform_and_keeps_the_order() -> None:
    """4,000 outsiders, 400 others to count on: at 1 in 20 between 2.5 % and 8 %."""
    rng = torch.Generator().manual_seed(3)
    scores = torch.randn(4000, 1, generator=rng).double().exp()
    found = surprise(scores, torch.randn(400, 1, generator=rng).double().exp())
    assert 0.025 < float((found >= -math.log10(0.05)).double().mean()) < 0.08
    assert torch.equal(found[:, 0].argsort(), scores[:, 0].argsort())


def test_clients_agree_on_how_surprising_a_rare_score_is() -> None:
    """One in 10,000 of exponential scores, to 500 clients with 300 outsiders each: going on from the highest alone
    they would differ by .76."""
    outsiders = torch.empty(300, 500).double().exponential_(generator=torch.Generator().manual_seed(4))
    found = surprise(torch.full((1, 500), math.log(1e4)).double(), outsiders)
    assert float(found.mean()) == pytest.approx(4, abs=0.15)
    assert float(found.std()) < 0.70


def test_whitening_leaves_no_mark_on_who_was_whitened_by() -> None:
    """Outsiders that are asked about and auxiliary ones are treated alike: their soft span scores do not differ."""
    _, trace = federation()
    guess = guess_of(outcome("membership", only="soft span"))
    places = next(v for (_, name), v in trace.truth().facts.items() if name == "asked_places")
    outsider = places[guess.places][:, 0] < 0
    counted = -math.log10(10 / 21)
    share = float((guess.scores[outsider] >= counted).double().mean())
    assert 0.2 < share < 0.8, "10 of 20 auxiliary records score as high; far from half would be a mark"


def test_a_score_that_many_outsiders_have_is_no_surprise() -> None:
    outsiders = torch.cat([torch.zeros(60, 1), torch.full((40, 1), 32.0)]).double()
    found = surprise(torch.tensor([[0.0], [32.0], [33.0]]).double(), outsiders)[:, 0]
    assert float(found[1]) == pytest.approx(-math.log10(40 / 101))
    assert float(found[2]) >= 2


def tables(*alarms: int) -> Sequence[Tensor]:
    return [torch.cat([torch.full((count, 1), 3.0), torch.zeros(1000 - count, 1)]) for count in alarms]


def test_the_statistic_that_finds_surely_more_is_chosen_else_the_sharpest() -> None:
    assert chosen(tables(10, 200, 50), 100)[0] == 1
    assert chosen(tables(99, 100, 100), 100)[0] == 0
    assert chosen(tables(0, 0, 0), 100)[0] == 0
    far = torch.cat([torch.full((50, 1), 9.0), torch.zeros(950, 1)])
    assert chosen([tables(60)[0], far], 100)[0] == 1, "fewer, and far more surprising, is more evidence"


def test_a_record_does_not_count_in_its_own_label_mean() -> None:
    table = torch.tensor([[0.0], [10.0], [0.0], [0.0]]).double()
    found = without_labels(table, torch.tensor([0, 0, 0, 1]), slice(1, 4))
    overall = 10 / 3
    assert float(found[1, 0]) == pytest.approx(10 - overall - (0 - overall) / 2)
    assert float(found[0, 0]) == pytest.approx(0 - overall - (10 - 2 * overall) / 3)


def test_wrong_truth_is_not_found() -> None:
    from fedspill.audit.controls import Swapped

    deployment, trace = federation()
    for who in ("curious-server", "curious-server-secagg"):
        wrong = Swapped(trace)
        found = run_attack(
            make("attacks", "membership"),
            wrong,
            adversary(who),
            knowledge=deployment.knowledge(),
            seed=1,
            truth=wrong.truth().beside(deployment.shares.clients),
        )
        score = found.scores["membership-auc"]
        assert score.low <= score.chance
