"""Label counts by rehearsal: made-up federations on digits, where counts must be found and errors must be honest."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.data.digits import Digits
from fedspill.dataset import Examples
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.composition.decaf import Decaf
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.labels.counts.trial import Tried
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels, _as_tried, _gains, _mixed, _rounds_read_alone
from fedspill.leaks.labels.llg import LLG
from fedspill.leaks.labels.metrics import overlap, true_counts
from fedspill.models.class_rows import any_head
from fedspill.observe import rehearsed_shares
from fedspill.observe.drawn_clients import broad_shares, counts_of_shares, deal
from fedspill.observe.rehearsed_shares import RehearsalSizes, largest_absent, without_absent
from fedspill.partitions.dirichlet import Dirichlet
from fedspill.partitions.shares import share_out
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace, Origin, View
from fedspill.training import LocalTraining

SGD = LocalTraining(lr=0.05, batch_size=16)


@pytest.fixture(scope="module")
def parts() -> Any:
    return share_out(Digits().load(), Dirichlet(alpha=0.5, min_examples=20), 6, auxiliary=10, rng=generator(1, "x"))


def layer_norm() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10, bias=False)
        )


def relu() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Cosine(nn.Module):
    """A cosine classifier: no linear layer gives its logits, and no class has a bias."""

    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(2)
        self.body = nn.Parameter(torch.randn(32, 64, generator=chance) / 8)
        self.classes = nn.Parameter(torch.randn(10, 32, generator=chance))

    def forward(self, x: Tensor) -> Tensor:
        features = functional.normalize((x.flatten(1) @ self.body.T).relu(), dim=1)
        return 8 * features @ functional.normalize(self.classes, dim=1).T


def recorded(parts: Any, model: nn.Module, training: LocalTraining, rounds: int = 2, **more: Any) -> MemoryTrace:
    head = any_head(model, parts.clients[0].x[:2])
    assert head is not None
    protocol = {
        "classes": 10,
        "head_weight": head.weight,
        "head_bias": head.bias,
        "head_is_plain": head.plain,
        "algorithm": training.algorithm,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
        "optimizer": {
            "name": training.optimizer,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
        },
    }
    trace = MemoryTrace(protocol)
    Horizontal(model, list(parts.clients), Settings(rounds=rounds, training=training, **more), 3, 10, trace).run()
    return trace


def view_of(trace: MemoryTrace, model: nn.Module, auxiliary: Examples, **more: Any) -> View:
    known = {"architecture": partial(copy.deepcopy, model), "aux_data": auxiliary, "unlabelled_aux": auxiliary.x}
    return trace.view(CURIOUS_SERVER, knowledge=known | more)


def rate(guess: LabelCounts, trace: MemoryTrace) -> float:
    return float(overlap(guess.counts, true_counts(guess, trace.truth())).mean())


@pytest.mark.parametrize(
    ("model", "training"),
    [
        (layer_norm(), SGD),
        (relu(), replace(SGD, optimizer="adam", lr=0.003)),
        (relu(), replace(SGD, epochs=3)),
    ],
)
def test_labels_are_found_whatever_the_architecture_and_the_optimizer(
    parts: Any, model: nn.Module, training: LocalTraining
) -> None:
    trace = recorded(parts, model, training)
    guess = Labels()(view_of(trace, model, parts.auxiliary), seed=0)
    assert isinstance(guess, LabelCounts)
    assert set(guess.routes) == {"rehearsed"}
    assert rate(guess, trace) > 0.9


def test_a_head_that_is_no_plain_layer_is_read(parts: Any) -> None:
    model = Cosine()
    trace = recorded(parts, model, SGD)
    view = view_of(trace, model, parts.auxiliary)
    ours, published = Labels()(view, seed=0), LLG()(view, seed=0)
    assert isinstance(ours, LabelCounts)
    assert isinstance(published, LabelCounts)
    assert rate(ours, trace) > max(0.85, rate(published, trace) + 0.1)


def test_the_stated_confidence_and_intervals_hold(parts: Any) -> None:
    model = layer_norm()
    trace = recorded(parts, model, SGD, rounds=3)
    guess = Labels()(view_of(trace, model, parts.auxiliary), seed=0)
    assert isinstance(guess, LabelCounts)
    assert guess.confidence is not None
    assert guess.low is not None
    assert guess.high is not None
    real = true_counts(guess, trace.truth())
    assert abs(float(guess.confidence.mean()) - rate(guess, trace)) < 0.06
    inside = ((real >= guess.low) & (real <= guess.high)).double().mean()
    assert 0.8 < float(inside) <= 1


def test_a_client_is_rehearsed_in_three_of_its_rounds_and_all_say_the_same(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = layer_norm()
    trace = recorded(parts, model, SGD, rounds=5)
    around, rounds = rehearsed_shares._Around.of, list[int]()

    def of(scenes: Any, *given: Any, **more: Any) -> Any:
        rounds.append(len(scenes))
        return around(scenes, *given, **more)

    monkeypatch.setattr(rehearsed_shares._Around, "of", of)
    guess = Labels()(view_of(trace, model, parts.auxiliary), seed=0)
    assert isinstance(guess, LabelCounts)
    assert set(guess.routes) == {"rehearsed"}
    assert set(rounds) == {RehearsalSizes().leading}
    said = {origin.sender: guess.counts[place] for place, origin in enumerate(guess.of)}
    assert all(torch.equal(guess.counts[place], said[origin.sender]) for place, origin in enumerate(guess.of))
    assert rate(guess, trace) > 0.9


def test_a_known_defense_is_rehearsed(parts: Any) -> None:
    model, clip = relu(), ClipNoise(clip=0.2, sigma=0.0)
    trace = recorded(parts, model, SGD, defenses=(clip,))
    known = Labels()(view_of(trace, model, parts.auxiliary, defense=(clip,)), seed=0)
    assert isinstance(known, LabelCounts)
    assert rate(known, trace) > 0.88


def test_an_update_unlike_any_rehearsal_is_read_by_itself(parts: Any) -> None:
    model = relu()
    trace = recorded(parts, model, SGD, rounds=1, defenses=(ClipNoise(clip=None, sigma=3.0),))
    guess = Labels()(view_of(trace, model, parts.auxiliary), seed=0)
    assert isinstance(guess, LabelCounts)
    assert "rehearsed" not in guess.routes


def test_without_data_nothing_is_rehearsed_and_the_notes_say_so(parts: Any) -> None:
    model = relu()
    trace = recorded(parts, model, SGD, rounds=1)
    guess = Labels()(trace.view(CURIOUS_SERVER), seed=0)
    assert "rehearsed" not in guess.routes  # type: ignore[attr-defined]
    assert any("Not rehearsed" in note for note in guess.notes)


def test_composition_rests_on_the_same_rehearsals(parts: Any) -> None:
    model = relu()
    trace = recorded(parts, model, replace(SGD, epochs=3))
    ours, paper = (
        Decaf(solver=solver)(view_of(trace, model, parts.auxiliary), seed=0)  # type: ignore[arg-type]
        for solver in ("auto", "paper")
    )
    assert isinstance(ours, Proportions)
    assert isinstance(paper, Proportions)
    real = torch.stack([trace.truth().get(origin, "label_counts") for origin in ours.of]).double()
    real = real / real.sum(1, keepdim=True)
    distances = [float((guess.shares - real).abs().sum(1).mean()) for guess in (ours, paper)]
    assert distances[0] < 0.2
    assert distances[0] < 0.5 * distances[1]


def test_counts_are_whole_and_add_up() -> None:
    shares = broad_shares(8, 7, (0.1, 5.0), torch.Generator().manual_seed(0))
    counts = counts_of_shares(shares, 23)
    assert bool((counts.sum(1) == 23).all())
    assert bool((counts >= 0).all())
    assert float((counts / 23 - shares).abs().max()) < 1 / 23
    assert float(shares[0:4:2].amax(1).mean()) > 2 * float(shares[1:4:2].amax(1).mean())  # few classes, then even ones


def test_the_broad_draw_has_clients_with_half_of_one_class_of_a_hundred() -> None:
    shares = broad_shares(48, 100, (0.1, 0.3, 1.0, 5.0), torch.Generator().manual_seed(0))
    largest = shares.amax(1)
    folds = torch.arange(48) // 4 % 2
    assert bool((shares.sum(1) - 1 < 1e-9).all())
    assert all(bool((largest[folds == fold] > 0.4).any()) for fold in (0, 1))
    assert float((largest < 0.15).double().mean()) > 0.3  # and others with nothing of the kind


def test_an_update_by_itself_is_believed_as_far_as_its_trial_bears_it_out() -> None:
    """Rehearsals state .8; the update by itself .9 in one round, .8 in the other, less what its trial takes off."""
    of = [Origin(number, f"client:{place}") for number in (0, 1) for place in (0, 1)]
    rehearsals, alone = (
        LabelCounts(
            of, torch.full((4, 2), count), confidence=torch.tensor(stated), sure=torch.zeros(4, 2),
            low=torch.zeros(4, 2).long(), high=torch.full((4, 2), count), routes=(route,) * 4,
        )
        for count, stated, route in ((1, [0.8] * 4, "rehearsed"), (2, [0.9, 0.9, 0.8, 0.8], "bayes"))
    )  # fmt: skip
    borne_out = _as_tried(alone, Tried(right=0.85, stated=0.9))
    assert _rounds_read_alone([0, 0, 1, 1], _gains(rehearsals, borne_out, range(4))) == {0}
    found = _mixed(rehearsals, borne_out, torch.tensor([True, True, False, False]))
    assert found.routes == ("bayes", "bayes", "rehearsed", "rehearsed")
    assert found.confidence is not None
    assert found.confidence.tolist() == pytest.approx([0.85, 0.85, 0.8, 0.8], abs=1e-6)
    for tried in (Tried(right=0.7, stated=0.9), None):
        assert _rounds_read_alone([0, 0, 1, 1], _gains(rehearsals, _as_tried(alone, tried), range(4))) == set()


def test_samples_are_dealt_as_wanted_each_client_from_half_of_them() -> None:
    labels: Tensor = torch.arange(40) % 4
    counts = torch.tensor([[30, 0, 70, 1], [50, 50, 0, 1]])
    rows = deal(counts, labels, torch.Generator().manual_seed(0))
    assert torch.equal(torch.stack([torch.bincount(labels[own], minlength=4) for own in rows]), counts)
    held = [{int(row) for row in own if labels[row] == 0} for own in rows]
    assert [len(own) for own in held] == [5, 5]
    assert held[0] != held[1]


def test_all_samples_are_dealt_once_before_any_is_dealt_again() -> None:
    labels: Tensor = torch.arange(40) % 4
    rows = deal(torch.tensor([[10, 20, 0, 3]]), labels, torch.Generator().manual_seed(0), halves=False)[0]
    dealt = torch.bincount(rows, minlength=40)
    assert set(dealt[labels == 0].tolist()) == {1}
    assert set(dealt[labels == 1].tolist()) == {2}
    assert set(dealt[labels == 3].tolist()) == {0, 1}


def test_of_many_classes_those_that_do_not_show_were_not_there() -> None:
    known = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.4, 0.6]], dtype=torch.float64)
    estimates = (known + 0.05) / (known + 0.05).sum(1, keepdim=True)
    limit = largest_absent(estimates, known, known > 0)
    assert torch.equal(without_absent(estimates, known > 0, limit) > 1e-9, known > 0)


def test_of_two_classes_one_that_hides_behind_the_other_keeps_its_share() -> None:
    known = torch.tensor([[0.7, 0.3], [0.4, 0.6], [1.0, 0.0], [0.35, 0.65]], dtype=torch.float64)
    estimates = torch.tensor([[0.68, 0.32], [0.4, 0.6], [0.97, 0.03], [0.34, 0.66]], dtype=torch.float64)
    shows = torch.tensor([[True, False], [False, True], [True, False], [False, True]])
    limit = largest_absent(estimates, known, shows)
    assert 0.03 <= limit < 0.32
    read = without_absent(estimates, shows, limit)
    assert torch.allclose(read[2], known[2])
    assert torch.allclose(read[:2], estimates[:2])


def test_make_believe_clients_that_diverge_say_nothing(parts: Any) -> None:
    model = relu()
    trace = recorded(parts, model, SGD, rounds=1)
    trace.protocol["local_lr"] = 1e20  # what the trace claims; the clients' updates stay as they were
    guess = Labels()(view_of(trace, model, parts.auxiliary), seed=0)
    assert "rehearsed" not in guess.routes  # type: ignore[attr-defined]
