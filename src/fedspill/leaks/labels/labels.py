"""Labels: our label-count attack; it does what the clients did and compares, and reads each update by itself too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.each_update import messages_of, read_each_update
from fedspill.leaks.labels.counts.readings import REHEARSED, words_of
from fedspill.leaks.labels.counts.trial import tried_on_make_believe
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.observe.last_layer import LABEL_NEEDS, read_last_layer
from fedspill.observe.real_errors import UNREHEARSED, enlarged
from fedspill.observe.rehearsal_plan import RehearsalPlan, plan_rehearsal
from fedspill.observe.rehearsed_shares import (
    RehearsedShares,
    broad_shares,
    counts_of_shares,
    leading_rounds,
    nearest,
    rehearsed,
)
from fedspill.reads import MODELS_AND_HEAD_OF_UPDATES
from fedspill.trace import Origin, View

LEAST_SPREAD = 0.1  # samples: no count is known better (convention)
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
            results, scenes = rehearsed(stage.scenes, stage.updates, stage.classes, rng, stage.plan, joint=stage.same)
        except NotApplicable as why_not:
            alone = read_each_update(view, rng)
            return replace(alone, notes=[*alone.notes, str(why_not)])
        tried = replace(stage, scenes={number: scenes[number] for number in leaders})
        right = tried_on_make_believe(view, tried, [one.counts for one in results], rng)
        chosen = _rehearsed(layer.of, stage, results)
        by_itself = _read_by_itself(stage, results, right)
        if by_itself:
            chosen = _mixed(chosen, read_each_update(view, rng), by_itself)
        return replace(chosen, notes=[*layer.notes, *words_of(list(chosen.routes))])


def _is_exact(view: View, stage: RehearsalPlan, number: int, rng: torch.Generator) -> bool:
    """Whether a round's updates are read by themselves without error, whatever the shares and what the model knows."""
    kinds = stage.plan.kinds
    shares = broad_shares(len(kinds), stage.classes, kinds, rng)
    counts = [counts_of_shares(shares, update.samples) for update in stage.updates]
    unlike = (replace(stage.scenes[number], passes=passes) for passes in (stage.plan.known[0], stage.plan.known[-1]))
    tried = (tried_on_make_believe(view, replace(stage, scenes={number: scene}), counts, rng) for scene in unlike)
    return all(right.get(number, 0.0) > EXACT for right in tried)


def _read_by_itself(
    stage: RehearsalPlan, results: Sequence[RehearsedShares], right: dict[int, float]
) -> dict[int, float]:
    """Updates, by place, that are to be read by themselves, and what share of the labels is right then.

    Those of rounds whose make-believe clients are read better so, and those unlike all that was rehearsed. Both ways
    are judged on make-believe clients, so what real ones err more by is left out, but for UNREHEARSED.
    """
    hoped = {
        number: mean([1 - 0.5 * UNREHEARSED * one.error for one in _of_round(stage, results, number)])
        for number in {update.round for update in stage.updates}
    }
    shares = [right[nearest(update.round, right)] if right else 0.0 for update in stage.updates]
    told = enumerate(zip(stage.updates, results, shares, strict=True))
    return {place: share for place, (update, one, share) in told if not one.near or share > hoped[update.round]}


def _rehearsed(of: Sequence[Origin], stage: RehearsalPlan, results: Sequence[RehearsedShares]) -> LabelCounts:
    """What rehearsals say of all updates."""
    each = [certainty(one, update.samples) for one, update in zip(results, stage.updates, strict=True)]
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


def _mixed(rehearsed: LabelCounts, alone: LabelCounts, by_itself: dict[int, float]) -> LabelCounts:
    """`rehearsed`, but for some updates what they say alone; nobody is surer of these than of make-believe clients."""
    places = torch.tensor(list(by_itself))
    own = {name: getattr(rehearsed, name).clone() for name in ("counts", "sure", "confidence", "low", "high")}
    for name, values in own.items():
        values[places] = getattr(alone, name)[places].to(values.dtype)
    shares = torch.tensor(list(by_itself.values()), dtype=own["confidence"].dtype)
    own["confidence"][places] = own["confidence"][places].minimum(shares)
    routes = [alone.routes[place] if place in by_itself else route for place, route in enumerate(rehearsed.routes)]
    return replace(rehearsed, **own, routes=tuple(routes))


def widened(result: RehearsedShares) -> float:
    """How much larger a client's errors are taken to be than those of make-believe ones."""
    return enlarged(len(result.shares)) * result.doubt


def _of_round(stage: RehearsalPlan, results: Sequence[RehearsedShares], number: int) -> list[RehearsedShares]:
    return [one for one, update in zip(results, stage.updates, strict=True) if update.round == number]


def certainty(result: RehearsedShares, samples: int) -> tuple[Tensor, Tensor, float, Tensor, Tensor]:
    """Counts, how sure each is, the expected share of labels that are right, and bounds of the counts; (classes,) each.

    An estimate errs as those of make-believe clients do, by more where the auxiliary samples are few and where the
    client's rounds contradict each other.
    """
    counts = counts_of_shares(result.shares[None], samples)[0]
    errors = widened(result) * result.errors
    amounts, spread = samples * result.shares, samples * errors.square().mean(0).sqrt() + LEAST_SPREAD
    below, above = (torch.special.ndtr((counts + side - amounts) / spread) for side in (-0.5, 0.5))
    exact = above - torch.where(counts > 0, below, torch.zeros_like(below))
    expected = 1 - 0.5 * float(errors.abs().sum(1).mean())
    reach = float(torch.special.ndtri(torch.tensor((1 + COUNTS.stated) / 2, dtype=torch.float64))) * spread
    low, high = ((amounts + side * reach).round().clamp(0, samples).long() for side in (-1, 1))
    return counts, exact, min(max(expected, 0.0), 1.0), low, high
