"""What every metric must keep: a perfect guess is perfect, guessing has a finite score, origins have no order.

A new metric is run here without being mentioned; a new type of guess needs a perfect one below.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.guess import Guess
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.groups.guess import Groups
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.records.guess import Records
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.leaks.words.guess import ClientText
from fedspill.messages import SERVER
from fedspill.metric import Metric, Score
from fedspill.registry import entries, make
from fedspill.table_schema import CategoryField, NumberField, TableSchema
from fedspill.trace import Origin, Truth

NAMES = [entry.name for entry in entries("metrics")]
every_metric = pytest.mark.parametrize("name", NAMES)
ORIGINS = 8
Case = tuple[Guess, Truth]


def noted(of: Sequence[Origin], **facts: Sequence[Tensor]) -> Truth:
    """The truth with, for each origin, the tensor that stands in its place."""
    found: dict[tuple[Origin, str], Tensor] = {}
    for name, values in facts.items():
        found |= {(origin, name): value for origin, value in zip(of, values, strict=True)}
    return Truth(found)


def clients() -> list[Origin]:
    return [Origin(index % 2, f"client:{index}") for index in range(ORIGINS)]


def rounds(sender: str) -> list[Origin]:
    return [Origin(index, sender) for index in range(ORIGINS)]


def label_counts() -> Tensor:
    """(origins, 4) with two absent classes each, no two origins alike."""
    return torch.tensor([[(3 + i, 0, 5, 0), (0, 2, 0, 9 + i)][i % 2] for i in range(ORIGINS)])


def perfect_labels() -> Case:
    return LabelCounts(clients(), label_counts()), noted(clients(), label_counts=list(label_counts()))


def perfect_shares() -> Case:
    counts = label_counts()
    shares, yes = counts / counts.sum(1, keepdim=True).double(), torch.ones(ORIGINS, dtype=torch.bool)
    guess = Proportions(clients(), shares, counts == 0, torch.ones(ORIGINS), yes)
    return guess, noted(clients(), label_counts=list(counts))


def owned_by_clients() -> tuple[list[Tensor], Truth]:
    """Rounds of three clients that have ten samples of a class or none, and how many of them own each class."""
    has = [(torch.arange(12).reshape(3, 4) * (7 + i)) % 5 < 2 for i in range(ORIGINS)]
    of = rounds("aggregator")
    counts, who = [10 * one.long() for one in has], [torch.tensor([1, 2, 3])] * ORIGINS
    return [one.sum(0) for one in has], noted(of, label_counts_by_client=counts, clients=who)


def perfect_presence() -> Case:
    owners, truth = owned_by_clients()
    return Presence(rounds("aggregator"), torch.stack(owners) > 0, "client:0"), truth


def perfect_quantities() -> Case:
    owners, truth = owned_by_clients()
    return ClassQuantities(rounds("aggregator"), torch.stack(owners).double(), "client:0"), truth


def perfect_groups() -> Case:
    places = [torch.tensor([0, 1, 2, 2, 0, 1]).roll(i) for i in range(ORIGINS)]
    totals = [torch.tensor([90, 40, 10])[place] for place in places]
    yes = torch.ones(ORIGINS, dtype=torch.bool)
    guess = Groups(rounds(SERVER), torch.stack(places), torch.stack(totals).double(), yes)
    return guess, noted(rounds(SERVER), label_totals=totals)


def perfect_inputs() -> Case:
    """Images of a vertical federation, so that tiles are scored as well."""
    rng = torch.Generator().manual_seed(0)
    held = Examples(torch.rand(3 * ORIGINS, 3, 8, 8, generator=rng), torch.arange(3 * ORIGINS) % 4)
    whose = torch.arange(3 * ORIGINS) % 3 // 2  # the first two of each three are one client's
    used = torch.stack([whose, torch.arange(3 * ORIGINS)], 1).split(3)
    sure, yes = torch.ones(3, dtype=torch.bool), torch.ones(ORIGINS, dtype=torch.bool)
    together = [torch.tensor([0, 0, -1])] * ORIGINS
    guess = Inputs(rounds(SERVER), list(held.x.split(3)), [sure] * ORIGINS, yes, groups=together)
    return guess, noted(rounds(SERVER), used_samples=list(used)).beside([held, held])


def targets() -> tuple[list[Tensor], list[Tensor]]:
    """Of each round's one target: whether it is a member, and its attribute; every combination occurs."""
    values = [0, 1, 0, 0, 1, 1, 1, 0]
    return [torch.tensor([i % 2]) for i in range(ORIGINS)], [torch.tensor([value]) for value in values]


