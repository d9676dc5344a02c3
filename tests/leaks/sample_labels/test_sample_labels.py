"""Labels of single samples: what each attack reads out of gradients that come back, and where it cannot."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Examples, KnownSamples
from fedspill.defense import Defense
from fedspill.errors import NotApplicable
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings
from fedspill.leaks.sample_labels.received.cone_fit import fit_cone, side_by_side, spanned
from fedspill.leaks.sample_labels.received.naming import agreement, named
from fedspill.leaks.sample_labels.received.sample_rounds import NOTHING_KNOWN, KnownLabels
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import CURIOUS_PARTY
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

CLASSES = 5


def rows(samples: int = 300, classes: int = CLASSES, seed: int = 0) -> Examples:
    """The second half of the columns tells the label, the first half is nothing but noise."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (samples,), generator=rng)
    centres = 2 * torch.randn(classes, 6, generator=torch.Generator().manual_seed(5))
    told = centres[y] + torch.randn(samples, 6, generator=rng)
    return Examples(torch.cat([torch.randn(samples, 6, generator=rng), told], 1), y)


def network(classes: int = CLASSES, **options: Any) -> VerticalNet:
    made = make("models", "vertical-mlp", {"widths": (16, 8), **options})
    return vertical_net(made.build((12,), classes, seed=1))


class Recorded:
    """A federation that was run, and what party 0 knows of it."""

    def __init__(
        self, classes: int = CLASSES, epochs: int = 4, defenses: tuple[Defense, ...] = (), known: int = 1, **model: Any
    ) -> None:
        self.stock = rows(classes=classes)
        self.trace = MemoryTrace({"classes": classes})
        training = LocalTraining(optimizer="adam", lr=0.01, batch_size=30)
        settings = PrivateTowerSettings(rounds=10 * epochs, training=training, defenses=defenses)
        PrivateTowers(network(classes, **model), self.stock, settings, 3, self.trace).run()
        chosen = torch.cat([(self.stock.y == label).nonzero().flatten()[:known] for label in range(classes)])
        self.known: dict[str, Any] = {
            "architecture": lambda: network(classes, **model),
            "few_labels": KnownSamples(chosen, self.stock.y[chosen]),
            "class_prior": torch.bincount(self.stock.y, minlength=classes).double() / len(self.stock),
            "party_features": self.stock.x[:, :6],
            "defense": defenses,
        }

    def run(self, attack: str, without: tuple[str, ...] = (), **options: Any) -> Outcome:
        known = {word: value for word, value in self.known.items() if word not in without}
        truth = self.trace.truth().beside([self.stock])
        return run_attack(
            make("attacks", attack, options), self.trace, CURIOUS_PARTY, knowledge=known, seed=1, truth=truth
        )

    def right(self, attack: str, **options: Any) -> float:
        return self.run(attack, **options).scores["sample-label-accuracy"].value


@cache
def five_classes() -> Recorded:
    return Recorded()


@cache
def two_classes() -> Recorded:
    return Recorded(classes=2)


def test_the_cone_reads_every_label_of_a_party_that_holds_nothing_but_noise() -> None:
    outcome = five_classes().run("cone")
    score = outcome.scores["sample-label-accuracy"]
    assert score.value >= 0.99
    assert score.n == 300 - CLASSES, "labels that were given are not scored"
    assert "few_labels" in outcome.used


def test_completion_of_a_tower_of_noise_is_no_better_than_guessing() -> None:
    assert five_classes().right("model-completion", steps=60) < 0.4


def test_towers_with_batch_norms_are_completed_too() -> None:
    def network_with_norms() -> VerticalNet:
        net = network(2)
        for number in range(net.parties):
            net.tower(number).back.insert(0, torch.nn.BatchNorm1d(16))  # type: ignore[operator]
        return net

    stock, trace = rows(classes=2), MemoryTrace({"classes": 2})
    settings = PrivateTowerSettings(rounds=10, training=LocalTraining(optimizer="adam", lr=0.01, batch_size=30))
    PrivateTowers(network_with_norms(), stock, settings, 3, trace).run()
    chosen = torch.cat([(stock.y == label).nonzero().flatten()[:4] for label in range(2)])
    known = {
        "architecture": network_with_norms,
        "few_labels": KnownSamples(chosen, stock.y[chosen]),
        "party_features": stock.x[:, :6],
    }
    attack, truth = make("attacks", "model-completion", {"steps": 3}), trace.truth().beside([stock])
    assert run_attack(attack, trace, CURIOUS_PARTY, knowledge=known, seed=1, truth=truth).status == "ok"


def test_blind_the_cone_finds_the_classes_and_is_told_their_names_by_one_label_each() -> None:
    assert five_classes().right("cone", start="blind") >= 0.97


def test_without_any_label_the_classes_are_named_by_how_common_they_are() -> None:
    uneven = Recorded(classes=2)
    keep = torch.cat([(uneven.stock.y == 0).nonzero().flatten(), (uneven.stock.y == 1).nonzero().flatten()[:40]])
    prior = torch.tensor([len(keep) - 40, 40]).double() / len(keep)
    scores = torch.eye(2).double()[1 - uneven.stock.y[keep]]  # found, under the wrong names
    assert torch.equal(named(scores, NOTHING_KNOWN, prior).argmax(1), uneven.stock.y[keep])


def test_a_head_with_hidden_layers_is_read_too() -> None:
    assert Recorded(head_widths=(16,)).right("cone") >= 0.97


