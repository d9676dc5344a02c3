"""Zari et al. 2021: a classifier that known members teach how sure a model grows of what it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.attack import Attack
from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP, PASSIVE_CONTROL
from fedspill.leaks.membership.passive.asked_records import asked_of
from fedspill.leaks.membership.passive.global_models import confidence, global_models
from fedspill.leaks.membership.passive.observed import Observed, read_observed
from fedspill.threat import needs
from fedspill.trace import View

_FEWEST = 5  # known members, and as many known outsiders (a convention)
_STEPS = 400  # of Adam on all known records at once; the loss moves no more (a convention)


@final
@dataclass(frozen=True)
class Zari(Attack):
    """A record is a member if the models of all rounds grow as sure of its label as of known members' labels.

    The probability of the true label, round by round, goes into a dense network with one hidden layer, which was taught
    by records that are known to be in and by others that are known to be out. In the paper the adversary reads one
    client's models and is given members of that client. Of ours a participant alone knows members: its own records,
    which are in the global models that it receives. So it asks these. Of its own records it says nothing. Width, rate
    and steps of the classifier are ours.
    """

    name: ClassVar[str] = "zari"
    title: ClassVar[str] = "Confidence over rounds, taught by known members"
    paper: ClassVar[str] = "Zari et al. 2021"
    needs = needs(sees=["model"], knows=["architecture", "asked_records", "aux_data", "own_data"])
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    width: int = 64  # of the hidden layer
    lr: float = 0.01

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        own, aux = (Examples(known.x, known.y) for known in (view.knows("own_data"), view.knows("aux_data")))
        if min(len(own), len(aux)) < _FEWEST:
            said = f"it has {len(own)} of its own and {len(aux)} that nobody trained on"
            raise NotApplicable(f"The classifier takes {_FEWEST} records of either kind, {said}.")
        mine = {_key(record) for record in own.x}
        rows = torch.tensor([row for row, record in enumerate(asked.x) if _key(record) not in mine], dtype=torch.int64)
        if len(rows) == 0:
            raise NotApplicable("All the records asked about are the adversary's own.")
        records = Examples(asked.x[rows], asked.y[rows])
        series = confidence_series(observed, Examples.join([own, aux, records]))
        inside, outside, wanted = torch.split(series, [len(own), len(aux), len(records)])
        scores = taught_scores(inside, outside, wanted, self.width, self.lr, rng)
        senders = observed.senders
        return Membership(
            [observed.origin(sender) for sender in senders for _ in range(len(rows))],
            scores.repeat(len(senders)),
            rows.repeat(len(senders)),
            (*observed.notes, f"taught by {len(own)} own records and {len(aux)} that nobody trained on"),
            records.y.repeat(len(senders)),
        )


def confidence_series(observed: Observed, records: Examples) -> Tensor:
    """(records, models) probability of the true label at every global model, in the order of rounds."""
    return torch.stack([confidence(observed, state, records) for state in global_models(observed)], 1)


def taught_scores(
    inside: Tensor, outside: Tensor, wanted: Tensor, width: int, lr: float, rng: torch.Generator
) -> Tensor:
    """(wanted,) log-odds that a series (wanted, models) is like those of members (in, models), not like (out, models).

    Both kinds weigh the same, however many there are of each.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(int(torch.randint(1 << 62, (1,), generator=rng)))
        network = nn.Sequential(nn.Linear(inside.shape[1], width), nn.ReLU(), nn.Linear(width, 1)).double()
        known = torch.cat([inside, outside]).double()
        member = (torch.arange(len(known)) < len(inside)).double()
        weight = torch.where(member > 0, 0.5 / len(inside), 0.5 / len(outside))
        optimizer = torch.optim.Adam(network.parameters(), lr=lr)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(network(known)[:, 0], member, weight, reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found: Tensor = network(wanted.double())[:, 0]
        return found.detach()


def _key(record: Tensor) -> bytes:
    return bytes(record.contiguous().numpy().tobytes())
