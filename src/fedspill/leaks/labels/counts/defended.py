"""Label counts behind a defense that the adversary knows: noise, clipping, sparse or coarse messages, a frozen head.

Each origin gives, for every class, an estimate of its count with a standard deviation:

    what is read      the last bias, and by layer_signals.py every linear layer, weighted by how noisy each is;
    noise             its size is public, so it is part of the likelihood and not of the counts;
    clipping          the scale is the one at which counts are most likely: absent classes read zero;
    compression       a coordinate that was not sent says that it was small;
    smoothing         its share is public and is taken out;
    public samples    what a class pushes beyond what they let expect;
    several rounds    a client that trains on all its data each time is one client: its estimates are averaged.

Priors and the decision are those of posterior.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.defended_layers import LayerReadings
from fedspill.leaks.labels.counts.factorised_bayes import leakage
from fedspill.leaks.labels.counts.posterior import Posterior, apportioned, best_tails, posterior
from fedspill.leaks.labels.counts.readings import ReadCounts, is_trained, mixed_hardness, read
from fedspill.leaks.labels.counts.whole_counts import Steps, amount_table
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.observe.probe import ModelAnswers

KNOWN = "known"


def read_defended(
    wire: KnownDefenses,
    seen: LayerReadings,
    steps: Steps,
    outlook: ModelAnswers | None,
    groups: Sequence[int],
    expected_scale: Callable[[int, Tensor], float] | None = None,
    *,
    plain: bool,
) -> ReadCounts:
    """Counts of all origins; those of equal group number hold the same samples.

    expected_scale: what clipping would leave of the gradient of origin i if its counts (classes,) were these.
    """
    origins, classes = seen.beta.shape
    view = outlook or ModelAnswers(torch.full_like(seen.beta, 1 / classes), torch.zeros_like(seen.beta), 1)
    if wire.effect.topped_up:
        return _contrast(seen, steps, view, groups)
    trained = is_trained(view, classes)
    if wire.effect.scale_unknown and expected_scale is not None:
        # What the model itself says about the norm of such a batch narrows the scale down; EBI needs no scale to begin.
        counts = ebi_counts(seen.beta, torch.full((origins,), steps.samples))
        for _ in range(2):
            expected = torch.tensor([expected_scale(index, row) for index, row in enumerate(counts)]).double()
            scale = _scale(wire, seen, steps, view, trained, expected)
            found = _posterior(seen, steps, view, scale, *_amounts(wire, seen, steps, view, trained, scale))
            counts = best_tails(found)
    else:
        scale = _scale(wire, seen, steps, view, trained, None)
    amounts, spread = _amounts(wire, seen, steps, view, trained, scale)
    quiet = (
        bool((steps.unit * seen.noise / scale[:, None] < COUNTS.clean).all())
        and not wire.effect.dropped
        and not wire.effect.smoothed
    )
    if quiet and bool((seen.own < 1e-4).all()):
        return read(seen.beta / scale[:, None], steps, outlook, plain=plain).each_alone()
    amounts, spread = _pooled(amounts, spread, groups)
    found = _posterior(seen, steps, view, scale, amounts, spread)
    return ReadCounts.by(found, best_tails(found), KNOWN)


def _contrast(seen: LayerReadings, steps: Steps, view: ModelAnswers, groups: Sequence[int]) -> ReadCounts:
    """Counts where public samples fill up the rare classes: only how private samples differ from public ones is left.

    Everybody trains on the public samples, so a model knows them better and they push less. What a class pushes beyond
    what the public samples let expect, compared between classes and averaged over rounds, tells where the private ones
    are.
    """
    origins, classes = seen.beta.shape
    pushed = -seen.beta
    if view.start_confusion is not None:
        off = view.start_confusion * (1 - torch.eye(classes, dtype=torch.float64))
        usual = 1 - view.start_confusion.diagonal(dim1=1, dim2=2) - off.sum(1)
        fit = (pushed * usual).sum(1, keepdim=True) / usual.square().sum(1, keepdim=True).clamp_min(1e-12)
        pushed = pushed - fit * usual
    pushed = pushed / pushed.std(1, keepdim=True).clamp_min(1e-12)
    mean, _ = _pooled(pushed, torch.ones_like(pushed), groups)
    above = (mean - mean.quantile(COUNTS.filled, dim=1, keepdim=True)).clamp_min(0)
    shares = above / above.sum(1, keepdim=True).clamp_min(1e-12)
    counts = apportioned(steps.samples * shares, steps.samples)
    doubt = torch.full((origins, classes), 1 / classes, dtype=torch.float64)
    nothing, everything = torch.zeros_like(counts), torch.full_like(counts, steps.samples)
    return ReadCounts(counts, doubt, doubt.mean(1), nothing, everything, (KNOWN,) * origins)


def _amounts(
    wire: KnownDefenses, seen: LayerReadings, steps: Steps, view: ModelAnswers, trained: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Each class's count and its standard deviation (origins, classes), not yet whole."""
    beta, noise = seen.beta / scale[:, None], seen.noise / scale[:, None]
    blur, classes = wire.effect.smoothed, beta.shape[1]
    middle = view.start if view.end is None else 0.5 * (view.start + view.end.nan_to_num(0.0))
    if wire.noisy or view.end is None or not bool(view.end.isfinite().all()):
        middle = view.start  # the end of a noised update is the end of no training
    untrained = steps.unit * (steps.number * (middle - blur / classes) - beta) / (1 - blur)
    inputs = steps.samples * view.variance * (1 + steps.samples / view.inputs)
    counts = untrained.clamp(0, steps.samples)
    misfit = seen.own * counts + seen.other * (steps.samples - counts)
    spread = ((steps.unit * noise / (1 - blur)).square() + inputs + misfit).sqrt().clamp_max(COUNTS.unsent)
    if not bool(trained.any()):
        return untrained, spread
    model = mixed_hardness(view if not wire.noisy else replace(view, end_confusion=None, end_second=None), steps)
    pushed, pushed_noise = -beta * (steps.samples / steps.number), noise * (steps.samples / steps.number)
    counts = ebi_counts(beta, torch.full((len(beta),), steps.samples)).double()
    for _ in range(COUNTS.leak_turns):
        leak, leak_variance = leakage(counts, model)
        slope = (model.mean - blur).clamp_min(0.02)
        amounts = (pushed + leak - blur * steps.samples / classes) / slope
        counts = amounts.clamp_min(0)
        counts = counts * (steps.samples / counts.sum(1, keepdim=True).clamp_min(1e-9))
    variance = counts * model.spread + counts.square() * model.doubt + leak_variance + pushed_noise.square()
    variance = variance + (seen.own * counts + seen.other * (steps.samples - counts)) * slope.square()
    known = trained[:, None]
    return torch.where(known, amounts, untrained), torch.where(known, variance.sqrt() / slope, spread).clamp_max(
        COUNTS.unsent
    )


