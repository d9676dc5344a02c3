"""The greedy reading in closed form equals the published loop, written here as it is printed (paper 003)."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.leaks.labels.greedy import greedy_counts
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.leaks.labels.llg import llg_counts


def published_loop(beta: list[float], m: list[float], size: int) -> list[int]:
    """Algorithms 1 and 2: guaranteed labels, then the smallest coordinate again and again; m is what a sample adds.

    Where more coordinates are negative than there are samples the algorithm does not say which to take: as the paper
    does for its transformer, the most negative.
    """
    beta, labels = list(beta), []
    for i in sorted(range(len(beta)), key=lambda i: beta[i]):
        if beta[i] < 0 and len(labels) < size:
            labels.append(i)
            beta[i] -= m[i]
    while len(labels) < size:
        smallest = beta.index(min(beta))
        labels.append(smallest)
        beta[smallest] -= m[smallest]
    return [labels.count(i) for i in range(len(beta))]


def compare(betas: list[list[float]], impacts: list[list[float]], sizes: list[int]) -> None:
    """All rows in one call against one loop each."""
    exact = {"dtype": torch.float64}
    found = greedy_counts(torch.tensor(betas, **exact), torch.tensor(impacts, **exact), torch.tensor(sizes))
    wanted = [published_loop(*case) for case in zip(betas, impacts, sizes, strict=True)]
    for row, expected, beta, impact, size in zip(found.tolist(), wanted, betas, impacts, sizes, strict=True):
        assert row == expected, f"beta = {beta}, m = {impact}, B = {size}"


def eighths(rng: random.Random, classes: int, low: int, high: int) -> list[float]:
    """Numbers that float64 adds without rounding, few enough to be equal often."""
    return [rng.randint(low, high) / 8 for _ in range(classes)]


@pytest.mark.parametrize("seed", range(12))
def test_with_real_numbers(seed: int) -> None:
    rng = random.Random(seed)
    classes = [2, 3, 5, 10, 40, 100][seed % 6]
    betas = [[rng.gauss(0, rng.choice([0.01, 0.1, 1])) for _ in range(classes)] for _ in range(150)]
    sizes = [rng.choice([1, 2, 5, 13, 64, 128]) for _ in betas]
    compare(betas, [[-1 / size] * classes for size in sizes], sizes)


@pytest.mark.parametrize("seed", range(12))
def test_with_a_confidence_for_each_class(seed: int) -> None:
    rng = random.Random(100 + seed)
    classes = [2, 3, 5, 10, 40, 100][seed % 6]
    betas = [[rng.gauss(0, 0.2) for _ in range(classes)] for _ in range(150)]
    sizes = [rng.choice([1, 2, 5, 13, 64, 128]) for _ in betas]
    compare(betas, [[-(1 - rng.uniform(0, 0.99)) / size for _ in range(classes)] for size in sizes], sizes)


@pytest.mark.parametrize("seed", range(12))
def test_with_ties(seed: int) -> None:
    """Equal coordinates are taken in the order of the classes, before and after being raised."""
    rng = random.Random(200 + seed)
    classes = [2, 3, 5, 8, 12, 30][seed % 6]
    betas = [eighths(rng, classes, -6, 6) for _ in range(150)]
    sizes = [rng.randint(1, 40) for _ in betas]
    compare(betas, [[-rng.choice([1, 2, 4]) / 8] * classes for _ in sizes], sizes)


@pytest.mark.parametrize("seed", range(12))
def test_with_ties_and_a_confidence_for_each_class(seed: int) -> None:
    rng = random.Random(250 + seed)
    classes = [2, 3, 5, 8, 12, 30][seed % 6]
    betas = [eighths(rng, classes, -6, 6) for _ in range(150)]
    sizes = [rng.randint(1, 40) for _ in betas]
    compare(betas, [[-rng.choice([1, 2, 3, 4]) / 8 for _ in range(classes)] for _ in sizes], sizes)


def test_with_more_negative_coordinates_than_samples() -> None:
    rng = random.Random(300)
    betas = [eighths(rng, 20, -9, 1) for _ in range(400)] + [[-rng.random() for _ in range(20)] for _ in range(400)]
    sizes = [rng.randint(1, 12) for _ in betas]
    compare(betas, [[-1 / 8] * 20 for _ in sizes], sizes)


def test_with_no_negative_coordinate() -> None:
    rng = random.Random(400)
    betas = [eighths(rng, 7, 0, 9) for _ in range(300)] + [[rng.random() for _ in range(7)] for _ in range(300)]
    sizes = [rng.randint(1, 30) for _ in betas]
    compare(betas, [[-1 / 8] * 7 for _ in sizes], sizes)
    # Then LLG and EBI estimate the impact of a sample as zero, and their loop repeats its first choice.
    compare(betas, [[0.0] * 7 for _ in sizes], sizes)


def test_with_batches_of_one_and_with_two_classes() -> None:
    rng = random.Random(500)
    for classes in (2, 9):
        betas = [eighths(rng, classes, -5, 5) for _ in range(300)]
        compare(betas, [[-1.0] * classes for _ in betas], [1] * 300)
        compare(betas, [[-0.25] * classes for _ in betas], [rng.randint(1, 20) for _ in betas])


def test_rows_do_not_disturb_each_other() -> None:
    rng = random.Random(600)
    betas = [eighths(rng, 6, -6, 6) for _ in range(50)]
    impacts = [[-rng.choice([0.0, 1 / 8, 1.0])] * 6 for _ in betas]
    sizes = [rng.randint(1, 30) for _ in betas]
    together = greedy_counts(torch.tensor(betas), torch.tensor(impacts), torch.tensor(sizes))
    for row, beta, impact, size in zip(together, betas, impacts, sizes, strict=True):
        alone = greedy_counts(torch.tensor([beta]), torch.tensor([impact]), torch.tensor([size]))
        assert row.tolist() == alone[0].tolist()


number = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@given(st.lists(number, min_size=2, max_size=8), st.integers(1, 40), st.floats(1e-3, 1e3))
@settings(max_examples=300, deadline=None)
def test_with_whatever_numbers_the_counts_add_up(beta: list[float], size: int, impact: float) -> None:
    counts = greedy_counts(
        torch.tensor([beta], dtype=torch.float64), -torch.full((1, len(beta)), impact), torch.tensor([size])
    )
    assert int(counts.sum()) == size
    assert int(counts.min()) >= 0
    negative = torch.tensor(beta) < 0
    if int(negative.sum()) <= size:
        assert bool((counts[0][negative] >= 1).all()), "guaranteed labels are there"


def test_a_class_whose_samples_move_nothing_is_not_left_for_ever() -> None:
    """With a confidence of exactly 1 the printed loop never leaves that class."""
    beta, confidence = [-0.4, -0.1, 0.5], [1.0, 0.5, 0.5]
    found = llbg_counts(torch.tensor([beta]), torch.tensor([10]), torch.tensor([10]), torch.tensor([confidence]))
    assert found[0].tolist() == published_loop(beta, [-(1 - c) / 10 for c in confidence], 10) == [9, 1, 0]


def test_what_is_not_finite_is_refused() -> None:
    for value in (torch.nan, torch.inf):
        with pytest.raises(NotApplicable):
            greedy_counts(torch.tensor([[0.1, value]]), torch.tensor([[-0.1, -0.1]]), torch.tensor([3]))


# The three attacks that share it, by hand.


def test_llbg_by_hand() -> None:
    """B = 4, n = 3: two of class 0, one of class 1, one of class 2; each beta is 1/3 minus its share."""
    beta = torch.tensor([[1 / 3 - 2 / 4, 1 / 3 - 1 / 4, 1 / 3 - 1 / 4]])
    counts = llbg_counts(beta, torch.tensor([4]), torch.tensor([4]), torch.zeros(1, 3))
    assert counts.tolist() == [[2, 1, 1]]


def test_llbg_takes_the_samples_of_one_step_as_the_paper_s_b() -> None:
    """Two steps of two samples: the update sums two gradients, so a sample weighs 1/2 and not 1/4."""
    beta = torch.tensor([[2 / 3 - 3 / 2, 2 / 3 - 1 / 2, 2 / 3]])  # three of class 0, one of class 1
    counts = llbg_counts(beta, torch.tensor([2]), torch.tensor([4]), torch.zeros(1, 3))
    assert counts.tolist() == [[3, 1, 0]]
    assert llbg_counts(beta, torch.tensor([4]), torch.tensor([4]), torch.zeros(1, 3)).tolist() == [[4, 0, 0]]


def test_ebi_estimates_the_impact_from_what_is_negative() -> None:
    """Eq. 6: m is the sum of the negative coordinates over B, here -0.5 / 5 = -0.1."""
    beta = torch.tensor([[-0.4, -0.1, 0.05, 0.45]], dtype=torch.float64)
    assert (
        ebi_counts(beta, torch.tensor([5])).tolist()
        == [published_loop(beta[0].tolist(), [-0.1] * 4, 5)]
        == [[4, 1, 0, 0]]
    )


def test_llg_enlarges_the_impact_by_one_part_in_n() -> None:
    sums = torch.tensor([[-1.25, 0.75, -0.5, 1.0]], dtype=torch.float64)
    impact = -1.75 * (1 + 1 / 4) / 5
    assert published_loop(sums[0].tolist(), [impact] * 4, 5) == [3, 0, 2, 0]
    assert published_loop(sums[0].tolist(), [-1.75 / 5] * 4, 5) == [4, 0, 1, 0]
    assert llg_counts(sums, torch.tensor([5])).tolist() == [[3, 0, 2, 0]]


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_llg_and_ebi_do_not_depend_on_the_scale_and_llbg_does(scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    beta: Tensor = torch.randn(20, 8, generator=generator, dtype=torch.float64) / 10
    sizes = torch.full((20,), 16)
    assert torch.equal(ebi_counts(beta, sizes), ebi_counts(scale * beta, sizes))
    assert torch.equal(llg_counts(beta, sizes), llg_counts(scale * beta, sizes))
    known = llbg_counts(beta, sizes, sizes, torch.zeros(20, 8))
    assert not torch.equal(known, llbg_counts(scale * beta, sizes, sizes, torch.zeros(20, 8)))
