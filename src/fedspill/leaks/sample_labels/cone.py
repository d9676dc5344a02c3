"""The cone: labels of single samples from the gradients that come back to a party, over all uses of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.batch_norm import balanced, without_norm
from fedspill.leaks.sample_labels.received.cone_fit import STEPS, cluster_cores, fit_cone, side_by_side, spanned
from fedspill.leaks.sample_labels.received.gradients import (
    GRADIENT_NEEDS,
    ReceivedGradients,
    known_or_none,
    read_received,
)
from fedspill.leaks.sample_labels.received.naming import agreement, named
from fedspill.leaks.sample_labels.received.sample_rounds import KnownLabels
from fedspill.leaks.sample_labels.received.spread import spread_scores
from fedspill.observe.known_defenses import effect_on_returned
from fedspill.trace import View

Reading: TypeAlias = Callable[[Tensor], Tensor]  # from some of the uses to scores (samples, classes)


@final
@dataclass(frozen=True)
class Cone(Attack):
    """Finds the map under which every gradient has one negative entry, its label; see received/cone_fit.py.

    It starts from known labels, one of each class at least, or blind from clusters, which are then named by what labels
    are known and by how common the classes are. Each use of the samples is read by itself, and all of them beside each
    other, which averages out noise that is drawn anew each time. Whoever knows of such noise also reads, for two
    classes, how widely a sample's gradients spread, since noise may be stronger for one class. That reading is believed
    whose answers from the odd uses, the even ones and all of them agree most. Embeddings narrower than classes - 1 lose
    part of what is there, and so does a head with hidden layers once it has learned by heart.
    """

    name: ClassVar[str] = "cone"
    title: ClassVar[str] = "Labels by the cone of gradients"
    paper: ClassVar[str] = "fedspill"
    needs = GRADIENT_NEEDS
    leak = SAMPLE_LABELS

    start: Literal["known", "blind"] = "known"  # known: blind only where a class has no known label
    uses: int = 4  # of each sample that are read by themselves, evenly over all of them
    steps: int = STEPS  # of each fit

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        normed = without_norm(view, read_received(view))
        received = normed.received
        known = known_or_none(view, received)
        prior = view.knows("class_prior") if view.has("class_prior") else None
        start, words = self._start(received, known, rng)

        def of_rows(rows: Tensor, visit: Tensor | None = None) -> Tensor:
            """Scores of rows (samples, width); samples without such a visit have none."""
            there = received.seen.any(0) if visit is None else received.seen[visit]
            return _read_rows(rows, there, start, received.classes, self.steps)

        def each(uses: Tensor) -> Tensor:
            chosen = uses[torch.linspace(0, len(uses) - 1, min(self.uses, len(uses))).round().long()]
            return torch.stack([of_rows(received.visits[use], use) for use in chosen]).mean(0)

        def together(uses: Tensor) -> Tensor:
            rows = side_by_side(received.visits[uses], received.classes)
            weight: Tensor = rows.norm(dim=1, keepdim=True)  # the longer, the further from the noise
            return of_rows(rows) * weight

        usable = _usable_visits(received)
        readings: dict[str, tuple[Reading, Tensor]] = {
            "each use by itself": (each, usable),
            "all uses together": (together, usable),
        }
        effect = effect_on_returned(view)
        noisy = effect is not None and bool(effect.returned_noise)
        if noisy or normed.words:
            del readings["each use by itself"]
            # What is learned has short gradients: behind noise, the first uses may say more than all of them. So
            # they do behind a norm, which hides the mean of each batch.
            for first in (2, 4, 8):
                if first < len(usable):
                    readings[f"the first {first} uses together"] = (together, usable[:first])
        if noisy and received.classes == 2:
            readings["how widely they spread"] = (lambda uses: spread_scores(received.visits[uses]), usable)

        def in_order(scores: Tensor) -> Tensor:
            """Columns in the order of the classes, and the mean put back where a norm took it."""
            return balanced(named(scores, known, prior), prior) if normed.words else named(scores, known, prior)

        how, scores = _most_agreed(readings, in_order)
        said = ", ".join(part for part in (f"read by {how}", words, normed.words) if part)
        return received.guess(scores, known.samples, said)

    def _start(self, received: ReceivedGradients, known: KnownLabels, rng: torch.Generator) -> tuple[KnownLabels, str]:
        """Samples of known label, or those that stand for a cluster each."""
        if self.start == "known" and len(known.classes) == received.classes:
            return known, f"from {len(known.labels)} known labels"
        seed = int(torch.randint(1 << 30, (1,), generator=rng))
        there = received.seen[0].nonzero().flatten()
        if len(there) < 2 * received.classes:
            return _of_any(there, received.classes), "from too few samples for clusters"
        cores, clusters = cluster_cores(received.visits[0][there], received.classes, seed)
        return KnownLabels(there[cores], clusters), "from clusters"


def _most_agreed(readings: Mapping[str, tuple[Reading, Tensor]], in_order: Reading) -> tuple[str, Tensor]:
    """The reading whose answers from the odd uses, the even ones and all of them agree most, and what it says of all.

    A fit that went astray over all uses agrees with neither half of them.
    """
    found: dict[str, tuple[float, Tensor]] = {}
    for name, (read, uses) in readings.items():
        whole = in_order(read(uses))
        if len(readings) == 1 or len(uses) < 2:
            return name, whole
        odd, even = (in_order(read(half)) for half in (uses[0::2], uses[1::2]))
        found[name] = (min(agreement(odd, even), agreement(whole, odd), agreement(whole, even)), whole)
    how = max(found, key=lambda name: found[name][0])
    return how, found[how][1]


def _read_rows(rows: Tensor, there: Tensor, start: KnownLabels, classes: int, steps: int) -> Tensor:
    """Scores (samples, classes) of rows (samples, width), zero for samples that are not there (samples,)."""
    scores = torch.zeros(len(rows), classes, dtype=torch.float64)
    inside = there & (rows.norm(dim=1) > 0)
    usable = inside[start.samples]
    if not bool(inside.any()) or len(set(start.labels[usable].tolist())) < classes:
        return scores
    number = torch.cumsum(inside, 0) - 1
    anchors, labels = number[start.samples[usable]], start.labels[usable]
    fitted = fit_cone(spanned(rows[inside], classes), anchors, labels, classes, steps)
    scores[inside] = fitted / fitted.abs().mean().clamp_min(1e-300)
    return scores


def _usable_visits(received: ReceivedGradients) -> Tensor:
    """The visits that nearly all samples have; where batches are drawn at random, few samples have the last ones."""
    share = received.seen.double().mean(1)
    usable = (share >= 0.9 * float(share.max())).nonzero().flatten()
    return usable


def _of_any(there: Tensor, classes: int) -> KnownLabels:
    """Any sample for any class: nothing better is to be had of a handful."""
    return KnownLabels(there[torch.arange(classes) % max(len(there), 1)], torch.arange(classes))
