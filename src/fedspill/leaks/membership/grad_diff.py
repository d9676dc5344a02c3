"""Update with and without a gradient (Li et al. 2023), as published."""

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
from fedspill.leaks.membership.passive.published_tables import difference_table, last_seen
from fedspill.trace import View


@final
@dataclass(frozen=True)
class GradDiff(Attack):
    """A record is a member if taking its gradient off makes the last update shorter."""

    name: ClassVar[str] = "grad-diff"
    title: ClassVar[str] = "Update with and without a gradient"
    paper: ClassVar[str] = "Li et al. 2023"
    needs = PASSIVE_NEEDS
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        return answers(observed, asked, last_seen(difference_table(observed, asked)))
