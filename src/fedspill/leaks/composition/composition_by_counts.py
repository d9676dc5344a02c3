"""Composition by counts: a client's class shares are its label counts over their sum, read by the `labels` attack.

Where Decaf fits one class's gradients to an update and knows nothing of defenses, this reads the counts behind noise,
clipping, compression or a frozen head whose parameters are public (defended.py), several rounds together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.leak import COMPOSITION
from fedspill.leaks.labels.labels import Labels
from fedspill.messages import AGGREGATOR
from fedspill.observe.last_layer import LABEL_NEEDS
from fedspill.reads import MODELS_AND_HEAD_OF_UPDATES
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class CompositionByCounts(Attack):
    """Shares from label counts, averaged over the rounds of a client; knows the defenses where the adversary does."""

    name: ClassVar[str] = "composition-by-counts"
    title: ClassVar[str] = "Class shares of each client, from its label counts"
    paper: ClassVar[str] = "fedspill"
    needs = needs(sees=["update|gradient"], knows=LABEL_NEEDS.knows)
    reads = MODELS_AND_HEAD_OF_UPDATES
    leak = COMPOSITION

    def run(self, view: View, rng: torch.Generator) -> Proportions:
        guess = Labels().run(view, rng)
        if all(origin.sender == AGGREGATOR for origin in guess.of):
            raise NotApplicable("Only sums of clients were seen; a sum's shares are no client's.")
        shares = guess.counts.double() / guess.counts.sum(1, keepdim=True).clamp_min(1)
        sure = torch.ones(len(shares), dtype=torch.float64) if guess.confidence is None else guess.confidence
        senders = [origin.sender for origin in guess.of]
        index = {sender: place for place, sender in enumerate(dict.fromkeys(senders))}
        place = torch.tensor([index[sender] for sender in senders])
        weight = sure.double().clamp_min(0.01).square()[:, None]  # rounds that say more count for more
        total = torch.zeros(len(index), shares.shape[1], dtype=torch.float64).index_add_(0, place, weight * shares)
        mean = (total / total.sum(1, keepdim=True))[place]
        return Proportions(
            guess.of,
            mean,
            mean == 0,
            sure.double().clamp(0, 1),
            torch.ones(len(mean), dtype=torch.bool),
            guess.notes,
        )
