"""What holds for every partition of the registry."""

import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from fedspill import registry
from fedspill.dataset import Examples
from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partition import Partition

# Options under which a partition is tried here on 10 classes of 300 examples and 30 users, with 10 clients.
OPTIONS: dict[str, dict[str, object]] = {"main-labels": {"per_label": 20}}
OVERLAPPING = {"half-quarter-rest", "uniform-batch"}
ORDERED = {"contiguous"}
NAMES = [entry.name for entry in registry.entries("partitions")]


def shares_of(name: str, examples: Examples, seed: int, clients: int = 10) -> list[Tensor]:
    partition = registry.make("partitions", name, OPTIONS.get(name))
    return partition.split(examples, clients, torch.Generator().manual_seed(seed))


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_all_are_registered() -> None:
    assert set(NAMES) >= {
        "iid",
        "dirichlet",
        "contiguous",
        "by-user",
        "compositions",
        "main-labels",
        "half-quarter-rest",
        "uniform-batch",
    }


@pytest.mark.parametrize("name", NAMES)
class TestEvery:
    def test_says_what_it_is(self, name: str) -> None:
        entry = registry.find("partitions", name)
        assert entry.title
        assert entry.paper
        assert entry.about

    def test_options_make_it_again(self, name: str) -> None:
        partition = registry.make("partitions", name, OPTIONS.get(name))
        assert registry.make("partitions", name, registry.options_of(partition)) == partition

    def test_same_seed_same_shares(self, name: str, make_examples) -> None:
        examples = make_examples([300] * 10, users=30)
        assert same(shares_of(name, examples, 1), shares_of(name, examples, 1))

    def test_other_seed_other_shares(self, name: str, make_examples) -> None:
        examples = make_examples([300] * 10, users=30)
        first, second = shares_of(name, examples, 1), shares_of(name, examples, 2)
        changed = any(a.sort().values.tolist() != b.sort().values.tolist() for a, b in zip(first, second, strict=True))
        assert changed != (name in ORDERED)

    def test_no_example_twice(self, name: str, make_examples) -> None:
        shares = shares_of(name, make_examples([300] * 10, users=30), 3)
        for group in shares if name in OVERLAPPING else [torch.cat(shares)]:
            assert len(group.unique()) == len(group)

    def test_leaves_the_global_random_state_alone(self, name: str, make_examples) -> None:
        examples = make_examples([300] * 10, users=30)
        before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        shares_of(name, examples, 4)
        assert torch.equal(before, torch.random.get_rng_state())
        assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002

    def test_logs_what_each_class_offers(self, name: str, make_examples, caplog) -> None:
        caplog.set_level(logging.INFO, logger="fedspill.partitions")
        shares_of(name, make_examples([300, 310] + [300] * 8, users=30), 5)
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
        assert f"{name}: 10 clients from 3010 examples; per class: 300 310 300" in line
        assert "\n" not in line

    def test_refuses_no_examples(self, name: str, make_examples) -> None:
        with pytest.raises(NotEnoughExamples, match="0 are available"):
            shares_of(name, make_examples([0] * 10, users=30), 6)

    def test_refuses_no_clients(self, name: str, make_examples) -> None:
        with pytest.raises(UsageError, match="at least one client"):
            shares_of(name, make_examples([300] * 10, users=30), 6, clients=0)

    def test_refuses_unknown_options(self, name: str) -> None:
        with pytest.raises(UsageError, match="no option"):
            registry.make("partitions", name, {"colour": 3})


@dataclass(frozen=True)
class Fixed(Partition):
    name = "fixed"
    title = "Whatever the test says"
    shares: tuple[Tensor, ...] = ()

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        return list(self.shares)


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (torch.tensor([0, 10]), "does not exist"),
        (torch.tensor([-1]), "does not exist"),
        (torch.tensor([0.0]), "float32"),
        (torch.tensor([[0]]), r"shape \(1, 1\)"),
        (torch.tensor([], dtype=torch.int64), "without examples"),
    ],
)
def test_base_refuses_what_is_no_share(share: Tensor, message: str, make_examples, rng) -> None:
    with pytest.raises(UsageError, match=message):
        Fixed((torch.tensor([0, 9]), share)).split(make_examples([5, 5]), 2, rng)


def test_base_refuses_another_number_of_clients(make_examples, rng) -> None:
    with pytest.raises(UsageError, match="makes 1 clients, the plan asks for 2"):
        Fixed((torch.tensor([0]),)).split(make_examples([5, 5]), 2, rng)
