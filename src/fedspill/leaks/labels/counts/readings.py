"""The readings of an update by itself: each returns a posterior over counts and how likely it makes what was seen.

All say how probable the summed gradient of the last bias is under some counts, in the same unit: samples. So their
evidence can be compared, and the reading that makes what was observed most likely is believed. No rule looks at how
trained a model seems or how far it seems to have drifted: where an assumption does not hold, its evidence is low.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.factorised_bayes import Hardness, bayes_counts, hardness, leakage
from fedspill.leaks.labels.counts.lattice import fit, lattice_posterior
from fedspill.leaks.labels.counts.posterior import (
    CountGrid,
    Posterior,
    certainty,
    decide,
    interval,
    more_likely,
    posterior,
)
from fedspill.leaks.labels.counts.span_counts import SpanCounts
from fedspill.leaks.labels.counts.whole_counts import Steps, decoded
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.observe.probe import ModelAnswers


@dataclass(frozen=True, eq=False)
class ObservedLayers:
    """What several origins with one schedule sent, and what the adversary measured beside it."""

    bias: Tensor  # (origins, classes) the gradients of the steps of one pass, summed
    steps: Steps
    answers: ModelAnswers  # of the model, to the adversary's inputs or to the clients' own mean features
    spans: SpanCounts | None = None  # what the hidden layers say
    scaled: bool = True  # the gradients' size is known: False where they were had from those of the weights
    pulls: Tensor | None = None  # (origins, classes) what is negative in the weights' gradients, feature by feature
    pulls_weight: float = 0.5  # where they are mixed with LLBG: how much of them, as clients that come back say

    @property
    def end(self) -> Tensor | None:
        """(origins, classes) the mean probabilities after training; those before where training diverged."""
        after = self.answers.end
        return None if after is None else torch.where(after.isfinite(), after, self.answers.start)

    @property
    def drift(self) -> Tensor:
        """(origins, classes) how far drift may move a count, in samples, if it went straight from start to end."""
        if self.answers.end is None:
            return torch.zeros_like(self.bias)
        moved = (self.answers.end - self.answers.start).abs().nan_to_num(torch.inf)
        return 0.5 * self.steps.unit * self.steps.number * moved


@dataclass(frozen=True, eq=False)
class WeighedCounts:
    """What one reading says, and how likely it makes what was observed."""

    best: Posterior  # by which counts are decided
    doubtful: Posterior  # by which it is said how sure they are; the same, unless more doubt is due
    evidence: Tensor  # (origins,) log density of what was observed, in samples
    spread: Tensor | None = None  # (origins, classes) samples, where counts are off by more than a posterior says


class CountReading(ABC):
    """One way to read counts off the last bias."""

    name: ClassVar[str]
    words: ClassVar[str]  # for the notes of a guess
    sure_power: ClassVar[float] = COUNTS.modelled_sure_power

    def applies(self, seen: ObservedLayers) -> bool:
        """Whether there is something to read."""
        return True

    @abstractmethod
    def weigh(self, seen: ObservedLayers) -> WeighedCounts:
        """Of all origins."""


@final
class MeasuredProbability(CountReading):
    """The model gives all inputs the mean probability that was measured: each sample adds one to its class.

    A model that tells classes apart gives a class more on its own samples, which then add less than one. By how much
    follows from how its answers vary: if probabilities mean what they say, a class has E[p^2] / E[p] on its samples.
    So much of each count is in doubt; of a fresh model next to nothing.
    """

    name = "measured"
    words = "mean probability measured, counts decoded"
    sure_power = 1.0

    def weigh(self, seen: ObservedLayers) -> WeighedCounts:
        answers, steps = seen.answers, seen.steps
        middle = answers.start if answers.end is None else 0.5 * (answers.start + answers.end.nan_to_num(0.0))
        inputs = steps.samples * answers.variance * (1 + steps.samples / answers.inputs)
        amounts = steps.unit * (steps.number * middle - seen.bias)
        told_apart = (answers.variance / answers.start.clamp_min(1e-12)).clamp_max(1) * amounts.clamp(0, steps.samples)
        noise = (inputs + (0.5 * seen.drift).square() + told_apart.square()).sqrt()
        found = decoded(amounts, steps, noise)
        return WeighedCounts(found, found, found.evidence)


@final
class DriftLattice(CountReading):
    """The model drifts, but classes that are rare keep their proportions and have whole counts (lattice.py)."""

    name = "lattice"
    words = "drift read off the update: rare classes must have whole counts; an untrained model is assumed"
    sure_power = 1.0

    def applies(self, seen: ObservedLayers) -> bool:
        return seen.bias.shape[1] >= COUNTS.lattice_classes

    def weigh(self, seen: ObservedLayers) -> WeighedCounts:
        found = fit(seen.bias, seen.answers.start, seen.end, seen.steps)
        best, doubtful = (
            lattice_posterior(found, seen.bias, seen.answers.start, seen.end, seen.steps, doubt=doubt)
            for doubt in (False, True)
        )
        # The best of many times was taken: before the update was seen, each of them had its share of the probability.
        evidence = doubtful.evidence - math.log(found.tried)
        return WeighedCounts(best, doubtful, torch.where(found.stands_out(), evidence, -torch.inf))


@final
class TrainedModel(CountReading):
    """Samples push as far as the model is unsure of them, which labelled samples tell (factorised_bayes.py).

    Where the hidden layers can be read, they say which samples were there (span_counts.py). The other readings have
    nothing to say of hidden layers, so that their evidence does not compare: the update lies among rehearsals of a
    model that tells classes apart, which is evidence enough.
    """

    name = "bayes"
    words = "factorised Bayes: the model's confidence in each class measured on labelled auxiliary data"

    def applies(self, seen: ObservedLayers) -> bool:
        return seen.answers.start_confusion is not None

    def weigh(self, seen: ObservedLayers) -> WeighedCounts:
        model = mixed_hardness(seen.answers, seen.steps)
        found = _bayes(seen, model)
        if seen.spans is None or not bool(seen.spans.usable.any()):
            return WeighedCounts(found, found, found.evidence)
        both = _bayes(seen, model, seen.spans).where(seen.spans.usable, found)
        return WeighedCounts(both, both, found.evidence.masked_fill(seen.spans.usable, torch.inf))


@final
class UnknownHardness(CountReading):
    """A trained model without labelled samples: one hardness for all classes, the one with most evidence.

    Over several steps the hardness itself changes, and no constant one is right. Then two readings err in opposite
    ways: proportions of what is negative give rare classes too little, LLBG, which takes an untrained model, too much.
    Their mean is nearer than either, and than the best constant; clients that come back say how much of each to take.
    """

    name = "unaided"
    words = "a trained model without auxiliary data: all classes taken as equally hard, as the update says"

    def applies(self, seen: ObservedLayers) -> bool:
        return seen.answers.start_confusion is None

    def weigh(self, seen: ObservedLayers) -> WeighedCounts:
        tried = (_bayes(seen, equally_hard(mean, *seen.bias.shape)) for mean in COUNTS.hardnesses)
        best = reduce(more_likely, tried)
        evidence = best.evidence - math.log(len(COUNTS.hardnesses))
        if seen.steps.number == 1:
            return WeighedCounts(best, best, evidence)
        guess = _between_readings(seen)
        sharp, doubtful = (_around(guess, seen.steps.samples, doubt) for doubt in (0.0, COUNTS.rough_doubt))
        return WeighedCounts(sharp, doubtful, evidence, _spread(guess, seen.steps.samples, COUNTS.between_spread))


@final
class NegativeShares(CountReading):
    """Counts in proportion to what is negative: for optimizers that rescale every coordinate."""

    name = "ebi"
    words = "proportions of the negative part of the gradient: nothing better fits, low confidence"

    def weigh(self, seen: ObservedLayers) -> WeighedCounts:
        guess = _negative_shares(seen)
        sharp, doubtful = (_around(guess, seen.steps.samples, doubt) for doubt in (0.0, COUNTS.rough_doubt))
        spread = _spread(guess, seen.steps.samples, COUNTS.ebi_spread)
        return WeighedCounts(sharp, doubtful, doubtful.evidence, spread)


def _negative_shares(seen: ObservedLayers) -> Tensor:
    """(origins, classes) counts in proportion to what is negative: in the weights, else in the bias, as EBI has it.

    EBI gives nothing to classes that others push up. What all classes receive adds up to nothing, so that there are
    such classes whatever was sent, even if all are as common. Of two it is always one.
    """
    if seen.pulls is None or seen.bias.shape[1] <= 2:
        return ebi_counts(seen.bias, torch.full((len(seen.bias),), seen.steps.samples)).double()
    return counts_by_pulls(seen.pulls, torch.full((len(seen.bias),), seen.steps.samples))


def counts_by_pulls(pulls: Tensor, samples: Tensor) -> Tensor:
    """(origins, classes) that add up to samples (origins,)."""
    return samples[:, None] * pulls / pulls.sum(1, keepdim=True).clamp_min(1e-30)


def _between_readings(seen: ObservedLayers) -> Tensor:
    """(origins, classes) between counts in proportion to what is negative and LLBG's.

    Only the former where the size of the gradients is not known, which LLBG needs.
    """
    if not seen.scaled:
        return _negative_shares(seen)
    many = len(seen.bias)
    unit, samples = torch.full((many,), float(seen.steps.unit)), torch.full((many,), seen.steps.samples)
    untrained = llbg_counts(seen.bias, unit, samples, torch.zeros_like(seen.bias)).double()
    weight = seen.pulls_weight if seen.bias.shape[1] > 2 else 0.0
    return weight * _negative_shares(seen) + (1 - weight) * untrained


def _around(guess: Tensor, samples: int, doubt: float) -> Posterior:
    """A posterior in the middle of which counts (origins, classes) stand, each as far off as `doubt` of it."""
    noise = doubt * guess + 1
    grid = CountGrid.around(guess - 4 * noise, guess + 4 * noise, samples)
    table = -0.5 * ((grid.counts - guess[..., None]) / noise[..., None]).square()
    return posterior(table, grid, samples)


def _spread(guess: Tensor, samples: int, doubt: float) -> Tensor:
    """(origins, classes) how far off counts may be: of what was read, and of an even count whatever was read.

    Rough readings call classes absent that are there, which no error in proportion to the count allows for.
    """
    return doubt * (guess + samples / guess.shape[1]) + 1


READINGS: tuple[CountReading, ...] = (MeasuredProbability(), DriftLattice(), TrainedModel(), UnknownHardness())
SPANNED, REHEARSED = "spanned", "rehearsed"
WORDS: dict[str, str] = {
    **{reading.name: reading.words for reading in (*READINGS, NegativeShares())},
    SPANNED: "factorised Bayes, and how near auxiliary samples come to what the hidden layers' changes span",
    REHEARSED: "rehearsal on auxiliary data",
    "together": "two classes, read of all clients of a round, who were handed one model",
    "known": "estimates of each count with the noise that the known defense leaves on them",
}


@dataclass(frozen=True, eq=False)
class ReadCounts:
    """Counts of several origins, how sure each is, and how they were read."""

    counts: Tensor  # (origins, classes) int64
    sure: Tensor  # (origins, classes) probability that a class's count is exact
    expected: Tensor  # (origins,) expected share of labels that are right
    low: Tensor  # (origins, classes) int64: bounds of each count, between which it lies with probability COUNTS.stated
    high: Tensor
    routes: tuple[str, ...]

    @staticmethod
    def by(
        doubtful: Posterior, counts: Tensor, route: str, sure_power: float = 1.0, spread: Tensor | None = None
    ) -> ReadCounts:
        """`counts` (origins, classes), with what a posterior says of them; bounds by `spread` where it is given."""
        sure, expected = certainty(doubtful, counts)
        if spread is None:
            low, high = interval(doubtful)
        else:
            reach = float(torch.special.ndtri(torch.tensor((1 + COUNTS.stated) / 2, dtype=torch.float64))) * spread
            most = counts.sum(1, keepdim=True)
            low, high = ((counts + side * reach).round().clamp_min(0).long().minimum(most) for side in (-1, 1))
        bounds = low.minimum(counts), high.maximum(counts)
        return ReadCounts(counts, sure.pow(sure_power), expected, *bounds, (route,) * len(counts))

    @staticmethod
    def joined(parts: Sequence[ReadCounts]) -> ReadCounts:
        """One after the other."""
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in _OF_EACH}
        return replace(parts[0], **tensors, routes=tuple(route for part in parts for route in part.routes))

    def rows(self, places: Tensor) -> ReadCounts:
        """Some of the origins."""
        tensors = {name: getattr(self, name)[places] for name in _OF_EACH}
        return replace(self, **tensors, routes=tuple(self.routes[place] for place in places.tolist()))


_OF_EACH = ("counts", "sure", "expected", "low", "high")


@dataclass(frozen=True, eq=False)
class ReadingsOf:
    """What each applicable reading says of some origins, and how likely each makes what was observed."""

    parts: tuple[ReadCounts, ...]
    evidence: Tensor  # (readings, origins)

    def believed(self, rounds: Sequence[int]) -> ReadCounts:
        """Of each origin the reading with most evidence; `rounds` (origins,) say which model each was trained from.

        Whether a reading's assumptions hold is mostly the model's doing, which all clients of a round were handed. So
        the others' evidence counts too, up to a limit: nobody can decide alone what is believed of everyone.
        """
        best = self.evidence.max(0).values
        limited = self.evidence.maximum(best - COUNTS.one_voice).where(best.isfinite(), torch.zeros_like(best))
        places = {number: place for place, number in enumerate(dict.fromkeys(rounds))}
        place = torch.tensor([places[number] for number in rounds])
        sums = torch.zeros(len(limited), len(places), dtype=limited.dtype).index_add_(1, place, limited)
        which = (self.evidence + sums[:, place] - limited).argmax(0)
        return ReadCounts.joined(self.parts).rows(which * len(which) + torch.arange(len(which)))

    def each_alone(self) -> ReadCounts:
        """The same where every origin was trained from a model of its own."""
        return self.believed(range(self.evidence.shape[1]))

    @staticmethod
    def joined(chunks: Sequence[ReadingsOf]) -> ReadingsOf:
        parts = zip(*(chunk.parts for chunk in chunks), strict=True)
        return ReadingsOf(tuple(map(ReadCounts.joined, parts)), torch.cat([chunk.evidence for chunk in chunks], 1))


def read(
    bias: Tensor,
    steps: Steps,
    answers: ModelAnswers | None,
    *,
    plain: bool = True,
    spans: SpanCounts | None = None,
    scaled: bool = True,
    pulls: Tensor | None = None,
    pulls_weight: float = 0.5,
) -> ReadingsOf:
    """bias (origins, classes): step gradients of one pass, summed. plain: the optimizer is SGD, its steps add up.

    answers: None where no model was seen; an untrained one with even probabilities is then assumed, or a trained one of
    which nothing is known.
    """
    even = ModelAnswers(torch.full_like(bias, 1 / bias.shape[1]), torch.zeros_like(bias), 1)
    seen = ObservedLayers(bias, steps, even if answers is None else answers, spans, scaled, pulls, pulls_weight)
    applicable = [reading for reading in READINGS if reading.applies(seen)] if plain else []
    readings = applicable or [NegativeShares()]
    found = [reading.weigh(seen) for reading in readings]
    parts = [
        ReadCounts.by(one.doubtful, decide(one.best), reading.name, reading.sure_power, one.spread)
        for reading, one in zip(readings, found, strict=True)
    ]
    if spans is not None:
        names = [SPANNED if usable else TrainedModel.name for usable in spans.usable.tolist()]
        parts = [replace(p, routes=tuple(names)) if TrainedModel.name in p.routes else p for p in parts]
    evidence = torch.stack([one.evidence.nan_to_num(nan=-torch.inf, posinf=torch.inf) for one in found])
    return ReadingsOf(tuple(parts), evidence)


def _bayes(seen: ObservedLayers, model: Hardness, spans: SpanCounts | None = None) -> Posterior:
    steps = seen.steps
    pushed = -seen.bias * (steps.samples / steps.number)
    first = ebi_counts(seen.bias, torch.full((len(seen.bias),), steps.samples))
    found = bayes_counts(pushed, model, steps.samples, first, None if spans is None else spans.table)
    # A short last step makes its unit a little smaller than a sample: densities are to be compared in samples.
    unit = seen.bias.shape[1] * math.log(steps.unit * steps.number / steps.samples)
    return replace(found, evidence=found.evidence + unit)


def is_trained(answers: ModelAnswers, classes: int) -> Tensor:
    """(origins,) whether the model tells classes apart on labelled samples, beyond chance."""
    if answers.start_confusion is None:
        return torch.zeros(len(answers.start), dtype=torch.bool)
    own = answers.start_confusion.diagonal(dim1=1, dim2=2).mean(1)
    return own - 1 / classes > COUNTS.trained


def equally_hard(mean: float, origins: int, classes: int) -> Hardness:
    """A model of which nothing is known but how hard its samples are on average."""
    each = torch.full((origins, classes), mean, dtype=torch.float64)
    flow = (1 - torch.eye(classes, dtype=torch.float64)) / max(classes - 1, 1)
    spread = COUNTS.hardness_spread * each * (1 - each)
    doubt = (COUNTS.hardness_doubt * each).square()
    return Hardness(each, doubt, spread, flow.expand(origins, classes, classes), COUNTS.hardness_samples)


def mixed_hardness(answers: ModelAnswers, steps: Steps) -> Hardness:
    """What local training meets: the start model in the first step, close to the end model in the others.

    How it went from one to the other is not known: a class's hardness may lie anywhere between, with the variance of a
    number of which no more is known than that.
    """
    assert answers.start_confusion is not None
    assert answers.start_second is not None
    if answers.end_confusion is None or answers.end_second is None or steps.number == 1:
        return hardness(answers.start_confusion, answers.start_second, answers.per_class)
    first = 1 / steps.number
    sound = answers.end_confusion.isfinite().all(2).all(1)
    late = torch.where(sound[:, None, None], answers.end_confusion, answers.start_confusion)
    late_second = torch.where(sound[:, None], answers.end_second, answers.start_second)
    mixed = hardness(
        first * answers.start_confusion + (1 - first) * late,
        first * answers.start_second + (1 - first) * late_second,
        answers.per_class,
    )
    way = (late - answers.start_confusion).diagonal(dim1=1, dim2=2)
    return replace(mixed, doubt=mixed.doubt + way.square() / 12)


def bias_from_weights(weight_sums: Tensor, steps: Steps, answers: ModelAnswers | None) -> Tensor:
    """What the last bias would have received, from the weight gradient summed over features (origins, classes).

    Where features hardly differ between samples, weight and bias gradient are proportional; the factor is read off the
    absent classes, whose gradient is their mean probability, or, for a trained model, off the size of the gradient that
    its confidence lets expect.
    """
    classes = weight_sums.shape[1]
    start = torch.full_like(weight_sums, 1 / classes) if answers is None else answers.start
    factor = (weight_sums / (steps.number * start.clamp_min(1e-9))).median(1, keepdim=True).values
    if answers is not None and bool(is_trained(answers, classes).any()):
        model = mixed_hardness(answers, steps)
        counts = ebi_counts(weight_sums, torch.full((len(weight_sums),), steps.samples)).double()
        leak, _ = leakage(counts, model)
        expected = (counts * model.mean - leak).clamp_min(0).sum(1, keepdim=True) * (steps.number / steps.samples)
        measured = (-weight_sums).clamp_min(0).sum(1, keepdim=True)
        factor = torch.where(is_trained(answers, classes)[:, None], measured / expected.clamp_min(1e-9), factor)
    # Features that cancel out (tanh, GELU) give a factor of either sign or none; then only proportions are left.
    typical = weight_sums.abs().mean(1, keepdim=True).clamp_min(1e-30)
    return weight_sums / torch.where(factor > 1e-6 * typical, factor, typical)


def words_of(routes: Sequence[str]) -> list[str]:
    """For the notes of a guess: how many origins were read in which way."""
    return [f"{routes.count(name)} of {len(routes)} by {name}: {WORDS[name]}" for name in dict.fromkeys(routes)]
