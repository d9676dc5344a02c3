"""Shares by rehearsal, on a made-up federation whose answer to a composition is known in closed form."""

import pytest
import torch
from torch import Tensor

from fedspill.leaks.composition.shares.rehearsed_shares import Seen, compositions, deal, regress, rehearsed_shares

CLASSES, PER_CLASS = 5, 30
LABELS = torch.arange(CLASSES * PER_CLASS) % CLASSES


def world(noise: float, rng: torch.Generator) -> tuple[object, object]:
    """A client whose bias bends with its shares, and the change of its last layer (outputs, 2)."""
    mix = torch.eye(CLASSES, dtype=torch.float64) + 0.3 * torch.rand(CLASSES, CLASSES, generator=rng).double()

    def sends(shares: Tensor) -> Tensor:
        bias = torch.tanh(2 * shares @ mix) + noise * torch.randn(CLASSES, generator=rng, dtype=torch.float64)
        return torch.stack([bias, bias], 1)

    def rehearse(clients: list[Tensor]) -> Tensor:
        counts = [torch.bincount(LABELS[chosen], minlength=CLASSES).double() for chosen in clients]
        return torch.stack([sends(count / count.sum()) for count in counts])

    return sends, rehearse


TRUE = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)
ALLOWED = TRUE > 0
EVEN = ALLOWED.double() / ALLOWED.sum()


def found(noise: float, rounds: int = 1, seed: int = 1, moved: Tensor | None = None) -> tuple[Tensor, list]:  # type: ignore[type-arg]
    rng = torch.Generator().manual_seed(seed)
    sends, rehearse = world(noise, rng)
    seen = [Seen(sends(TRUE) if moved is None else moved, 400, rehearse) for _ in range(rounds)]  # type: ignore[operator,arg-type]
    results, _ = rehearsed_shares(seen, EVEN, ALLOWED, LABELS, 32, rng)
    weights = torch.tensor([one.error**-2 for one in results], dtype=torch.float64)
    return weights @ torch.stack([one.shares for one in results]) / weights.sum(), results


def test_shares_are_found_from_afar_and_absent_classes_stay_absent() -> None:
    shares, (result,) = found(noise=0.0)
    assert float((shares - TRUE).abs().sum()) < 0.03
    assert float(shares[4]) == 0
    assert float(shares.sum()) == pytest.approx(1)
    assert result.near
    assert result.agreement > 0.95


def test_the_error_of_left_out_rehearsals_is_the_error_that_comes() -> None:
    real, said = [], []
    for seed in range(12):
        shares, (result,) = found(noise=0.05, seed=seed)
        real.append(float((shares - TRUE).abs().sum()))
        said.append(result.error)
    assert 0.6 < sum(real) / sum(said) < 1.6


def test_more_rounds_are_more_precise() -> None:
    one = [float((found(0.05, 1, seed)[0] - TRUE).abs().sum()) for seed in range(8)]
    four = [float((found(0.05, 4, seed)[0] - TRUE).abs().sum()) for seed in range(8)]
    assert sum(four) < 0.7 * sum(one)


def test_a_class_that_was_taken_for_absent_is_found_and_a_truly_absent_one_is_not() -> None:
    rng = torch.Generator().manual_seed(4)
    sends, rehearse = world(0.01, rng)
    only = torch.tensor([True, True, True, False, False])  # the fourth class has 5 percent, the last one nothing
    seen = [Seen(sends(TRUE), 400, rehearse)]  # type: ignore[operator,arg-type]
    (result,), allowed = rehearsed_shares(seen, only.double() / 3, only, LABELS, 32, rng)
    assert allowed.tolist() == ALLOWED.tolist()
    assert float((result.shares - TRUE).abs().sum()) < 0.06


def test_what_no_rehearsal_sends_is_called_far() -> None:
    noise = 30 * torch.randn(CLASSES, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert not found(0.01, moved=noise)[1][0].near


def test_rehearsals_that_diverge_say_nothing() -> None:
    seen = [Seen(torch.zeros(CLASSES, 2), 100, lambda clients: torch.full((len(clients), CLASSES, 2), torch.inf))]
    ((result,), _) = rehearsed_shares(seen, EVEN, ALLOWED, LABELS, 8, torch.Generator().manual_seed(0))
    assert not result.near


def test_one_class_needs_no_rehearsal() -> None:
    only = torch.tensor([False, True, False, False, False])

    def refuse(clients: list[Tensor]) -> Tensor:
        raise AssertionError("rehearsed in vain")

    ((result,), _) = rehearsed_shares([Seen(torch.zeros(5, 2), 10, refuse)], EVEN, only, LABELS, 8, torch.Generator())
    assert result.shares.tolist() == [0, 1, 0, 0, 0]


def test_samples_are_dealt_in_the_wanted_numbers_and_repeat_as_little_as_possible() -> None:
    rng = torch.Generator().manual_seed(0)
    chosen = deal(torch.tensor([0.5, 0.25, 0.25, 0.0, 0.0], dtype=torch.float64), 101, LABELS, rng)
    counts = torch.bincount(LABELS[chosen], minlength=5).tolist()
    assert sum(counts) == 101
    assert counts[3:] == [0, 0]
    assert abs(counts[0] - 50.5) <= 1
    assert int(torch.bincount(chosen).max()) == 2  # 51 of a class that has 30


def test_compositions_lie_around_their_centre_and_keep_zeros() -> None:
    centre = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)
    drawn = compositions(centre, 50.0, 500, torch.Generator().manual_seed(0))
    assert torch.allclose(drawn.mean(0), centre, atol=0.02)
    assert not bool(drawn[:, 2].any())
    assert torch.allclose(drawn.sum(1), torch.ones(500, dtype=torch.float64))


def test_an_observation_that_says_nothing_leaves_the_mean() -> None:
    rng = torch.Generator().manual_seed(0)
    shares = compositions(torch.full((3,), 1 / 3, dtype=torch.float64), 10.0, 40, rng)
    constant = regress(shares, torch.zeros(40, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    assert torch.allclose(constant.shares, shares.mean(0))
    assert constant.agreement < 0.05
