"""The rule of the `labels` attack: which reading of the last layer fits what was observed, decided for every origin.

    trained, labelled auxiliary data at hand        bayes      label_bayes.py on the mean of start and end model
    the same, and the update's spans are legible    spanned    span_counts.py beside it: which samples were there
    trained, nothing at hand                        unaided    label_bayes.py, one hardness for all classes
    one step, or hardly any drift                   measured   decode.py with the measured mean probability
    the same, nothing at hand                       wire       decode.py with that of the client's own mean features
    the counts of rare classes lie on a lattice     lattice    label_lattice.py: drift or scale read off the update
    model of all inputs alike, violent drift        blurred    label_bayes.py with one mean probability for all classes
    anything else                                   ebi        proportions of what is negative, low confidence

Nothing here sees the truth: the conditions are the model's confidence on auxiliary data, how far the update moved its
answers, and how well the lattice fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.lattice import SCALED, SLOW, Lattice, fit, undrifted, unscaled
from fedspill.leaks.labels.counts.posterior import certainty, decide
from fedspill.leaks.labels.counts.readings import bayes, is_trained, mixed_hardness, moved, reading
from fedspill.leaks.labels.counts.span_counts import SpanCounts
from fedspill.leaks.labels.counts.whole_counts import Steps
from fedspill.observe.probe import ModelAnswers

FAR = 5.0  # reach of a model that tells classes apart: fresh ones have 1 to 3, those of the grid 12 and more
PEAKED = 0.3  # how much surer single answers are than the mean answer
STILL = 0.5  # samples: the most that drift may move a count, to count as none
CALM = 0.075  # the same where there is no lattice to turn to, per sample
FAIR_FIT = 0.03  # of the lattice, per class
LEADS = 12.0  # samples of a class that the others' probabilities make room for
SLOWED = 0.9  # T / S of a drift that is one
FEW_CLASSES = 50  # too few rare ones below for a lattice to be seen

ROUTES: Final = {
    "bayes": "factorised Bayes: the model's confidence in each class measured on labelled auxiliary data",
    "spanned": "factorised Bayes, and how near auxiliary samples come to what the hidden layers' changes span",
    "unaided": "factorised Bayes without auxiliary data: all classes taken as equally hard, as the update says",
    "wire": "mean probability of the client's own mean features, which the update gives away; counts decoded",
    "measured": "mean probability measured on auxiliary inputs, counts decoded",
    "uniform": "mean probability taken as uniform: an untrained model is assumed",
    "lattice": "drift read off the update: rare classes must have whole counts; an untrained model is assumed",
    "scaled": "unknown scale (clipping) read off the update; an untrained model is assumed",
    "blurred": "mean probability of start and end model, with much doubt: violent drift of an untrained model",
    "known": "estimates of each count with the noise that the known defense leaves on them",
    "ebi": "proportions of the negative part of the gradient: nothing better fits, low confidence",
}
# Where a model of the samples is assumed, single counts are less sure than they look: p stands for p ** 1.5. Set on
# development seeds (docs/design/labels.md); the expected success rate needed no such correction.
_MODELLED: Final = ("bayes", "spanned", "unaided", "blurred", "ebi")
_HUMILITY: Final = 1.5


@dataclass(frozen=True, eq=False)
class Reading:
    """Counts of several origins, how sure each is, and how they were read."""

    counts: Tensor  # (origins, classes) int64
    sure: Tensor  # (origins, classes) probability that a class's count is exact
    expected: Tensor  # (origins,) expected share of labels that are right
    routes: tuple[str, ...]


def read(
    bias: Tensor,
    steps: Steps,
    outlook: ModelAnswers | None,
    *,
    plain: bool = True,
    wire: ModelAnswers | None = None,
    spans: SpanCounts | None = None,
) -> Reading:
    """bias (origins, classes): step gradients of one pass, summed. plain: the optimizer is SGD, its steps add up.

    wire: what the updates say by themselves, beside an outlook on auxiliary data. spans: what the hidden layers say.
    """
    origins, classes = bias.shape
    seen = outlook or ModelAnswers(torch.full_like(bias, 1 / classes), torch.zeros_like(bias), 1)
    if wire is not None:
        seen = _with_own_features(seen, wire, steps)
    route = _choose(bias, steps, outlook, seen, plain)
    if spans is not None:
        route = route.with_spans(spans)
    counts = torch.zeros(origins, classes, dtype=torch.int64)
    sure = torch.zeros(origins, classes, dtype=torch.float64)
    expected = torch.zeros(origins, dtype=torch.float64)
    for name in set(route.names):
        rows = torch.tensor([index for index, other in enumerate(route.names) if other == name])
        if name == "spanned":
            assert spans is not None
            found = bayes(bias[rows], steps, mixed_hardness(_rows(seen, rows), steps), spans.rows(rows))
        else:
            found = reading(name, bias[rows], steps, _rows(seen, rows), route.lattice, rows, doubt=False)
        counts[rows] = decide(found)
        if name in ("lattice", "scaled"):
            found = reading(name, bias[rows], steps, _rows(seen, rows), route.lattice, rows, doubt=True)
        sure[rows], expected[rows] = certainty(found, counts[rows])
        if name in _MODELLED:
            sure[rows] = sure[rows].pow(_HUMILITY)
    return Reading(counts, sure, expected, route.names)


@dataclass(frozen=True, eq=False)
class _Route:
    names: tuple[str, ...]
    lattice: Lattice | None

    def with_spans(self, spans: SpanCounts) -> _Route:
        """Spans join the reading of trained models where they can be read."""
        legible = zip(self.names, spans.usable.tolist(), strict=True)
        return replace(self, names=tuple("spanned" if use and name == "bayes" else name for name, use in legible))


def _choose(bias: Tensor, steps: Steps, outlook: ModelAnswers | None, seen: ModelAnswers, plain: bool) -> _Route:
    origins, classes = bias.shape
    if not plain:
        return _Route(("ebi",) * origins, None)
    trained = is_trained(seen, classes)
    far = (seen.reach > FAR) if seen.reach is not None else torch.zeros(origins, dtype=torch.bool)
    direct = "uniform" if outlook is None else "measured" if seen.reach is None else "wire"
    peaked = (seen.peak > PEAKED) if seen.peak is not None else torch.zeros(origins, dtype=torch.bool)
    drift = moved(seen, steps)
    most = STILL if classes >= FEW_CLASSES else CALM * steps.samples  # without a lattice, a measured path is next best
    still = (drift.amax(1) < most) if steps.number > 1 else torch.ones(origins, dtype=torch.bool)
    whole = undrifted(bias, seen.start, steps)
    if seen.end is None and steps.number > 1:
        still = still & whole
    wild = torch.zeros(origins, dtype=torch.bool) if seen.end is None else ~seen.end.isfinite().all(1)
    lattice = None
    on_lattice = scaled = torch.zeros(origins, dtype=torch.bool)
    if classes >= FEW_CLASSES:
        end = None if seen.end is None else torch.where(seen.end.isfinite(), seen.end, seen.start)
        lattice = fit(bias, seen.start, end, steps)
        on_lattice = lattice.score < FAIR_FIT * classes
        shrunk = lattice.kind == SCALED
        scaled = on_lattice & shrunk & ~unscaled(bias, seen.start, steps)
        slowed = lattice.time < SLOWED * steps.number
        if seen.end is not None:  # where no class leads, single samples move their classes, and measuring is enough
            leads = (steps.unit * (steps.number * seen.start - bias) > LEADS).any(1)
            still = still | (on_lattice & (lattice.kind == SLOW) & ~slowed & ~leads)
        # A model that broke down may end where it began: the update itself says whether it stayed there.
        still = still & ~(on_lattice & ~shrunk & slowed & ~whole)
    names = []
    for index in range(origins):
        if bool(trained[index]):
            names.append("bayes")
        elif bool(far[index]):
            names.append("unaided")
        elif bool(peaked[index]):
            names.append("ebi")
        elif bool(scaled[index]):
            names.append("scaled")
        elif bool(still[index]):
            names.append(direct)
        elif bool(on_lattice[index]):
            names.append("lattice")
        elif seen.end is not None and not bool(wild[index]):
            names.append("blurred")
        elif seen.end is None and (classes < FEW_CLASSES or bool(whole[index])):
            names.append(direct)
        else:
            names.append("ebi")
    return _Route(tuple(names), lattice)


def _with_own_features(seen: ModelAnswers, wire: ModelAnswers, steps: Steps) -> ModelAnswers:
    """The outlook, with the client's own mean features in place of others' where a fresh model drifts with few classes.

    A model that drifts comes to answer the client's samples otherwise than auxiliary ones. Where many classes are rare
    the lattice tells the drift, and where there is none the larger auxiliary set is the better mean.
    """
    classes = seen.start.shape[1]
    if classes >= FEW_CLASSES or seen.end is None or wire.end is None or wire.reach is None:
        return seen
    own = (moved(seen, steps).amax(1) >= STILL) & ~is_trained(seen, classes) & (wire.reach <= FAR)
    start, variance, end = (
        torch.where(own[:, None], theirs, ours)
        for theirs, ours in ((wire.start, seen.start), (wire.variance, seen.variance), (wire.end, seen.end))
    )
    return replace(seen, start=start, variance=variance, end=end)


def _rows(seen: ModelAnswers, rows: Tensor) -> ModelAnswers:
    """The outlook of some of the origins."""
    kept: dict[str, Any] = {}
    for name in ModelAnswers.__dataclass_fields__:
        value = getattr(seen, name)
        kept[name] = value[rows] if isinstance(value, Tensor) else value
    return ModelAnswers(**kept)
