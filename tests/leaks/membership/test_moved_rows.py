"""Membership of sentences: only rows of words that a client wrote move, whatever the model predicts."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.federation.local import state_of
from fedspill.leaks.membership.passive.moved_rows_of_records import odds_by_rows, rows_of_records
from fedspill.leaks.membership.passive.observed import Observed, SeenRound
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace

PADDING = 0


class Words(nn.Module):
    """The mean of embedded words; the class of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4, padding_idx=PADDING)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(x).mean(1))
        return logits


TEXTS = torch.tensor([[1, 2, 9], [1, 3, 0], [1, 20, 21]])
OUTSIDERS = torch.tensor([[1, 2, 0], [1, 3, 4], [1, 5, 6], [1, 2, 3]])


def seen(*moved: int) -> Observed:
    model = Words()
    change = torch.zeros(30, 4)
    change[list(moved)] = 0.1
    changes = {"client:0": {"table.weight": change}}
    return Observed(model, (SeenRound(0, state_of(model), changes, {}),))


def test_rows_are_those_of_the_words_without_padding() -> None:
    rows = rows_of_records(Words(), TEXTS)
    assert {name: [list(text.nonzero().flatten()) for text in used] for name, used in rows.items()} == {
        "table.weight": [[1, 2, 9], [1, 3], [1, 20, 21]]
    }


def test_a_rare_word_that_moved_tells_more_than_a_common_one_and_one_that_stood_still_speaks_against() -> None:
    odds = odds_by_rows(seen(1, 2, 3, 9), TEXTS, OUTSIDERS)
    assert odds is not None
    rare, common, absent = odds[:, 0].tolist()
    assert rare > common > 0 > absent


def test_where_every_row_moves_nothing_is_told() -> None:
    assert odds_by_rows(seen(*range(30)), TEXTS, OUTSIDERS) is None


def test_an_embedding_that_clients_keep_to_themselves_tells_nothing() -> None:
    model = Words()
    changes = {"client:0": {"head.weight": torch.ones(2, 4)}}
    kept = Observed(model, (SeenRound(0, state_of(model), changes, {}),))
    assert odds_by_rows(kept, TEXTS, OUTSIDERS) is None


class Placed(Words):
    """Also knows where a word stands."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head((self.table(x) + self.places(torch.arange(3))).mean(1))
        return logits


def test_rows_of_places_are_no_rows_of_records_however_many_records_there_are() -> None:
    for many in (3, 2):
        assert set(rows_of_records(Placed(), TEXTS[:many])) == {"table.weight"}


@cache
def texts(objective: str) -> tuple[Deployment, MemoryTrace]:
    plan = {
        "seed": 3,
        "data": {"name": "made-up-sentences"},
        "model": {"name": "recurrent", "cell": "gru", "objective": objective},
        "partition": {"name": "uniform-batch", "batch": 6},
        "federation": {"clients": 10, "rounds": 1},
        "training": {"lr": 0.1, "batch_size": 3},
        "membership": {"members": 40, "others": 120},
        "adversary_data": {"per_class": 30},
    }
    deployment = Deployment.of(check_plan(plan, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return deployment, trace


@pytest.mark.parametrize("objective", ["class", "next"])
def test_sentences_of_a_client_are_found(objective: str) -> None:
    deployment, trace = texts(objective)
    truth, knowledge = trace.truth().beside(deployment.shares.clients), deployment.knowledge()
    attack = make("attacks", "membership", {})
    found = run_attack(attack, trace, CURIOUS_SERVER, knowledge=knowledge, seed=1, truth=truth)
    assert any("moved rows was used" in note for note in found.notes)
    assert found.scores["membership-auc"].low > 0.8