def perfect_membership() -> Case:
    """Of one client: every other record is one of its own. So many that one false alarm in a thousand can be told."""
    many = 2 * 1000
    of = [Origin(0, "client:0")] * many
    member = torch.arange(many) % 2 == 0
    own = torch.where(member, torch.arange(many), -1)
    places = torch.stack([torch.where(member, 0, -1), own], 1)
    used = torch.stack([torch.zeros(many // 2, dtype=torch.int64), own[member]], 1)
    facts = {
        (Origin(0, SERVER), "asked_places"): places,
        (of[0], "used_samples"): used,
        (of[0], "label_counts"): torch.tensor([many // 4, many // 4]),
    }
    labels = torch.arange(many) // 2 % 2
    return Membership(of, member.double(), torch.arange(many), labels=labels), Truth(facts)


def perfect_attributes() -> Case:
    members, values = targets()
    prior, place = torch.full((ORIGINS,), 0.5, dtype=torch.float64), torch.zeros(ORIGINS, dtype=torch.int64)
    guess = Attributes(rounds("aggregator"), torch.cat(values).double(), prior, place)
    return guess, noted(rounds("aggregator"), target_members=members, target_values=values)


def perfect_text() -> Case:
    """Two texts of four tokens for each origin, no token in two of them."""
    held = Examples(torch.arange(8 * ORIGINS).reshape(2 * ORIGINS, 4), torch.arange(2 * ORIGINS) % 2)
    used = torch.stack([torch.zeros(2 * ORIGINS, dtype=torch.int64), torch.arange(2 * ORIGINS)], 1).split(2)
    texts = list(held.x.split(2))
    sure = [torch.ones(2, dtype=torch.bool)] * ORIGINS
    guess = ClientText(clients(), [part.flatten() for part in texts], texts, sure)
    return guess, noted(clients(), used_samples=list(used)).beside([held])


def held_by_parties() -> tuple[Examples, list[Tensor]]:
    """Six samples a round of two classes, and their places."""
    rng = torch.Generator().manual_seed(0)
    labels = (torch.arange(6 * ORIGINS) * 5 % 11) % 2
    held = Examples(torch.rand(6 * ORIGINS, 5, generator=rng), labels)
    return held, list(torch.stack([torch.zeros_like(labels), torch.arange(6 * ORIGINS)], 1).split(6))


def perfect_sample_labels() -> Case:
    held, used = held_by_parties()
    scores = torch.nn.functional.one_hot(held.y, 2).float()
    guess = SampleLabels(rounds(SERVER), [torch.arange(6)] * ORIGINS, list(scores.split(6)))
    return guess, noted(rounds(SERVER), used_samples=used).beside([held])


def perfect_feature_rows() -> Case:
    held, used = held_by_parties()
    sure = torch.ones(6, dtype=torch.bool)
    rows = list(held.x[:, :3].split(6))
    guess = FeatureRows(rounds(SERVER), [torch.arange(6)] * ORIGINS, rows, [sure] * ORIGINS, (0, 1, 2))
    return guess, noted(rounds(SERVER), used_samples=used).beside([held])


def perfect_images() -> Case:
    held, used = held_by_parties()
    guess = RebuiltImages(rounds(SERVER), list(held.x.flatten(1).split(6)))
    return guess, noted(rounds(SERVER), used_samples=used).beside([held])


def perfect_records() -> Case:
    """Three records a client, of two numbers, one of them whole, and a category of four values."""
    rng = torch.Generator().manual_seed(0)
    many = 3 * ORIGINS
    numbers = torch.stack([torch.randn(many, generator=rng), torch.randint(9, (many,), generator=rng).float()], 1)
    category = torch.nn.functional.one_hot(torch.randint(4, (many,), generator=rng), 4).float()
    fields = (NumberField("measured", 0), NumberField("counted", 1, step=1.0, low=0, high=8, deviation=2.5))
    schema = TableSchema((*fields, CategoryField("kind", (2, 3, 4, 5), ("a", "b", "c", "d"))))
    held = Examples(torch.cat([numbers, category], 1), torch.arange(many) % 2, schema=schema)
    used = torch.stack([torch.zeros(many, dtype=torch.int64), torch.arange(many)], 1).split(3)
    sure, yes = torch.ones(3, dtype=torch.bool), torch.ones(ORIGINS, dtype=torch.bool)
    guess = Records(clients(), list(held.x.double().split(3)), [sure] * ORIGINS, yes)
    return guess, noted(clients(), used_samples=list(used)).beside([held])


PERFECT: dict[type[Guess], Callable[[], Case]] = {
    LabelCounts: perfect_labels,
    Proportions: perfect_shares,
    Presence: perfect_presence,
    ClassQuantities: perfect_quantities,
    Groups: perfect_groups,
    Inputs: perfect_inputs,
    Membership: perfect_membership,
    Attributes: perfect_attributes,
    ClientText: perfect_text,
    SampleLabels: perfect_sample_labels,
    FeatureRows: perfect_feature_rows,
    RebuiltImages: perfect_images,
    Records: perfect_records,
}


@cache
def weights_of_lpips() -> dict[str, Tensor]:
    """Any weights will do: a picture is at no distance from itself."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(64, 3, 11, 11), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3)]
    made = {f"conv{i}.weight": 0.05 * torch.randn(shape, generator=rng) for i, shape in enumerate(shapes)}
    made |= {f"conv{i}.bias": torch.zeros(shape[0]) for i, shape in enumerate(shapes)}
    return made | {f"lin{i}.weight": torch.rand(1, shape[0], 1, 1, generator=rng) for i, shape in enumerate(shapes)}


@pytest.fixture(autouse=True)
def lpips_has_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspill.leaks.inputs.metrics.lpips_weights", weights_of_lpips)


def case_of(name: str) -> tuple[Metric[Any], Guess, Truth]:
    metric: Metric[Any] = make("metrics", name)
    assert metric.guesses in PERFECT, f"add a perfect {metric.guesses.__name__} to PERFECT in {Path(__file__).name}"
    guess, truth = PERFECT[metric.guesses]()
    guess.check()
    return metric, guess, truth


def in_order(guess: Guess, order: Sequence[int], *, origins: bool) -> Guess:
    """The guess with what it says in another order; with `origins`, what it speaks of goes along."""
    changed: dict[str, Any] = {}
    for item in dataclasses.fields(guess):  # type: ignore[arg-type]
        value = getattr(guess, item.name)
        if item.name == "notes" or (item.name == "of" and not origins):
            continue
        if isinstance(value, Tensor) and value.ndim:
            changed[item.name] = value[torch.tensor(order)]
        elif isinstance(value, list | tuple) and len(value) == len(order):
            changed[item.name] = [value[place] for place in order]
    return dataclasses.replace(guess, **changed)  # type: ignore[type-var]


def wrong(guess: Guess) -> Guess:
    """Says of each origin what is true of the third after it."""
    many = len(guess.of)
    changed = in_order(guess, [(place + 3) % many for place in range(many)], origins=False)
    if isinstance(guess, Membership) and isinstance(changed, Membership):  # which record is asked about stays
        return dataclasses.replace(changed, places=guess.places, labels=guess.labels)
    return changed


def assert_finite(score: Score) -> None:
    assert score.status == "ok", score.why
    assert all(map(math.isfinite, (score.value, score.low, score.high, score.chance)))
    assert score.low - 1e-6 <= score.value <= score.high + 1e-6  # some values are sums of float32 weights
    assert score.n > 0


@every_metric
def test_a_perfect_guess_scores_perfect_and_guessing_a_finite_value(name: str) -> None:
    metric, guess, truth = case_of(name)
    score = metric.score(guess, truth)
    assert_finite(score)
    assert score.value == pytest.approx(metric.perfect, abs=1e-6)


@every_metric
def test_guessing_is_no_better_than_perfect(name: str) -> None:
    metric, guess, truth = case_of(name)
    score, other = metric.score(guess, truth), metric.score(wrong(guess), truth)
    side = math.copysign(1, metric.perfect - other.value)
    assert side * (metric.perfect - score.chance) >= 0


@every_metric
def test_a_wrong_guess_is_not_perfect(name: str) -> None:
    metric, guess, truth = case_of(name)
    score = metric.score(wrong(guess), truth)
    if name == "certificate-precision":
        assert score.value == 0
    assert_finite(score)
    assert score.value != pytest.approx(metric.perfect, abs=1e-6)


@every_metric
def test_the_order_of_origins_changes_nothing(name: str) -> None:
    metric, guess, truth = case_of(name)
    order = torch.randperm(len(guess.of), generator=torch.Generator().manual_seed(3)).tolist()
    for one in (guess, wrong(guess)):
        score, again = metric.score(one, truth), metric.score(in_order(one, order, origins=True), truth)
        assert again.value == pytest.approx(score.value, abs=1e-9)
        assert again.n == score.n
        assert_finite(again)


@every_metric
def test_what_nothing_is_known_of_is_unscored_and_not_zero(name: str) -> None:
    metric, guess, _ = case_of(name)
    score = metric.score(guess, Truth({}))
    assert score.status == "unscored"
    assert score.why
    assert math.isnan(score.value)
