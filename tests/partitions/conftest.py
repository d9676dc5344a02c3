"""Examples with as many of each class as a test asks for; an example's only feature is its own index."""

from collections.abc import Callable, Sequence

import pytest
import torch

from fedspill.dataset import Examples


@pytest.fixture(scope="session")
def make_examples() -> Callable[..., Examples]:
    def make(per_class: Sequence[int], users: int = 0) -> Examples:
        y = torch.repeat_interleave(torch.tensor(per_class))
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(99))]
        x = torch.arange(len(y), dtype=torch.float32)[:, None]
        return Examples(x, y, torch.arange(len(y)) * 7 % users + 1000 if users else None)

    return make


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
