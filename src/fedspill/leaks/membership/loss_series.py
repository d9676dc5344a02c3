"""Loss over all rounds (Gu et al. 2022, in FedMIA), as published."""

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
from fedspill.leaks.membership.passive.published_tables import loss_table
from fedspill.trace import View


@final
@dataclass(frozen=True)
class LossSeries(Attack):
    """A record is a member if the models of all rounds fit it well on average."""

    name: ClassVar[str] = "loss-series"
    title: ClassVar[str] = "Loss over all rounds"
    paper: ClassVar[str] = "Gu et al. 2022, in FedMIA"
    needs = PASSIVE_NEEDS
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        return answers(observed, asked, loss_table(observed, asked).nanmean(0))
