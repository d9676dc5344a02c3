"""Labels: our label-count attack; it does what the clients did and compares, and reads each update by itself too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.each_update import messages_of, read_each_update
from fedspill.leaks.labels.counts.readings import REHEARSED, words_of
from fedspill.leaks.labels.counts.trial import FIRST_TRIED, Tried, tried_on_make_believe
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.observe.clients_together import read_together
from fedspill.observe.drawn_clients import broad_shares, counts_of_shares
from fedspill.observe.last_layer import LABEL_NEEDS, read_last_layer
from fedspill.observe.rehearsal_plan import RehearsalPlan, plan_rehearsal
from fedspill.observe.rehearsed_result import RehearsedShares
from fedspill.observe.rehearsed_shares import (
    BegunRehearsals,
    SentUpdate,
    begin,
    clients_of,
    leading_rounds,
    rehearsed_clients,
)
from fedspill.reads import MODELS_AND_HEAD_OF_UPDATES
from fedspill.trace import Origin, View

LEAST_SPREAD = 0.1  # samples: no count is known better (convention)
FIRST_REHEARSED = 4  # clients, by which it is seen whether rehearsing the others is worth while (convention)
EXACT = 0.985  # of the labels of make-believe clients: what reads so many needs no rehearsal (convention)


@final
@dataclass(frozen=True)
class Labels(Attack):
    """Reads each update by itself, trains make-believe clients of known labels, and believes what does better on these.

    With the model's code and a few labelled samples the adversary repeats the rounds that it saw with clients of known
    labels, and learns from them what an update says about labels, whatever the architecture, the optimizer or the
    defense (rehearsed_shares.py). Without, or where a reading of the update by itself (each_update.py) has more labels
    of the make-believe clients right, it uses that. A client that takes part again is taken to hold the same samples.
    Each origin's confidence is the expected share of labels that are right.
    """

    name: ClassVar[str] = "labels"
    title: ClassVar[str] = "Label counts, by rehearsal or the best reading of the last layer"
    paper: ClassVar[str] = "fedspill"
    needs = LABEL_NEEDS
    reads = MODELS_AND_HEAD_OF_UPDATES
    leak = LABELS

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        found = messages_of(view, layer)
        try:
            stage = plan_rehearsal(view, [found[origin] for origin in layer.of])
            leaders = leading_rounds(stage.scenes, stage.plan.leading)
            if all(_is_exact(view, stage, number, rng) for number in leaders):
                raise NotApplicable("not rehearsed: make-believe clients are read without error")
            begun = begin(stage.scenes, stage.updates, stage.classes, rng, stage.plan)
            tried = replace(stage, scenes={number: begun.scenes[number] for number in leaders})
            trial = tried_on_make_believe(view, tried, broad_counts(stage, rng), rng)
            chosen = _believed(stage, begun, _as_tried(read_each_update(view, rng), trial), trial, rng)
        except NotApplicable as why_not:
            alone = read_each_update(view, rng)
            return replace(alone, notes=[*alone.notes, str(why_not)])
        return replace(chosen, notes=[*layer.notes, *words_of(list(chosen.routes))])


def _is_exact(view: View, stage: RehearsalPlan, number: int, rng: torch.Generator) -> bool:
    """Whether a round's updates are read by themselves without error, whatever the shares and what the model knows."""
    counts = broad_counts(stage, rng)
    for passes in (stage.plan.known[0], stage.plan.known[-1]):
        scene = replace(stage.scenes[number], passes=passes)
        tried = tried_on_make_believe(view, replace(stage, scenes={number: scene}), counts, rng, FIRST_TRIED)
        if tried is None or tried.right <= EXACT:
            return False
    return True


def broad_counts(stage: RehearsalPlan, rng: torch.Generator) -> list[Tensor]:
    """For each update counts (n, classes) of clients of all kinds."""
    kinds = stage.plan.kinds
    shares = broad_shares(4 * len(kinds), stage.classes, kinds, rng)
    return [counts_of_shares(shares, update.samples) for update in stage.updates]


def _as_tried(alone: LabelCounts, tried: Tried | None) -> LabelCounts:
    """`alone`, stating less by as much as it overstated in its trial on make-believe clients; nothing without one."""
    assert alone.confidence is not None
    less = 1.0 if tried is None else tried.overstated
    return replace(alone, confidence=(alone.confidence.double() - less).clamp_min(0))


