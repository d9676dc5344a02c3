"""Models that read tokens in ways of their own: the table of the tokens is found, whatever else they have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import OwnCodeFailed
from fedspill.leaks.words.moved_rows import moved_rows
from fedspill.models.lookups import Table, rows_picked, token_tables
from fedspill.registry import make
from fedspill.threat import ADVERSARIES
from fedspill.trace import MemoryTrace

WORDS, LENGTH, OFFSET = 120, 8, 1000


def padded_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Texts of 2 to 8 words; 0 fills them up."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(1, WORDS, (120, LENGTH), generator=rng), torch.randint(2, (120,), generator=rng)
    x[torch.arange(LENGTH) >= torch.randint(2, LENGTH + 1, (120, 1), generator=rng)] = 0
    return x[:100], y[:100], x[100:], y[100:]


def data_from_afar() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, numbered from 1000 up."""
    x, y, x_test, y_test = padded_data()
    return x + OFFSET, y, x_test + OFFSET, y_test


class Stranger(nn.Module):
    """A mean over words; how words become numbers is said by each model."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.out = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.tanh(self.read(x)).mean(1))
        return logits

    def read(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class MorePlacesThanWords(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.words = nn.Embedding(600, 8, padding_idx=0), nn.Embedding(WORDS, 8)

    def read(self, x: Tensor) -> Tensor:
        there = x != 0
        read: Tensor = self.words(x) + self.places(there.long().cumsum(1) * there)
        return read


class FrozenBesideTrained(Stranger):
    def __init__(self) -> None:
        super().__init__(12)
        self.given, self.own = nn.Embedding(WORDS, 8), nn.Embedding(WORDS, 4)
        self.given.weight.requires_grad_(False)

    def read(self, x: Tensor) -> Tensor:
        return torch.cat([self.given(x), self.own(x)], 2)


class BareParameter(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(WORDS, 8))

    def read(self, x: Tensor) -> Tensor:
        return self.vectors[x]


class RowsAreDropped(BareParameter):
    def read(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.vectors * torch.ones(WORDS, 1))


class OneHot(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WORDS, 8, bias=False)

    def read(self, x: Tensor) -> Tensor:
        read: Tensor = self.first(functional.one_hot(x, WORDS).float())
        return read


class TakesFloatsToo(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)

    def read(self, x: Tensor) -> Tensor:
        read: Tensor = self.table(x.long())
        return read


class FromAfar(TakesFloatsToo):
    def read(self, x: Tensor) -> Tensor:
        return super().read(x - OFFSET)


class PackedBag(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 8, mode="sum", sparse=True)

    def read(self, x: Tensor) -> Tensor:
        many = (x != 0).sum(1)
        read: Tensor = self.bag(x[x != 0], torch.cat([many.new_zeros(1), many.cumsum(0)[:-1]]))
        return read[:, None]


def rows_read(
    model: str, data: str = "padded_data", known: int = 2, threats: tuple[str, ...] = ("curious-server", "eavesdropper")
) -> list[list[float]]:
    """Precision and recall of what each of these reads off the rows of such a model."""
    plan = {
        "data": {"name": "custom", "factory": f"{__name__}:{data}"},
        "model": {"name": "custom", "factory": f"{__name__}:{model}"},
        "partition": {"name": "uniform-batch", "batch": 4},
        "federation": {"clients": 6, "rounds": 1},
        "training": {"batch_size": 2, "lr": 0.1},
        "adversary_data": {"per_class": known},
    }
    deployment = Deployment.of(check_plan(plan, "the test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace).run()
    truth, knowledge = trace.truth().beside(deployment.shares.clients), deployment.knowledge()
    attack = make("attacks", "embedding-rows")
    outcomes = [
        run_attack(attack, trace, ADVERSARIES[threat], knowledge=knowledge, seed=1, truth=truth) for threat in threats
    ]
    return [[one.scores[name].value for name in ("token-precision", "token-recall")] for one in outcomes]


@pytest.mark.parametrize("known", [2, 0])
@pytest.mark.parametrize(
    "model",
    ["MorePlacesThanWords", "FrozenBesideTrained", "BareParameter", "RowsAreDropped", "TakesFloatsToo", "PackedBag"],
)
def test_the_words_are_read_with_the_code_and_without(model: str, known: int) -> None:
    assert rows_read(model, known=known) == [[1.0, 1.0]] * 2


def test_who_knows_the_code_reads_columns_of_one_hot_inputs_and_shifted_numbers() -> None:
    assert rows_read("OneHot", threats=("curious-server",)) == [[1.0, 1.0]]
    assert rows_read("FromAfar", "data_from_afar", threats=("curious-server",)) == [[1.0, 1.0]]


def test_tables_are_told_by_what_another_token_changes() -> None:
    texts = padded_data()[0]
    assert token_tables(MorePlacesThanWords(), texts) == [Table("words.weight")]
    assert token_tables(OneHot(), texts) == [Table("first.weight", columns=True)]
    assert token_tables(nn.Sequential(nn.Flatten(), nn.Linear(LENGTH, 2)), texts.float()) == []
    picked = rows_picked(PackedBag(), Table("bag.weight"), texts[:5])
    assert picked == [set(text.tolist()) - {0} for text in texts[:5]], "texts that are packed are read one by one"


def test_rows_that_differ_too_much_for_noise_are_told_by_two_kinds_of_size() -> None:
    """A head that shares the embedding, and is sure of what it predicts, moves all rows, by very different amounts."""
    rng = torch.Generator().manual_seed(0)
    sizes = torch.cat([torch.randn(900, generator=rng) - 4, 0.3 * torch.randn(100, generator=rng)]).double()
    change = torch.randn(1000, 64, generator=rng, dtype=torch.float64) * sizes.exp()[:, None]
    moved = set(moved_rows(change, torch.zeros(())).tolist())
    real = set(range(900, 1000))
    assert len(moved & real) >= 95
    assert len(moved - real) <= 10


class TooFewRows(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS // 2, 8)

    def read(self, x: Tensor) -> Tensor:
        read: Tensor = self.table(x)
        return read


def test_a_table_that_is_too_small_for_the_data_is_said_before_anything_runs() -> None:
    with pytest.raises(OwnCodeFailed, match="fails on whole numbers from 0 to 119: IndexError"):
        rows_read("TooFewRows")
