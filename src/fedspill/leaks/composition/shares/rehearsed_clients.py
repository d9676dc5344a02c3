"""Decaf by rehearsal: which clients are rehearsed, and what takes the place of their path shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from fedspill.leaks.composition.shares.combined_rounds import Composition, over_rounds
from fedspill.leaks.composition.shares.rehearsed_shares import Rehearsed, Seen, rehearsed_shares
from fedspill.observe.local_changes import KnownFederation, LocalChange
from fedspill.observe.rehearsal import rehearsed_head_changes
from fedspill.progress import Progress
from fedspill.training import LocalTraining

STEPS = 8_000  # of local training spent on a client: rounds beyond the first add precision as far as these go
NOISE = 12.0  # over the samples: what a path may leave open; samples leave 1 to 5 by their noise, turning walks 20
MOST = 200  # clients rehearsed in one call; a larger trace is read by the path beyond that
MOST_STEPS = 40_000  # that two draws may cost: a message can claim any number of samples
MOST_SAMPLES = 1_000_000  # of a client


def rehearse_unexplained(
    read: Sequence[LocalChange],
    found: list[Composition],
    together: Sequence[Sequence[int]],
    federation: KnownFederation,
    training: LocalTraining,
    exact: bool,
    rehearsals: int,
    rng: torch.Generator,
    progress: Progress,
) -> list[str]:
    """Replaces in `found` the path's shares of clients whom the path does not explain; returns notes.

    `together` are the messages read as one, `exact` says whether the null test is a theorem here. The path of plain SGD
    that explains a round as well as the noise of so many samples allows is better than any rehearsal, and so is a
    single step. Trainings that are too long to be repeated so often are left to the path.
    """
    wanted = []
    for rounds in together:
        explained = federation.optimizer.name == "sgd" and any(_is_explained(found[i], read[i].samples) for i in rounds)
        # The earlier a round, the less the model knows, and the more it learns from the client.
        early = sorted((i for i in rounds if _is_affordable(read[i], rehearsals)), key=lambda i: read[i].of.round)
        if early and not explained:
            wanted.append((rounds, early[: max(1, STEPS // (rehearsals * read[early[0]].steps) - 1)]))
    labels, unlike, missed = federation.auxiliary.y.cpu(), 0, 0
    with progress.bar("rehearsing clients", len(wanted[:MOST])) as bar:
        for done, (rounds, early) in enumerate(wanted[:MOST]):
            bar(done, "")
            shown = ~over_rounds([found[index] for index in rounds], exact).null
            seen = [
                Seen(
                    read[i].moved,
                    read[i].samples,
                    partial(rehearsed_head_changes, federation, training, read[i].before, rng=rng),
                )
                for i in early
            ]
            results, allowed = rehearsed_shares(seen, found[early[0]].shares, shown, labels, rehearsals, rng)
            near = {index: result for index, result in zip(early, results, strict=True) if result.near}
            unlike += not near
            missed += int((allowed & ~shown).sum()) if near else 0
            for index in rounds if near else ():
                found[index] = _replaced(replace(found[index], null=~allowed), near.get(index))
    notes = [f"{len(wanted[:MOST]) - unlike} of {len(together)} by rehearsal on auxiliary data"] if wanted else []
    notes += [f"{missed} classes called absent by the null test are there by rehearsal: no theorem"] if missed else []
    notes += [f"{unlike} sent nothing like their rehearsals: read by path bases"] if unlike else []
    return notes + ([f"{len(wanted) - MOST} more not rehearsed: read by path bases"] if len(wanted) > MOST else [])


def _is_affordable(change: LocalChange, rehearsals: int) -> bool:
    return 1 < change.steps <= MOST_STEPS // (2 * rehearsals) and change.samples <= MOST_SAMPLES


def _is_explained(path: Composition, samples: int) -> bool:
    """Whether what the path leaves open is no more than the noise of a mean over so many samples."""
    return (1 - path.agreement**2) * samples < NOISE


def _replaced(path: Composition, result: Rehearsed | None) -> Composition:
    """Of a client that was rehearsed, a round without result does not count."""
    if result is None:
        return replace(path, weight=0.0, agreement=0.0)
    return Composition(result.shares, path.null, result.agreement, result.error**-2)
