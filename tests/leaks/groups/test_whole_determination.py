"""Whole Determination: implied prior, path and the published ratios, and when it cannot tell."""

import torch
from watched import guess, watched

from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.groups.metrics import true_groups
from fedspill.leaks.groups.whole_determination import clustered, cut, implied_prior, path_amounts, ratio_vectors
from fedspill.observe.local_changes import read_known_federation
from fedspill.observe.round_sums import read_round_sums
from fedspill.registry import make
from fedspill.threat import CURIOUS_CLIENT
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining


def test_the_implied_prior_is_what_the_answers_were_made_with() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 3
    prior = torch.tensor([0.6, 0.3, 0.1]).double()
    evidence = torch.randn(3000, 3, generator=rng).double()
    evidence[torch.arange(3000), labels] += 2.0
    likelihood = (2.0 * evidence).exp()  # of a unit Gaussian shifted by 2 along the label's axis
    answers = likelihood * prior
    answers = answers / answers.sum(1, keepdim=True)
    assert torch.allclose(implied_prior(answers, labels), prior, atol=0.03)


def test_a_gap_beyond_its_error_is_a_border_and_no_gap_is_no_answer() -> None:
    logs = torch.tensor([0.0, -1.4, 0.1, -1.5]).double()
    assert cut(logs, torch.full((4,), 0.1).double()).tolist() == [0, 1, 0, 1]
    assert cut(logs, torch.full((4,), 1.0).double()).tolist() == [0, 0, 0, 0]


def test_groups_are_numbered_from_the_largest() -> None:
    amount = torch.tensor([1.0, 9.0, 1.1, 5.0, 9.2]).double()
    assert clustered(amount[:, None], amount, 3).tolist() == [2, 0, 2, 1, 0]
    assert true_groups(torch.tensor([500, 2500, 625, 2500])).tolist() == [2, 0, 1, 0]


def test_ratio_vectors_compare_own_with_other_trainings() -> None:
    singles = torch.tensor([[[4.0], [1.0], [1.0]], [[2.0], [3.0], [1.0]], [[1.0], [1.5], [5.0]]])
    assert ratio_vectors(singles).tolist() == [[2.0, 4.0], [3.0, 2.0], [5.0, 5.0]]


def test_the_watchers_own_labels_belong_to_the_whole() -> None:
    """Label 7 is the watcher's alone, 0 and 1 the other client's: all three must show."""
    trace, known = watched()
    data = make("datasets", "digits").load().train
    clients = [data.take((data.y == 7).nonzero().flatten()[:40]), data.take((data.y < 2).nonzero().flatten()[:40])]
    seen = MemoryTrace({**trace.protocol, "client_count": 2})
    settings = Settings(rounds=3, weighting="uniform", training=LocalTraining(lr=0.02, batch_size=10, epochs=2))
    Horizontal(known["architecture"](), clients, settings, 0, 10, seen).run()
    view = seen.view(CURIOUS_CLIENT, me="client:0", knowledge=known)
    setting = read_known_federation(view)
    rounds, _ = read_round_sums(view, setting)
    logs, _ = path_amounts(rounds, setting)
    assert set(logs.topk(3).indices.tolist()) == {0, 1, 7}
    assert abs(float(logs[7].exp()) - 0.5) < 0.15


def test_every_solver_runs_on_a_federation() -> None:
    for options in ({}, {"solver": "prior"}, {"solver": "paper"}, {"groups": 2}):
        found, trace = guess("whole-determination", **options)
        assert found.group.shape == (1, 10)
        assert trace.truth().has(found.of[0], "label_totals")
