"""Loss of the last model (Yeom et al. 2018), as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP, PASSIVE_CONTROL
from fedspill.leaks.membership.passive.answers import PASSIVE_NEEDS, answers
from fedspill.leaks.membership.passive.asked_records import asked_of
from fedspill.leaks.membership.passive.observed import read_observed
from fedspill.leaks.membership.passive.published_tables import last_seen, loss_table
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Loss(Attack):
    """A record is a member if the last model that was seen fits it well."""

    name: ClassVar[str] = "loss"
    title: ClassVar[str] = "Loss of the last model"
    paper: ClassVar[str] = "Yeom et al. 2018"
    needs = PASSIVE_NEEDS
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        return answers(observed, asked, last_seen(loss_table(observed, asked)))