def test_the_cone_is_found_in_gradients_of_any_linear_head() -> None:
    """Made from the formula alone: (p - e_y) W, with known labels of one sample a class."""
    rng = torch.Generator().manual_seed(2)
    labels = torch.randint(7, (400,), generator=rng)
    probabilities = torch.randn(400, 7, generator=rng).double().softmax(1)
    gradients = (probabilities - torch.eye(7).double()[labels]) @ torch.randn(7, 12, generator=rng).double()
    anchors = torch.stack([(labels == label).nonzero().flatten()[0] for label in range(7)])
    found = fit_cone(spanned(gradients, 7), anchors, torch.arange(7), 7).argmax(1)
    assert float((found == labels).double().mean()) >= 0.97


def test_noise_that_is_drawn_anew_averages_out_over_the_uses() -> None:
    rng = torch.Generator().manual_seed(4)
    labels = torch.randint(2, (500,), generator=rng)
    signal = torch.where(labels == 1, 1.0, -1.0)[:, None] * torch.ones(1, 8)

    def told_apart(uses: int) -> float:
        visits = torch.stack([signal + 4 * torch.randn(500, 8, generator=rng) for _ in range(uses)]).double()
        shared = side_by_side(visits, 2)[:, 0]
        right = float(((shared > 0) == (labels == 1)).double().mean())
        return max(right, 1 - right)

    assert told_apart(1) < 0.9
    assert told_apart(20) > 0.97


def test_who_knows_of_noise_reads_all_uses_together() -> None:
    noisy = Recorded(classes=2, epochs=12, defenses=(make("defenses", "returned-noise", {"power": 8.0}),), known=4)
    outcome = noisy.run("cone")
    assert "defense" in outcome.used
    assert any("uses together" in note for note in outcome.notes)
    assert outcome.scores["sample-label-auc"].value > 0.85
    assert noisy.right("gradient-direction") < outcome.scores["sample-label-accuracy"].value


def test_labels_that_were_redrawn_once_stay_hidden_over_all_epochs() -> None:
    defended = Recorded(classes=2, defenses=(make("defenses", "redrawn-labels", {"share": 0.5}),), known=8)
    assert 0.6 < defended.right("cone") < 0.85  # three quarters of the labels are still what they were


@pytest.mark.parametrize("attack", ["gradient-direction", "gradient-similarity"])
def test_published_readings_of_two_classes_hold_early_in_training(attack: str) -> None:
    assert two_classes().right(attack) >= 0.95


def test_lengths_of_gradients_tell_a_rare_class() -> None:
    rare = Recorded(classes=2)
    few = (rare.stock.y == 1).nonzero().flatten()[:30]
    rare.stock = Examples(rare.stock.x, torch.zeros_like(rare.stock.y).index_fill(0, few, 1))
    rare.trace = MemoryTrace({"classes": 2})
    settings = PrivateTowerSettings(rounds=30, training=LocalTraining(optimizer="adam", lr=0.01, batch_size=30))
    PrivateTowers(network(2), rare.stock, settings, 3, rare.trace).run()
    rare.known["class_prior"] = torch.tensor([0.9, 0.1])
    assert rare.run("gradient-norm").scores["sample-label-auc"].value > 0.9


def test_more_than_two_classes_are_refused_by_what_is_for_two() -> None:
    for attack in ("gradient-norm", "gradient-direction"):
        with pytest.raises(NotApplicable, match="two classes"):
            five_classes().run(attack)


def test_direct_labels_reads_a_head_that_adds_up_and_refuses_any_other() -> None:
    assert Recorded(top="sum").right("direct-labels") == 1.0
    with pytest.raises(NotApplicable, match="more than add up"):
        five_classes().run("direct-labels")


def test_a_class_without_a_known_label_sends_the_cone_to_clusters() -> None:
    outcome = five_classes().run("cone", without=("few_labels",))
    assert any("from clusters" in note for note in outcome.notes)


def test_agreement_of_readings_is_no_merit_of_saying_the_same_of_everybody() -> None:
    same = torch.tensor([[1.0, 0.0]]).repeat(50, 1)
    assert agreement(same, same) == 0.0
    mixed = torch.eye(2)[torch.arange(50) % 2]
    assert agreement(mixed, mixed) == 1.0


def test_known_labels_name_clusters_before_how_common_they_are() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    scores: Tensor = torch.eye(2).double()[labels]
    known = KnownLabels(torch.tensor([0]), torch.tensor([1]))
    assert torch.equal(named(scores, known, torch.tensor([0.75, 0.25])).argmax(1), 1 - labels)


def test_a_few_known_labels_name_clusters_unless_they_contradict_each_other_and_how_common_classes_are() -> None:
    said = torch.tensor([0] * 70 + [1] * 30)
    scores = torch.nn.functional.one_hot(said, 2).double()
    prior = torch.tensor([0.24, 0.76])
    both = KnownLabels(torch.tensor([0, 99]), torch.tensor([0, 1]))
    most_wrong = KnownLabels(torch.tensor([0, 1, 2, 97, 98, 99]), torch.tensor([0, 0, 1, 1, 1, 0]))
    assert torch.equal(named(scores, NOTHING_KNOWN, prior).argmax(1), 1 - said), "the common class is the large cluster"
    assert torch.equal(named(scores, both, None).argmax(1), said)
    assert torch.equal(named(scores, both, torch.tensor([0.5, 0.5])).argmax(1), said)
    assert torch.equal(named(scores, most_wrong, prior).argmax(1), 1 - said), "six labels that disagree say little"
    assert torch.equal(named(scores, most_wrong, torch.tensor([0.5, 0.5])).argmax(1), said)
