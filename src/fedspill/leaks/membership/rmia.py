"""RMIA: likelihood ratios against other records and reference models (Zarifzadeh et al. 2024), as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.federation.local import state_of, train
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP, PASSIVE_CONTROL
from fedspill.leaks.membership.passive.answers import answers
from fedspill.leaks.membership.passive.asked_records import asked_of
from fedspill.leaks.membership.passive.global_models import confidence, last_global_model
from fedspill.leaks.membership.passive.observed import Observed, read_observed
from fedspill.observe.rehearsal import known_local_training
from fedspill.threat import needs
from fedspill.trace import View

_FEWEST = 20  # records of the population: half of them train a reference model
_MOST_EPOCHS = 60  # of a reference model


@final
@dataclass(frozen=True)
class Rmia(Attack):
    """A record is a member if the global model fits it better than reference models do, by more than for others.

    Reference models are trained on random halves of the adversary's own records, for as many passes as clients made
    (60 at most). None of them has seen a record that is asked about: the offline attack, with the authors' correction.
    It speaks of the global model, so the answer for every client is the same. Where the adversary has far fewer records
    than the federation, its reference models are worse than the global model on everything, and the attack is weak.
    """

    name: ClassVar[str] = "rmia"
    title: ClassVar[str] = "RMIA: likelihood ratios against reference models"
    paper: ClassVar[str] = "Zarifzadeh et al. 2024"
    needs = needs(
        sees=["model"], knows=["architecture", "asked_records", "aux_data", "batch_size", "local_lr", "optimizer"]
    )
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    references: int = 4
    gamma: float = 2.0  # by how much a record's ratio must exceed that of another
    a: float = 0.3  # of the offline correction: how much training on a record would raise its probability

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        known: Examples = view.knows("aux_data")
        population = Examples(known.x, known.y)
        if len(population) < _FEWEST:
            raise NotApplicable(f"Reference models take {_FEWEST} records, the adversary has {len(population)}.")
        both = Examples.join([Examples(asked.x, asked.y), population])
        target = confidence(observed, last_global_model(observed), both)
        references = torch.stack(
            [confidence(observed, state, both) for state in self._trained(view, observed, population, rng)]
        )
        n = len(asked)
        scores = rmia_scores(target[:n], references[:, :n], target[n:], references[:, n:], self.gamma, self.a)
        note = f"{self.references} reference models, each of {len(population) // 2} records"
        return answers(observed, asked, scores[:, None].expand(-1, len(observed.senders)), [note])

    def _trained(
        self, view: View, observed: Observed, population: Examples, rng: torch.Generator
    ) -> list[Mapping[str, Tensor]]:
        local = known_local_training(view, view.knows("local_lr"))
        passes = min(_MOST_EPOCHS, local.epochs * (observed.rounds[-1].number + 1))
        training = replace(local, epochs=passes, batch_size=min(local.batch_size, len(population) // 2))
        fresh = state_of(view.knows("architecture")())
        start = {name: tensor.to(view.device, copy=True) for name, tensor in fresh.items()}
        population = population.to(view.device)
        found: list[Mapping[str, Tensor]] = []
        for _ in range(self.references):
            half = torch.randperm(len(population), generator=rng)[: len(population) // 2]
            own = torch.Generator().manual_seed(int(torch.randint(1 << 62, (1,), generator=rng)))
            moved = train(observed.model, start, population.take(half), training, own)
            found.append({name: start[name] + moved[name] if name in moved else start[name] for name in start})
        return found


def rmia_scores(
    target: Tensor, references: Tensor, target_others: Tensor, reference_others: Tensor, gamma: float, a: float
) -> Tensor:
    """(records,) share of other records z for which (p(x) / P(x)) / (p(z) / P(z)) is at least gamma.

    target (records,) and references (models, records) are probabilities of the true label at the attacked model and at
    reference models, and so for the others. P(z) is the mean over reference models, of which half were trained on z.
    None was trained on x: its mean is corrected to ((1 + a) out + (1 - a)) / 2.
    """
    usual = ((1 + a) * references.mean(0) + (1 - a)) / 2
    own = target / usual.clamp_min(1e-30)
    others = target_others / reference_others.mean(0).clamp_min(1e-30)
    return (own[:, None] >= gamma * others).double().mean(1)
