"""Which samples a party holds, the round that first used each of them, and the labels that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.messages import SERVER, Message
from fedspill.trace import Origin, View


@dataclass(frozen=True, eq=False)
class SampleRounds:
    """Samples are numbered from 0 in the order of their indices."""

    indices: Tensor  # (samples,) int64: the server's own names for them, in order
    classes: int
    of: tuple[Origin, ...]  # the rounds that used samples that none before them used,
    members: tuple[Tensor, ...]  # the numbers of these,
    places: tuple[Tensor, ...]  # and where they stand in the round's batch

    def guess(self, scores: Tensor, known: Tensor, *notes: str) -> SampleLabels:
        """From scores (samples, classes) to a guess about all samples but the known ones."""
        rounds = []
        for origin, members, places in zip(self.of, self.members, self.places, strict=True):
            kept = ~torch.isin(members, known)
            if bool(kept.any()):
                rounds.append((origin, places[kept], scores[members[kept]].float()))
        if not rounds:
            raise NotApplicable("Every sample's label is known already.")
        of, where, said = zip(*rounds, strict=True)
        return SampleLabels(list(of), list(where), list(said), notes)


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The samples whose label the party knows, by their numbers."""

    samples: Tensor  # (known,) int64
    labels: Tensor  # (known,) int64

    @property
    def classes(self) -> set[int]:
        return set(self.labels.tolist())


NOTHING_KNOWN = KnownLabels(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def read_batches(view: View) -> dict[int, Tensor]:
    """The indices of each round, as far as they are a set of samples."""
    found = {message.round: message.tensors["indices"] for message in view.get("batch") if _is_batch(message)}
    if not found:
        raise NotApplicable("Nobody said which samples a round uses.")
    return dict(sorted(found.items()))


def sample_rounds(view: View, batches: Mapping[int, Tensor]) -> SampleRounds:
    """Which round of these was the first to use each sample."""
    classes = view.public.get("classes")
    if not isinstance(classes, int) or isinstance(classes, bool) or not 2 <= classes <= 10_000:
        raise NotApplicable("The recording does not say how many classes there are.")
    indices = torch.unique(torch.cat(list(batches.values())))
    met = torch.zeros(len(indices), dtype=torch.bool)
    of, members, places = [], [], []
    for number, batch in batches.items():
        numbers = torch.searchsorted(indices, batch)
        new = ~met[numbers]
        met[numbers] = True
        if bool(new.any()):
            of.append(Origin(number, SERVER))
            members.append(numbers[new])
            places.append(new.nonzero().flatten())
    return SampleRounds(indices, classes, tuple(of), tuple(members), tuple(places))


def known_labels(view: View, rounds: SampleRounds) -> KnownLabels:
    """The labels that the party was given, of samples that the federation used."""
    known = view.knows("few_labels")
    sound = torch.isin(known.indices, rounds.indices) & (known.values >= 0) & (known.values < rounds.classes)
    return KnownLabels(torch.searchsorted(rounds.indices, known.indices[sound]), known.values[sound])


def require_every_class(known: KnownLabels, classes: int, name: str) -> None:
    if len(known.classes) < classes:
        raise NotApplicable(f"{name} needs a known label of each of {classes} classes, here are {len(known.classes)}.")


def _is_batch(message: Message) -> bool:
    indices = message.tensors.get("indices")
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1 or not len(indices):
        return False
    return int(indices.min()) >= 0 and len(torch.unique(indices)) == len(indices)
