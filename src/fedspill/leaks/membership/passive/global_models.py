"""The global models that a passive adversary has, and how sure each is of a record's label."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.leaks.membership.passive.observed import Observed
from fedspill.leaks.membership.passive.record_losses import record_losses


def last_global_model(observed: Observed) -> dict[str, Tensor]:
    """The last one that can be had: that of the last round, moved by the mean of what its senders sent."""
    seen = observed.rounds[-1]
    weights = {sender: float(seen.examples.get(sender, 1)) for sender in seen.changes}
    total = sum(weights.values())
    state = {name: tensor.clone() for name, tensor in seen.before.items()}
    for sender, change in seen.changes.items():
        for name, moved in change.items():
            state[name] = state[name] + weights[sender] / total * moved
    return state


def global_models(observed: Observed) -> list[Mapping[str, Tensor]]:
    """That at the start of every round that was seen, and the last one."""
    return [*(seen.before for seen in observed.rounds), last_global_model(observed)]


def confidence(observed: Observed, state: Mapping[str, Tensor], records: Examples) -> Tensor:
    """(records,) probability of the true label, or of its tokens on average."""
    return torch.exp(-record_losses(observed.at(state), records.x, records.y))
