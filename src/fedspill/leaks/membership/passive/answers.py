"""From a table of scores to a guess."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.passive.asked_records import AskedRecords
from fedspill.leaks.membership.passive.observed import Observed
from fedspill.threat import Needs, needs

# A model of each round, its code, and records to ask about. What else is seen (updates, sums) is used where it is.
PASSIVE_NEEDS: Needs = needs(sees=["model"], knows=["architecture", "asked_records"])
CLIENTS_NEEDS: Needs = needs(sees=["model", "update|gradient"], knows=["architecture", "asked_records"])


def answers(observed: Observed, asked: AskedRecords, scores: Tensor, notes: Sequence[str] = ()) -> Membership:
    """The guess that says scores (records, senders), a column for each of `observed.senders`."""
    senders = observed.senders
    of = [observed.origin(sender) for sender in senders for _ in range(len(asked))]
    places = torch.arange(len(asked)).repeat(len(senders))
    labels = asked.y.repeat(len(senders))
    return Membership(of, scores.T.flatten().double(), places, (*observed.notes, *notes), labels)
