"""What a party without labels is sent: for each use of each of its samples, the gradient of its embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.received.sample_rounds import (
    NOTHING_KNOWN,
    KnownLabels,
    SampleRounds,
    known_labels,
    read_batches,
    sample_rounds,
)
from fedspill.messages import Message
from fedspill.threat import needs
from fedspill.trace import View

GRADIENT_NEEDS = needs(sees=["returned", "batch"])
_LARGEST = 1e15  # of a number in a gradient that training can bring about
_MOST_NUMBERS = 1 << 28  # that all visits together may have


@dataclass(frozen=True, eq=False)
class ReceivedGradients:
    """What came back for each sample; a visit is one use of a sample, the first is 0."""

    rounds: SampleRounds
    visits: Tensor  # (visits, samples, width) float64, of the sum over a batch; zero where a sample has no such visit
    seen: Tensor  # (visits, samples) bool
    when: Tensor  # (visits, samples) int64: the round of the visit
    notes: tuple[str, ...]

    @property
    def samples(self) -> int:
        return len(self.rounds.indices)

    @property
    def classes(self) -> int:
        return self.rounds.classes

    def guess(self, scores: Tensor, known: Tensor, *notes: str) -> SampleLabels:
        """From scores (samples, classes) to a guess about all samples but the known ones."""
        return self.rounds.guess(scores, known, *self.notes, *notes)


def read_received(view: View) -> ReceivedGradients:
    """Reads the view; what is malformed is left out with a note, and if nothing is left the attack does not apply."""
    batches = read_batches(view)
    notes: list[str] = []
    received: list[tuple[int, Tensor]] = []
    width = 0
    for message in view.get("returned"):
        problem = _problem(message, batches.get(message.round), width)
        if problem:
            notes.append(f"{message.sender} in round {message.round} was left out: {problem}")
            continue
        gradient = message.tensors["gradient"].double()
        width = gradient.shape[1]
        received.append((message.round, gradient * len(gradient)))
    if not received:
        raise NotApplicable("No sound gradient came back to this party.")
    last = max(number for number, _ in received)
    rounds = sample_rounds(view, {number: batch for number, batch in batches.items() if number <= last})
    samples = len(rounds.indices)
    numbers = {number: torch.searchsorted(rounds.indices, batches[number]) for number, _ in received}
    most = int(torch.bincount(torch.cat([numbers[number] for number, _ in received])).max())
    if most * samples * width > _MOST_NUMBERS:
        raise NotApplicable(f"{most} visits of {samples:,} samples are more than are read at once.")
    visits = torch.zeros(most, samples, width, dtype=torch.float64)
    seen = torch.zeros(most, samples, dtype=torch.bool)
    when = torch.zeros(most, samples, dtype=torch.int64)
    count = torch.zeros(samples, dtype=torch.int64)
    for number, gradient in sorted(received, key=lambda one: one[0]):
        here = numbers[number]
        visits[count[here], here] = gradient
        seen[count[here], here] = True
        when[count[here], here] = number
        count[here] += 1
    return ReceivedGradients(rounds, visits, seen, when, tuple(notes))


def read_known(view: View, received: ReceivedGradients) -> KnownLabels:
    """The labels that the party was given, of samples that it was sent gradients of."""
    known = known_labels(view, received.rounds)
    there = received.seen.any(0)[known.samples]
    return KnownLabels(known.samples[there], known.labels[there])


def known_or_none(view: View, received: ReceivedGradients) -> KnownLabels:
    """The same where labels may be known; else none."""
    return read_known(view, received) if view.has("few_labels") else NOTHING_KNOWN


def require_two_classes(received: ReceivedGradients, name: str) -> None:
    if received.classes != 2:
        raise NotApplicable(f"{name} tells two classes apart; here are {received.classes}.")


def unit_rows(rows: Tensor) -> Tensor:
    """(n, d) each row at length 1; a row of zeros stays one."""
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return unit


def _problem(message: Message, batch: Tensor | None, width: int) -> str:
    gradient = message.tensors.get("gradient")
    if batch is None:
        return "nobody said which samples it is about"
    if not isinstance(gradient, Tensor) or not gradient.is_floating_point() or gradient.ndim != 2:
        return "it is no gradient of embeddings"
    if len(gradient) != len(batch) or not gradient.shape[1] or (width and gradient.shape[1] != width):
        return f"it has shape {tuple(gradient.shape)}"
    if not bool(torch.isfinite(gradient).all()) or float(gradient.abs().max()) > _LARGEST:
        return "it is not finite"
    return ""
