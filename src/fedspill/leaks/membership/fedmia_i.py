"""FedMIA-I: loss against the other clients (Zhu et al. 2025), as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP, PASSIVE_CONTROL
from fedspill.leaks.membership.passive.answers import CLIENTS_NEEDS, answers
from fedspill.leaks.membership.passive.asked_records import asked_of
from fedspill.leaks.membership.passive.observed import read_observed
from fedspill.leaks.membership.passive.published_tables import against_others, loss_table
from fedspill.trace import View


@final
@dataclass(frozen=True)
class FedMiaI(Attack):
    """A record is a member if a client's models fit it better than the other clients' models do."""

    name: ClassVar[str] = "fedmia-i"
    title: ClassVar[str] = "FedMIA-I: loss against the other clients"
    paper: ClassVar[str] = "Zhu et al. 2025"
    needs = CLIENTS_NEEDS
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        return answers(observed, asked, against_others(loss_table(observed, asked)))
