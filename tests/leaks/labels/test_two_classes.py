"""Two classes without data: what all clients of a round say together."""

import torch

from fedspill.leaks.labels.counts.two_classes import read_two_classes
from fedspill.observe.probe import ModelAnswers
from fedspill.training import Schedule

SAMPLES = 320
SHARES = torch.tensor([0.0, 0.1, 0.25, 0.4, 0.6, 0.85, 0.95, 1.0], dtype=torch.float64)


def sent(told_apart: float, scale: float = 1.0) -> torch.Tensor:
    """(clients, 2) what clients with these shares send, of a model that tells the classes so far apart."""
    first = 0.4 * (1 - told_apart)  # the mean probability of the second class on samples of the first
    moved = scale * (first - (1 - told_apart) * SHARES) * len(Schedule(SAMPLES, 32).sizes())
    return torch.stack([-moved, moved], 1)


def wrong(bias: torch.Tensor, *, plain: bool = True, rounds: list[int] | None = None) -> tuple[float, float]:
    """The mean share of labels that is wrong, and that which is stated."""
    clients = len(bias)
    each = [Schedule(SAMPLES, 32)] * clients
    found = read_two_classes(bias, each, rounds or [0] * clients, [None] * clients, range(clients), plain=plain)
    assert bool((found.counts.sum(1) == SAMPLES).all())
    real = (SHARES * SAMPLES).round()
    assert bool((found.low[:, 1] <= real).all())
    assert bool((found.high[:, 1] >= real).all())
    return float((found.counts[:, 1] - real).abs().mean() / SAMPLES), float(1 - found.expected.mean())


def test_a_model_that_tells_classes_apart_is_found_out_by_its_clients_together() -> None:
    for told_apart in (0.0, 0.5, 0.8):
        off, stated = wrong(sent(told_apart))
        assert off < 0.08
        assert off < 2 * stated + 0.01


def test_a_gradient_of_unknown_size_is_read_by_how_clients_compare() -> None:
    off, _ = wrong(sent(0.3, scale=25.0), plain=False)
    assert off < 0.12


def test_one_client_alone_says_little_and_that_is_stated() -> None:
    off, stated = wrong(sent(0.5), rounds=list(range(len(SHARES))))
    assert stated > 0.1
    assert stated > 1.5 * wrong(sent(0.5))[1]
    assert off < 0.35


def test_a_short_last_step_is_not_taken_for_another_composition() -> None:
    """One client has a last step of one sample, which weighs as much as 32 do and happens to be of the first class."""
    bias = sent(0.5)
    schedules = [Schedule(SAMPLES, 32)] * (len(SHARES) - 1) + [Schedule(33, 32)]
    bias[-1] = torch.tensor([-0.7, 0.7])  # beyond what any composition gives in the mean of full steps
    rest = [0] * len(SHARES), [None] * len(SHARES), range(len(SHARES))
    ragged = read_two_classes(bias, schedules, *rest, plain=True)
    as_if_full = read_two_classes(bias, [*schedules[:-1], Schedule(64, 32)], *rest, plain=True)
    real = (SHARES * SAMPLES).round()[:-1]
    off, off_full = ((one.counts[:-1, 1] - real).abs().sum() for one in (ragged, as_if_full))
    assert float(off) < float(off_full)


def test_clients_that_are_alike_are_not_stretched_to_one_class_each() -> None:
    """Where pushes cancel, the answer to what is taken for mean features is extreme, and must not be believed."""
    alike = 0.5 + 0.04 * torch.tensor([-1.0, -0.8, -0.3, 0.1, 0.4, 0.6, 0.9, 1.0], dtype=torch.float64)
    moved = 0.2 - 0.4 * alike
    answers = []
    for share in moved.tolist():
        extreme = torch.tensor([[0.98, 0.02] if share < 0 else [0.02, 0.98]], dtype=torch.float64)
        answers.append(ModelAnswers(extreme, (extreme * (1 - extreme) * 1.5).square(), 1000))
    each, bias = [Schedule(SAMPLES, 32)] * len(moved), 10 * torch.stack([-moved, moved], 1)
    found = read_two_classes(bias, each, [0] * len(moved), answers, range(len(moved)), plain=True)
    real = alike * SAMPLES
    assert float((found.counts[:, 1] - real).abs().mean()) < 0.3 * SAMPLES
    assert bool(((found.low[:, 1] <= real) & (real <= found.high[:, 1])).all())


def test_what_rounds_say_differently_is_chance_and_not_composition() -> None:
    """Eight clients alike, and noise that is anew in each round: only clients that come back show that it is noise."""
    rng, clients, times = torch.Generator().manual_seed(3), 8, 5
    moved = torch.randn(clients * times, generator=rng, dtype=torch.float64) * 0.04
    bias = 10 * torch.stack([-moved, moved], 1)
    rounds = [number for number in range(times) for _ in range(clients)]
    answers: list[ModelAnswers | None] = []
    for _ in rounds:
        extreme = torch.rand(1, generator=rng, dtype=torch.float64)
        start = torch.stack([1 - extreme, extreme], 1).clamp(0.02, 0.98)
        answers.append(ModelAnswers(start, (start * (1 - start) * 0.4).square(), 1000))
    each = [Schedule(SAMPLES, 32)] * len(rounds)
    back = read_two_classes(bias, each, rounds, answers, [row % clients for row in range(len(rounds))], plain=True)
    strangers = read_two_classes(bias, each, rounds, answers, range(len(rounds)), plain=True)
    off, off_strangers = ((one.counts[:, 1] - SAMPLES / 2).abs().double().mean() / SAMPLES for one in (back, strangers))
    assert off < 0.75 * off_strangers
    assert bool(((back.low[:, 1] <= SAMPLES / 2) & (back.high[:, 1] >= SAMPLES / 2)).all())
