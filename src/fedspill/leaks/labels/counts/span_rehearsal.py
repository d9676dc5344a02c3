"""Rehearsed batches: what the spans of batches of the adversary's own samples look like, and what was in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.observe.row_spaces import LayerSamples, distance_from_span, rehearsed_distance_from_span


@dataclass(frozen=True, eq=False)
class SpanRehearsals:
    """Made-up batches."""

    looks: Tensor  # (rehearsals, features, classes) mean log distance of each class's other samples
    counts: Tensor  # (rehearsals, classes)


@dataclass(frozen=True, eq=False)
class SpanStage:
    """The layers of one model on the adversary's labelled samples."""

    layers: tuple[LayerSamples, ...]
    labels: Tensor  # (auxiliary samples,)
    classes: int

    def can_rehearse(self, samples: int) -> bool:
        """Whether the auxiliary samples suffice for batches of that size, with others left to look at."""
        return bool(self.layers) and int(self._largest().sum()) >= samples

    def look(
        self, tensors: Mapping[str, Tensor], scale: float, samples: int, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A message's features (features, classes) and each layer's noise; `scale` makes it a sum over samples."""
        found = [distance_from_span(layer, scale * layer.change(tensors), samples, rng) for layer in self.layers]
        whole = torch.ones(len(self.labels), dtype=torch.bool)
        return self._by_class(torch.cat([one.logs for one in found]), whole), torch.tensor([one.noise for one in found])

    def rehearse(self, samples: int, noise: Sequence[float], rng: torch.Generator) -> SpanRehearsals:
        """Batches of `samples` samples with even, skewed or favoured labels, behind noise of each layer's size."""
        looks, counts = [], []
        largest = self._largest()
        for _ in range(COUNTS.span_rehearsals):
            wanted = made_up_counts(samples, largest, rng)
            chosen = self._drawn(wanted, rng)
            others = torch.ones(len(self.labels), dtype=torch.bool)
            others[chosen] = False
            logs = [
                rehearsed_distance_from_span(layer, chosen, size)
                for layer, size in zip(self.layers, noise, strict=True)
            ]
            looks.append(self._by_class(torch.cat(logs), others))
            counts.append(wanted)
        return SpanRehearsals(torch.stack(looks), torch.stack(counts).double())

    def _largest(self) -> Tensor:
        """(classes,) the most samples of each class in a rehearsed batch."""
        return (COUNTS.span_largest * torch.bincount(self.labels, minlength=self.classes)).long()

    def _by_class(self, logs: Tensor, seen: Tensor) -> Tensor:
        """(features, classes) mean over the samples that are `seen`."""
        labels = self.labels[seen]
        total = torch.zeros(len(logs), self.classes, dtype=logs.dtype).index_add_(1, labels, logs[:, seen])
        return total / torch.bincount(labels, minlength=self.classes).clamp_min(1)

    def _drawn(self, wanted: Tensor, rng: torch.Generator) -> Tensor:
        """Indices of auxiliary samples with such label counts (classes,)."""
        order = torch.randperm(len(self.labels), generator=rng)
        mixed = self.labels[order]
        place = functional.one_hot(mixed, self.classes).cumsum(0).gather(1, mixed[:, None]).squeeze(1)
        return order[place <= wanted[mixed]]


def made_up_counts(samples: int, largest: Tensor, rng: torch.Generator) -> Tensor:
    """Label counts (classes,) of a client that nobody has seen, none above `largest` (classes,)."""
    classes = len(largest)
    shares = torch.ones(classes, dtype=torch.float64)
    kind = int(torch.randint(3, (1,), generator=rng))
    if kind == 1:  # skewed, mildly or wildly
        spread = COUNTS.span_wildest * torch.rand(1, generator=rng, dtype=torch.float64)
        shares = (spread * torch.randn(classes, generator=rng, dtype=torch.float64)).exp()
    elif kind == 2:  # a few favoured classes before an even rest
        number = 1 + int(torch.randint(COUNTS.span_favoured, (1,), generator=rng))
        parts = torch.rand(number + 1, generator=rng, dtype=torch.float64)
        shares *= parts[number] / classes
        favoured = torch.randperm(classes, generator=rng)[:number]
        shares[favoured] += parts[: len(favoured)]
    counts = torch.zeros(classes, dtype=torch.int64)
    while (lacking := samples - int(counts.sum())) > 0:
        room = (shares + 1e-9) * (counts < largest)
        drawn = torch.multinomial(room, lacking, replacement=True, generator=rng)
        counts = (counts + torch.bincount(drawn, minlength=classes)).minimum(largest)
    return counts
