"""Decaf by rehearsal: which clients are rehearsed, and what takes the place of their path shares."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedspill.errors import NotApplicable
from fedspill.leaks.composition.shares.combined_rounds import Composition
from fedspill.messages import Message
from fedspill.observe.local_changes import LocalChange
from fedspill.observe.rehearsal_plan import plan_rehearsal
from fedspill.observe.rehearsed_result import RehearsedShares
from fedspill.observe.rehearsed_shares import rehearsed
from fedspill.trace import Origin, View

NOISE = 12.0  # over the samples: what a path may leave open; samples leave 1 to 5 by their noise, turning walks 20
MOST_FLOPS = 1e12  # of an update's rehearsals: a client is asked for its composition once (convention)


def rehearse_unexplained(
    view: View,
    read: Sequence[LocalChange],
    found: list[Composition],
    together: Sequence[Sequence[int]],
    *,
    plain: bool,
    joint: bool,
    rng: torch.Generator,
) -> list[str]:
    """Replaces in `found` the path's shares of clients whom the path does not explain; returns notes.

    `together` are the messages read as one. plain: SGD, for which a path that explains a round as well as the noise of
    so many samples allows is better than any rehearsal. Whoever sent nothing like the rehearsals is left to the path.
    """
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
        joint = joint and stage.same
        results, _ = rehearsed(stage.scenes, stage.updates, stage.classes, rng, stage.plan, joint=joint, layers=True)
    except NotApplicable as why_not:
        return [str(why_not)]
    unlike = 0
    for index, result in zip(wanted, results, strict=True):
        unlike += not result.near
        if result.near:
            found[index] = _replaced(found[index], result)
    notes = [f"{len(wanted) - unlike} of {len(read)} by rehearsal on auxiliary data"]
    return notes + ([f"{unlike} sent nothing like their rehearsals: read by path bases"] if unlike else [])


def _is_explained(path: Composition, samples: int) -> bool:
    """Whether what the path leaves open is no more than the noise of a mean over so many samples."""
    return (1 - path.agreement**2) * samples < NOISE


def _replaced(path: Composition, result: RehearsedShares) -> Composition:
    known = result.counts.double() / result.counts.sum(1, keepdim=True)
    open_ = float(result.errors.square().sum() / (known - 1 / known.shape[1]).square().sum().clamp_min(1e-12))
    shares = result.shares * ~path.null
    return Composition(shares / shares.sum().clamp_min(1e-12), path.null, max(1 - open_, 0.0) ** 0.5, 1.0)
