"""The readings that the rule of `labels` picks from: what each makes of the last layer, as a posterior over counts."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.factorised_bayes import Hardness, bayes_counts, class_independent, hardness, leakage
from fedspill.leaks.labels.counts.lattice import Lattice, lattice_table
from fedspill.leaks.labels.counts.posterior import CountGrid, Posterior, more_likely, posterior
from fedspill.leaks.labels.counts.span_counts import SpanCounts
from fedspill.leaks.labels.counts.whole_counts import Steps, decoded
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.observe.probe import ModelAnswers

TRAINED = 0.05  # mean own probability above chance
HARDNESSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 0.85)
HARDNESS_DOUBT, HARDNESS_SPREAD, HARDNESS_SAMPLES = 0.5, 0.7, 5.0  # where no class's own is known
BLUR = 0.6  # relative doubt about a mean probability at the end of a violent drift


def is_trained(seen: ModelAnswers, classes: int) -> Tensor:
    """(origins,) whether the model knows classes apart, on labelled samples."""
    if seen.start_confusion is None:
        return torch.zeros(len(seen.start), dtype=torch.bool)
    own = seen.start_confusion.diagonal(dim1=1, dim2=2).mean(1)
    return own - 1 / classes > TRAINED


def moved(seen: ModelAnswers, steps: Steps) -> Tensor:
    """(origins, classes) how far drift may move a count, in samples, if it went straight from start to end."""
    if seen.end is None:
        return torch.zeros_like(seen.start)
    return 0.5 * steps.unit * steps.number * (seen.end - seen.start).abs().nan_to_num(torch.inf)


def reading(
    route: str, bias: Tensor, steps: Steps, seen: ModelAnswers, lattice: Lattice | None, rows: Tensor, *, doubt: bool
) -> Posterior:
    """What one route makes of some origins; `rows` are their places in the lattice. doubt: see lattice_table."""
    if route == "bayes":
        return bayes(bias, steps, mixed_hardness(seen, steps))
    if route == "unaided":
        return _unaided(bias, steps)
    if route in ("measured", "wire", "uniform"):
        middle = seen.start if seen.end is None else 0.5 * (seen.start + seen.end)
        inputs = steps.samples * seen.variance * (1 + steps.samples / seen.inputs)
        noise = (inputs + (0.5 * moved(seen, steps)).square()).sqrt()
        return decoded(steps.unit * (steps.number * middle - bias), steps, noise)
    if route in ("lattice", "scaled"):
        assert lattice is not None
        chosen = Lattice(*(getattr(lattice, name)[rows] for name in Lattice.__dataclass_fields__))
        end = None if seen.end is None else torch.where(seen.end.isfinite(), seen.end, seen.start)
        table, grid = lattice_table(chosen, bias, seen.start, end, steps, doubt=doubt)
        return posterior(table, grid, steps.samples)
    if route == "blurred":
        assert seen.end is not None
        middle = (seen.start + (steps.number - 1) * seen.end) / steps.number
        return bayes(bias, steps, class_independent(middle, BLUR))
    return _proportions(bias, steps)


def bayes(bias: Tensor, steps: Steps, model: Hardness, spans: SpanCounts | None = None) -> Posterior:
    pushed = -bias * (steps.samples / steps.number)
    first = ebi_counts(bias, torch.full((len(bias),), steps.samples))
    return bayes_counts(pushed, model, steps.samples, first, None if spans is None else spans.table)


def _unaided(bias: Tensor, steps: Steps) -> Posterior:
    """The hardness with most evidence, the same for all classes, and lost probability spread evenly over them."""
    return reduce(more_likely, (bayes(bias, steps, equally_hard(h, *bias.shape)) for h in HARDNESSES))


def equally_hard(mean: float, origins: int, classes: int) -> Hardness:
    """A model of which nothing is known but how hard its samples are on average."""
    each = torch.full((origins, classes), mean, dtype=torch.float64)
    flow = (1 - torch.eye(classes, dtype=torch.float64)) / max(classes - 1, 1)
    spread = HARDNESS_SPREAD * each * (1 - each)
    return Hardness(
        each, (HARDNESS_DOUBT * each).square(), spread, flow.expand(origins, classes, classes), HARDNESS_SAMPLES
    )


def mixed_hardness(seen: ModelAnswers, steps: Steps) -> Hardness:
    """What local training meets: the start model in the first step, close to the end model in the others."""
    assert seen.start_confusion is not None
    assert seen.start_second is not None
    if seen.end_confusion is None or seen.end_second is None or steps.number == 1:
        return hardness(seen.start_confusion, seen.start_second, seen.per_class)
    first = 1 / steps.number
    sound = seen.end_confusion.isfinite().all(2).all(1)
    late = torch.where(sound[:, None, None], seen.end_confusion, seen.start_confusion)
    late_second = torch.where(sound[:, None], seen.end_second, seen.start_second)
    return hardness(
        first * seen.start_confusion + (1 - first) * late,
        first * seen.start_second + (1 - first) * late_second,
        seen.per_class,
    )


def _proportions(bias: Tensor, steps: Steps) -> Posterior:
    """EBI's counts as a broad guess: its own scale, half as much doubt as it says, and a sample more or less."""
    guess = ebi_counts(bias, torch.full((len(bias),), steps.samples)).double()
    noise = 0.5 * guess + 1
    grid = CountGrid.around(guess - 4 * noise, guess + 4 * noise, steps.samples)
    table = -0.5 * ((grid.counts - guess[..., None]) / noise[..., None]).square()
    return posterior(table, grid, steps.samples)


def bias_from_weights(weight_sums: Tensor, steps: Steps, outlook: ModelAnswers | None) -> Tensor:
    """What the last bias would have received, from the weight gradient summed over features (origins, classes).

    Where features hardly differ between samples, weight and bias gradient are proportional; the factor is read off the
    absent classes, whose gradient is their mean probability, or, for a trained model, off the size of the gradient that
    its confidence lets expect.
    """
    classes = weight_sums.shape[1]
    start = torch.full_like(weight_sums, 1 / classes) if outlook is None else outlook.start
    factor = (weight_sums / (steps.number * start.clamp_min(1e-9))).median(1, keepdim=True).values
    if outlook is not None and bool(is_trained(outlook, classes).any()):
        model = mixed_hardness(outlook, steps)
        counts = ebi_counts(weight_sums, torch.full((len(weight_sums),), steps.samples)).double()
        leak, _ = leakage(counts, model)
        expected = (counts * model.mean - leak).clamp_min(0).sum(1, keepdim=True) * (steps.number / steps.samples)
        measured = (-weight_sums).clamp_min(0).sum(1, keepdim=True)
        factor = torch.where(is_trained(outlook, classes)[:, None], measured / expected.clamp_min(1e-9), factor)
    # Features that cancel out (tanh, GELU) give a factor of either sign or none; then only proportions are left.
    typical = weight_sums.abs().mean(1, keepdim=True).clamp_min(1e-30)
    return weight_sums / torch.where(factor > 1e-6 * typical, factor, typical)
