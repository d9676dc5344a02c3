"""Every attack where a GPU is: what runs through the model runs there, and it says what it says on the CPU.

Floating-point sums differ in their last digits, and a search amplifies that. So guesses are equal to a thousandth, or,
where they are not, score alike.
"""

import dataclasses

import pytest
import torch
from test_conformance_attacks import Home, every_attack, home_of, made
from torch import Tensor

from fedspill.attack import Attack
from fedspill.attack_run import score_guess
from fedspill.errors import FedspillError
from fedspill.guess import Guess

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CLOSE = 1e-3  # of guesses
ALIKE = 0.1  # of scores between 0 and 1


def answer(attack: Attack, home: Home, device: str) -> Guess | FedspillError:
    threat = home.least_adversary(attack)
    view = home.trace.view(threat, me=threat.me, knowledge=home.knowledge(), device=device)
    try:
        return attack(view, seed=1)
    except FedspillError as error:
        return error


def close(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape:
            return False
        first, second = one.double(), other.double()
        return bool(((first - second).abs() <= CLOSE * (1 + first.abs())).all())
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(close(getattr(one, item.name), getattr(other, item.name)) for item in dataclasses.fields(one))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return True if isinstance(one, str | float) else one == other


def scored(attack: Attack, guess: Guess, home: Home) -> float | None:
    outcome = score_guess(attack.leak, guess, home.trace.truth())
    return outcome.scores[outcome.metric].value if outcome.status == "ok" else None


@every_attack
def test_it_says_on_the_gpu_what_it_says_on_the_cpu(name: str) -> None:
    attack, home = made(name), home_of(name)
    here, there = answer(attack, home, "cpu"), answer(attack, home, "cuda")
    if isinstance(here, FedspillError) or isinstance(there, FedspillError):
        cause = there.__cause__ if isinstance(there, FedspillError) else None
        assert type(here) is type(there), f"{there}: {cause!r}"
        return
    assert all(not isinstance(part, Tensor) or part.device.type == "cpu" for part in vars(there).values())
    if not close(here, there):
        one, other = scored(attack, here, home), scored(attack, there, home)
        assert one is not None
        assert other is not None
        assert abs(one - other) <= ALIKE, (one, other)
