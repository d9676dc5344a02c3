"""The two measurements that published attacks are made of: losses and cosines, round by round."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedspill.leaks.membership.passive.asked_records import AskedRecords
from fedspill.leaks.membership.passive.gradient_products import GradientProducts, gradient_products
from fedspill.leaks.membership.passive.observed import Observed, SeenRound, norm_of
from fedspill.leaks.membership.passive.record_losses import record_losses

_TINY = 1e-30


def loss_table(observed: Observed, asked: AskedRecords) -> Tensor:
    """(rounds, records, senders) minus the loss at the model as the sender left it; NaN where it sent nothing."""
    return _table(observed, asked, lambda seen, sender: -record_losses(observed.after(seen, sender), asked.x, asked.y))


def last_seen(table: Tensor) -> Tensor:
    """(records, senders) of the last round that each sender took part in."""
    found = table[0].clone()
    for values in table[1:]:
        found = torch.where(values.isnan(), found, values)
    return found


def cosine_table(observed: Observed, asked: AskedRecords) -> Tensor:
    """(rounds, records, senders) cosine of a record's gradient and the direction of descent that was sent."""
    return _gradient_table(observed, asked, _cosine)


def difference_table(observed: Observed, asked: AskedRecords) -> Tensor:
    """(rounds, records, senders) |d|^2 - |d - g|^2 of the direction d that was sent and a record's gradient g."""
    return _gradient_table(observed, asked, lambda found, norms: -2 * found.with_changes - found.squares[:, None])


def _cosine(found: GradientProducts, norms: Tensor) -> Tensor:
    return -found.with_changes / (found.squares.sqrt()[:, None] * norms).clamp_min(_TINY)


def _gradient_table(
    observed: Observed, asked: AskedRecords, measure: Callable[[GradientProducts, Tensor], Tensor]
) -> Tensor:
    senders = observed.senders
    table = torch.full((len(observed.rounds), len(asked), len(senders)), torch.nan, dtype=torch.double)
    for place, seen in enumerate(observed.rounds):
        there = [sender for sender in senders if sender in seen.changes]
        changes = [seen.changes[sender] for sender in there]
        found = gradient_products(observed.at(seen.before), asked.x, asked.y, changes)
        norms = torch.stack([norm_of(change) for change in changes])
        table[place][:, [senders.index(sender) for sender in there]] = measure(found, norms).nan_to_num()
    return table


def _table(observed: Observed, asked: AskedRecords, column: Callable[[SeenRound, str], Tensor]) -> Tensor:
    senders = observed.senders
    table = torch.full((len(observed.rounds), len(asked), len(senders)), torch.nan, dtype=torch.double)
    for place, seen in enumerate(observed.rounds):
        for sender in seen.changes:
            table[place, :, senders.index(sender)] = column(seen, sender)
    return table


def against_others(table: Tensor) -> Tensor:
    """(records, senders) FedMIA: the mean over rounds of how surely a client's value exceeds that of the others.

    In each round the other clients' values for the same record are taken as normal, and the score is the probability
    that such a value is lower.
    """
    there = ~table.isnan()
    values = table.nan_to_num()
    others = there.sum(-1, keepdim=True) - there.long()
    mean = (values.sum(-1, keepdim=True) - values) / others.clamp_min(1)
    square = (values.square().sum(-1, keepdim=True) - values.square()) / others.clamp_min(1)
    spread = (square - mean.square()).clamp_min(0).sqrt()
    chance = torch.special.ndtr((values - mean) / (spread + 1e-4))  # 1e-4: as in the authors' code
    return torch.where(there, chance, torch.nan).nanmean(0)