def _believed(
    stage: RehearsalPlan, begun: BegunRehearsals, alone: LabelCounts, tried: Tried | None, rng: torch.Generator
) -> LabelCounts:
    """What states to be right more often in a round, rehearsals or each update `alone`, by more than its trial may err.

    Whether that is so is the model's doing, which all clients of a round were handed. So a few of them are rehearsed
    first, and the others only if these do not find all rounds better read alone. An update that is unlike all that was
    rehearsed is read by itself anyway.
    """
    clients, rounds = clients_of(stage.updates, joint=stage.same), set(begun.scenes)
    some = torch.linspace(0, len(clients) - 1, min(FIRST_REHEARSED, len(clients))).round().int().tolist()
    results: dict[int, RehearsedShares] = {}
    for part in ([clients[place] for place in some], [one for place, one in enumerate(clients) if place not in some]):
        results |= rehearsed_clients(begun, stage.updates, part, rng, stage.plan)
        rows = sorted(results)
        told = read_together([results[row] for row in rows])
        own = _rehearsed([alone.of[row] for row in rows], [stage.updates[row] for row in rows], told)
        gains = _gains(own, alone, rows) - (0.0 if tried is None else tried.error)
        better = _rounds_read_alone([stage.updates[row].round for row in rows], gains)
        if better == rounds:
            return alone
    by_itself = [not one.near or update.round in better for one, update in zip(told, stage.updates, strict=True)]
    return _mixed(own, alone, torch.tensor(by_itself))


def _gains(own: LabelCounts, alone: LabelCounts, rows: Sequence[int]) -> Tensor:
    """(rows,) by how much more `alone` states of these updates than `own`, which is of these only."""
    assert own.confidence is not None
    assert alone.confidence is not None
    return alone.confidence[list(rows)] - own.confidence


def _rounds_read_alone(rounds: Sequence[int], gains: Tensor) -> set[int]:
    """The rounds, of those that updates are of, in which updates by themselves gain on average."""
    numbers = torch.tensor(rounds)
    return {number for number in set(rounds) if float(gains[numbers == number].mean()) > 0}


def _rehearsed(of: Sequence[Origin], updates: Sequence[SentUpdate], results: Sequence[RehearsedShares]) -> LabelCounts:
    """What rehearsals say of some updates."""
    each = [certainty(one, update.samples) for one, update in zip(results, updates, strict=True)]
    counts, sure, expected, low, high = zip(*each, strict=True)
    return LabelCounts(
        list(of),
        torch.stack(counts),
        confidence=torch.tensor(expected, dtype=torch.float64),
        sure=torch.stack(sure),
        low=torch.stack(low),
        high=torch.stack(high),
        routes=(REHEARSED,) * len(each),
    )


def _mixed(rehearsed: LabelCounts, alone: LabelCounts, by_itself: Tensor) -> LabelCounts:
    """`rehearsed`, but of the updates that `by_itself` (updates,) names what they say alone."""
    own = {name: getattr(rehearsed, name).clone() for name in ("counts", "sure", "confidence", "low", "high")}
    for name, values in own.items():
        values[by_itself] = getattr(alone, name)[by_itself].to(values.dtype)
    both = zip(by_itself.tolist(), alone.routes, rehearsed.routes, strict=True)
    return replace(rehearsed, **own, routes=tuple(one if itself else other for itself, one, other in both))


def certainty(result: RehearsedShares, samples: int) -> tuple[Tensor, Tensor, float, Tensor, Tensor]:
    """Counts, how sure each is, the expected share of labels that are right, and bounds of the counts; (classes,) each.

    An estimate errs as readings of make-believe clients do.
    """
    counts = counts_of_shares(result.shares[None], samples)[0]
    errors = result.own_errors
    amounts, spread = samples * result.shares, samples * errors.square().mean(0).sqrt() + LEAST_SPREAD
    below, above = (torch.special.ndtr((counts + side - amounts) / spread) for side in (-0.5, 0.5))
    exact = above - torch.where(counts > 0, below, torch.zeros_like(below))
    expected = 1 - 0.5 * float(errors.abs().sum(1).mean())
    reach = float(torch.special.ndtri(torch.tensor((1 + COUNTS.stated) / 2, dtype=torch.float64))) * spread
    low, high = ((amounts + side * reach).round().clamp(0, samples).long() for side in (-1, 1))
    return counts, exact, min(max(expected, 0.0), 1.0), low, high
