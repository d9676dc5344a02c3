"""Class Sniffing: published rule, sign theorem and count, on rounds whose clients are known."""

import pytest
import torch
from watched import guess

from fedspill.leaks.presence.class_sniffing import published_presence
from fedspill.leaks.presence.metrics import BalancedPresence, PresenceSuccess
from fedspill.leaks.quantity.round_truth import true_owners


def test_counts_tell_present_from_absent() -> None:
    found, trace = guess("class-sniffing")
    assert BalancedPresence().score(found, trace.truth()).value > 0.95


def test_a_rise_proves_that_somebody_has_the_label() -> None:
    found, trace = guess("class-sniffing", solver="sign", me="client:19")
    there = true_owners(found.of, trace.truth(), found.me, "any", 10) > 0
    assert not bool((found.present & ~there).any())


def test_the_published_rule_runs_and_is_not_better_than_ours() -> None:
    paper, trace = guess("class-sniffing", solver="paper")
    ours, _ = guess("class-sniffing")
    metric = BalancedPresence()
    assert metric.score(paper, trace.truth()).value <= metric.score(ours, trace.truth()).value
    assert PresenceSuccess().score(paper, trace.truth()).status == "ok"


def test_algorithm_1_on_numbers() -> None:
    singles = torch.tensor([[[3.0], [-1.0]], [[-2.0], [4.0]]])  # trained label, row, weight
    summed = torch.tensor([[-5.0], [-1.0]])
    # Row 0: threshold 2 * -2 = -4, change -5: absent. Row 1: threshold 2 * -1 = -2, change -1: present.
    assert published_presence(singles, summed, 2, 0.0).tolist() == [False, True]
    assert published_presence(singles, summed, 2, 0.9).tolist() == [False, False]


def test_the_watchers_own_part_is_taken_out() -> None:
    """Rounds in which the watcher took part are judged without it, by attack and metric alike."""
    trace = guess("class-sniffing")[1]
    took_part = [m.round for m in trace.messages("update") if m.sender == "client:4"]
    if not took_part:
        pytest.skip("client 4 was never selected")
    found, _ = guess("class-sniffing", me="client:4")
    assert found.me == "client:4"
    assert BalancedPresence().score(found, trace.truth()).value > 0.9
