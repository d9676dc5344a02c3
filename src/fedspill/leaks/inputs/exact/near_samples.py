"""Samples that nearly explain several epochs: the same update read in several ways, and judged by training again.

Which way is best depends on how far the model moved, on the number of samples and on the widths, and nobody needs to
know: training on what a way found, as the client did, tells how much of the update it leaves. From the best one,
solving for one step and training again, in turns, leads on (mean_weights.py). Where that does not end at the update,
all samples are moved together (moved_together.py), which needs neither a threshold nor all of them found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.exact.explained_update import (
    can_be_trained_again,
    labels_by_last_layer,
    room_for_rounding,
)
from fedspill.leaks.inputs.exact.front import Front
from fedspill.leaks.inputs.exact.local_steps import pair_gradients_in
from fedspill.leaks.inputs.exact.mean_weights import (
    Explanation,
    OneStepSolver,
    explanation,
    mean_share,
    one_step_after,
    one_step_at,
)
from fedspill.leaks.inputs.exact.moved_together import moved_together
from fedspill.leaks.inputs.exact.roots_of_sums import roots_of_sum
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, descend, find_roots, is_known
from fedspill.leaks.inputs.exact.two_linear_layers import gradient_bases
from fedspill.leaks.inputs.observed_gradients import AttackedMessage

MOST_SAMPLES = 32  # none is taken out of the update, so that more are not told apart
NEAR = 0.1  # share of the update that a way may leave for no other one to be tried
STRAY = 0.15  # residual of the span condition from which on a sample is sought anew
SAME_SAMPLE = 0.25  # relative distance within which two ways have found the same sample, each with its error
MOST_OTHERS = 6  # candidates that are tried in the places of samples
MOST_UNKNOWNS = 256  # B * B, of samples that are moved together
POLISH = 20  # moves of a sample towards the corrected message


@dataclass(frozen=True)
class Reading:
    """At which weights the span condition is asked for, and in how many directions of the two layers' changes."""

    at_mean: bool  # of the way; else at the weights that were handed out
    all_fed: bool  # in all directions that the first layer was fed in at any step; else one for each sample
    all_steps: bool  # the same for the second layer


# Exact, if steps have few directions together: at the first weights, in all directions. The others are near, and have
# fewer unknowns.
READINGS = (
    Reading(at_mean=False, all_fed=True, all_steps=True),
    Reading(at_mean=False, all_fed=False, all_steps=True),
    Reading(at_mean=True, all_fed=False, all_steps=True),
    Reading(at_mean=True, all_fed=False, all_steps=False),
)


def nearly_explaining(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, rng: torch.Generator, scale: float | None = None
) -> Explanation | None:
    """As many samples as the client has, as near as they come; None where no way finds half of them.

    `scale`: the norm of what the first linear layer is fed, if it is known. Raises CannotRecover where the network does
    not begin with a linear pair, or convolutions and one.
    """
    room = room_for_rounding(attacked)
    # Moved together, samples take what training on them sends for what the client sent, so its steps must be known.
    together = can_be_trained_again(attacked) and attacked.samples**2 <= MOST_UNKNOWNS
    best, read = _read_in_ways(attacked, shape, classes, rng, scale, alone=not together)
    solve = _solver(shape, rng, scale)
    if best is not None:
        best = explanation(attacked, best.x, best.labels, classes, solve, room / 2)
    if together and (best is None or best.missed > room):
        moved = moved_together(attacked, shape, classes, rng, read)
        moved = explanation(attacked, moved.x, moved.labels, classes, solve, room / 2)
        best = min(moved, best or moved, key=lambda one: one.missed)
    return best