def _scale(
    wire: KnownDefenses, seen: LayerReadings, steps: Steps, view: ModelAnswers, trained: Tensor, expected: Tensor | None
) -> Tensor:
    """(origins,) the share that clipping left of an update: the one at which counts are most likely.

    expected (origins,): what it should be, by the norm that the model would give such a batch.
    """
    ones = torch.ones(len(seen.beta), dtype=torch.float64)
    # A trained model fits its client within a few steps, which shrinks what it says as clipping does.
    drifting = steps.number > 1 and bool(trained.any())
    if not drifting and (not wire.effect.scale_unknown or bool(seen.whole.all())):
        return ones
    best, evidence = ones, torch.full_like(ones, -torch.inf)
    if expected is None:
        candidates = [ones * share for share in torch.logspace(0, -1.5, COUNTS.scales, dtype=torch.float64)]
    else:
        nudges = (0.85, 0.92, 0.96, 1.0, 1.04, 1.08, 1.16)
        candidates = [(expected * nudge).clamp(1e-3, 1.0) for nudge in nudges]
    if not bool(trained.any()) and seen.beta.shape[1] >= 20:
        # Absent classes read nothing but their mean probability: where most are absent, that is the scale.
        absent = (seen.beta / (steps.number * view.start.clamp_min(1e-9))).median(1).values
        candidates += [(absent * nudge).clamp(1e-3, 1.0) for nudge in (0.97, 1.0, 1.03)]
    for scale in candidates:
        amounts, spread = _amounts(wire, seen, steps, view, trained, scale)
        spread = (spread.square() + 0.05**2 + (0.03 * amounts).square()).sqrt()  # steps are not all clipped alike
        found = _posterior(seen, steps, view, scale, amounts, spread)
        density = found.evidence - spread.log().sum(1) - seen.beta.shape[1] * scale.log()
        density = density + COUNTS.unclipped_odds * (scale > 0.999)
        if expected is not None:
            density = density - 0.5 * ((scale / expected).log() / COUNTS.scale_doubt).square()
        better = density > evidence
        best, evidence = torch.where(better, scale, best), torch.where(better, density, evidence)
    return torch.where(seen.whole & ~trained, ones, best)


def _posterior(
    seen: LayerReadings,
    steps: Steps,
    view: ModelAnswers,
    scale: Tensor,
    amounts: Tensor,
    spread: Tensor,
) -> Posterior:
    # A sample of the short last step weighs a little more: that can be told only where there is little noise.
    told_apart = float(spread.median()) < COUNTS.clean
    table, grid = amount_table(amounts, spread.clamp_min(0.02), steps if told_apart else replace(steps, short=0))
    hidden = seen.high.isfinite()
    if bool(hidden.any()):
        # Not sent: the count lies where the coordinate would have been small.
        middle = steps.unit * steps.number * view.start
        most = (middle + steps.unit * seen.high / scale[:, None])[..., None]
        least = (middle + steps.unit * seen.low / scale[:, None])[..., None]
        outside = (grid.counts - most).clamp_min(0) + (least - grid.counts).clamp_min(0)
        table = torch.where(hidden[..., None], -0.5 * (outside / 0.3).square(), table)
    return posterior(table, grid, steps.samples, favoured=True)


def _pooled(amounts: Tensor, spread: Tensor, groups: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The same for all origins of a group: the mean, each weighted by its precision."""
    index = torch.tensor(groups)
    number = int(index.max()) + 1
    precision = spread.clamp_min(0.02).square().reciprocal()
    total = torch.zeros(number, amounts.shape[1], dtype=torch.float64).index_add_(0, index, precision)
    mean = torch.zeros_like(total).index_add_(0, index, precision * amounts) / total
    return mean[index], total[index].rsqrt()
