"""Whole Determination: implied prior, path and the published ratios, and when it cannot tell."""

import torch
from watched import guess

from fedspill.attacks.whole_determination import clustered, cut, implied_prior, ratio_vectors
from fedspill.metrics.groups import true_groups


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


def test_every_solver_runs_on_a_federation() -> None:
    for options in ({}, {"solver": "prior"}, {"solver": "paper"}, {"groups": 2}):
        found, trace = guess("whole-determination", **options)
        assert found.group.shape == (1, 10)
        assert trace.truth().has(found.of[0], "label_totals")