def _read_in_ways(
    attacked: AttackedMessage,
    shape: tuple[int, ...],
    classes: int,
    rng: torch.Generator,
    scale: float | None,
    *,
    alone: bool,
) -> tuple[Explanation | None, Tensor]:
    """The best that readings find, None where that is less than half of the samples, and all (k, *shape) that they do.

    Where nothing follows (`alone`), each reading is tried twice, and what one finds also in the places of what others
    did.
    """
    middle = one_step_at(attacked, mean_share(attacked))

    def judged(x: Tensor) -> Explanation:
        labels = labels_by_last_layer(middle, x)
        return Explanation(x, labels, one_step_after(attacked, x, labels, classes)[1])

    size, best, every = attacked.samples, None, list[Tensor]()
    pool = torch.zeros(0, *shape, dtype=torch.float64)
    for reading in (*READINGS, *READINGS[1:]) if alone else READINGS:  # what is random may find more the second time
        x = _read(attacked, reading, shape, rng, scale)
        every.append(x)
        pool = _unlike(torch.cat([pool, x]))
        full = [judged(part[:size]) for part in (x, pool) if len(part) >= size]
        best = min([*full, *([best] if best else [])], key=lambda one: one.missed, default=None)
        if best is not None and alone and best.missed > NEAR:
            best = _exchanged(best, _unlike(torch.cat([best.x, x, pool]))[size:], judged)
        if best is not None and best.missed < NEAR:
            break
    if best is None and 2 * len(pool) >= size:  # what was not found begins as the mean of the others
        best = judged(torch.cat([pool, pool.mean(0).expand(size - len(pool), *shape)]))
    return best, torch.cat(every)


def _read(
    attacked: AttackedMessage, reading: Reading, shape: tuple[int, ...], rng: torch.Generator, scale: float | None
) -> Tensor:
    """(k, *shape) the samples that are found by reading the update in this way."""
    message = one_step_at(attacked, mean_share(attacked) if reading.at_mean else 0.0)
    front = Front.of(message.model, shape, mixing=bool(attacked.norms.by_batch))
    steps = (
        attacked.steps if reading.all_fed and front.below is not None else 1,
        attacked.steps if reading.all_steps else 1,
    )
    gradients = pair_gradients_in(message.gradients, front.pair)
    features = roots_of_sum(front.pair, gradients, attacked.samples, steps, rng, scale=scale or front.usual_norm(rng))
    return front.samples(features, None)


def _unlike(x: Tensor) -> Tensor:
    """Those of x (k, *shape) that are not like one before them."""
    known = x.flatten(1)[:0]
    for one in x.flatten(1):
        if not len(known) or float(((known - one).norm(dim=1) / one.norm()).min()) > SAME_SAMPLE:
            known = torch.cat([known, one[None]])
    return known.reshape(-1, *x.shape[1:])


def _exchanged(best: Explanation, others: Tensor, judged: Callable[[Tensor], Explanation]) -> Explanation:
    """The samples with some of the others in the places of those that explain less."""
    for other in others[:MOST_OTHERS]:
        tries = []
        for place in range(len(best.x)):
            x = best.x.clone()
            x[place] = other
            tries.append(judged(x))
        best = min([best, *tries], key=lambda one: one.missed)
    return best


def _solver(shape: tuple[int, ...], rng: torch.Generator, scale: float | None) -> OneStepSolver:
    """Samples of one step at weights that are given, from samples that are near; those that stray are sought anew."""

    def solve(message: AttackedMessage, x: Tensor) -> Tensor:
        front = Front.of(message.model, shape, mixing=bool(message.norms.by_batch))
        bases = gradient_bases(front.pair, pair_gradients_in(message.gradients, front.pair), len(x), rng, drifts=True)
        one, layer = bases.first, front.pair.first
        condition = SpanCondition.of(
            layer.weight @ one.right, layer.bias, front.pair.between, bases.second.right, bases.bias_equation
        )
        y, residual = descend(condition, condition.y(front.features(x) @ one.right), POLISH, weighted=False)
        q, places = condition.q(y)[:0], list[int]()
        for place in residual.argsort().tolist():
            root = condition.q(y[place])
            if float(residual[place]) < STRAY and not is_known(root, q):
                q, places = torch.cat([q, root[None]]), [*places, place]
        if len(q) < len(x):
            length = scale or front.usual_norm(rng)
            q = find_roots(condition, len(x), scale=length, tolerance=STRAY, rng=rng, spread=one.sizes, known=q)
        order = [*places, *(place for place in range(len(x)) if place not in places)][: len(q)]
        solved = x.clone()
        solved[order] = front.samples(q @ one.right.T, x[order])
        return solved

    return solve
