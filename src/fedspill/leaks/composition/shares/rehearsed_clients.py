"""Decaf by rehearsal: which clients are rehearsed, and how it is weighed beside what the whole last layer says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.composition.shares.combined_rounds import Composition, over_rounds
from fedspill.leaks.composition.shares.two_opinions import Opinion, weights_of_second, whole_layer_shares
from fedspill.messages import Message
from fedspill.observe.local_changes import KnownFederation, LocalChange
from fedspill.observe.rehearsal_plan import plan_rehearsal
from fedspill.observe.rehearsed_shares import RehearsedShares, rehearsed
from fedspill.trace import Origin, View

NOISE = 12.0  # over the samples: what a path may leave open; samples leave 1 to 5 by their noise, turning walks 20
MOST_FLOPS = 1e12  # of an update's rehearsals: a client is asked for its composition once (convention)


def rehearse_unexplained(
    view: View,
    read: Sequence[LocalChange],
    found: list[Composition],
    together: Sequence[Sequence[int]],
    federation: KnownFederation,
    *,
    joint: bool,
    rng: torch.Generator,
) -> list[str]:
    """Replaces in `found` the path's shares of clients whom the path does not explain; returns notes.

    `together` are the messages read as one. Under plain SGD a path that explains a round as well as the noise of so
    many samples allows is better than any rehearsal. Whoever sent nothing like the rehearsals is left to the path.
    """
    plain = federation.optimizer.name == "sgd"
    wanted = [
        index
        for rounds in together
        if not (plain and any(_is_explained(found[i], read[i].samples) for i in rounds))
        for index in rounds
        if read[index].steps > 1
    ]
    if not wanted:
        return []
    sent = {Origin(m.round, m.sender): m for kind in ("update", "gradient") if view.sees(kind) for m in view.get(kind)}
    messages: list[Message] = [sent[read[index].of] for index in wanted]
    try:
        stage = plan_rehearsal(view, messages, MOST_FLOPS)
        results, _ = rehearsed(stage.scenes, stage.updates, stage.classes, rng, stage.plan, joint=joint and stage.same)
    except NotApplicable as why_not:
        return [str(why_not)]
    near = {index: result for index, result in zip(wanted, results, strict=True) if result.near}
    groups = [mine for rounds in together if (mine := [index for index in rounds if index in near])]
    firsts = [_opinion([near[index] for index in mine]) for mine in groups]
    seconds = [
        whole_layer_shares([read[i] for i in mine], [found[i].null for i in mine], federation)
        if plain  # steps that are rescaled are no sum of gradients: there it is what the path says
        else over_rounds([found[i] for i in mine], exact=False).shares
        for mine in groups
    ]
    weights = weights_of_second(firsts, seconds).tolist() if groups else []
    for mine, second, weight in zip(groups, seconds, weights, strict=True):
        for index in mine:
            found[index] = _replaced(found[index], near[index], second, weight)
    notes = [f"{len(near)} of {len(read)} by rehearsal on auxiliary data"]
    if weights:
        notes.append(f"beside it the whole last layer counts for {sum(weights) / len(weights):.0%}")
    unlike = len(wanted) - len(near)
    return notes + ([f"{unlike} sent nothing like their rehearsals: read by path bases"] if unlike else [])


def _opinion(results: Sequence[RehearsedShares]) -> Opinion:
    """What the rehearsals of a client's messages say, with the error that they state."""
    stated = [float((one.errors * one.lack).square().sum(1).mean()) for one in results]
    left = [_left_open(one) for one in results]
    shares = torch.stack([one.shares for one in results]).mean(0)
    return Opinion(shares, sum(stated) / len(stated), sum(left) / len(left))


def _left_open(result: RehearsedShares) -> float:
    """The share of what make-believe clients differ by from even shares that their estimates get wrong."""
    known = result.counts.double() / result.counts.sum(1, keepdim=True)
    return float(result.errors.square().sum() / (known - 1 / known.shape[1]).square().sum().clamp_min(1e-12))


def _is_explained(path: Composition, samples: int) -> bool:
    """Whether what the path leaves open is no more than the noise of a mean over so many samples."""
    return (1 - path.agreement**2) * samples < NOISE


def _replaced(path: Composition, result: RehearsedShares, second: Tensor, weight: float) -> Composition:
    """Both opinions, the second by its weight; together they leave less open than rehearsal by itself does."""
    shares = ((1 - weight) * result.shares + weight * second) * ~path.null
    agreement = max(1 - (1 - weight) * _left_open(result), 0.0) ** 0.5
    return Composition(shares / shares.sum().clamp_min(1e-12), path.null, agreement, 1.0)
