"""Which classes make-believe clients hold, and which auxiliary samples they are dealt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.observe.share_fits import positive

FAVOURED = 3  # classes at most that half of the broad draw's clients have more of (convention)


def broad_shares(number: int, classes: int, kinds: Sequence[float], rng: torch.Generator) -> Tensor:
    """(number, classes) Dirichlet draws around even shares, the kinds in turn; half have favoured classes besides.

    A Dirichlet distribution of many classes gives none of them half of the samples and the others the rest alike.
    """
    kind = torch.tensor([kinds[index % len(kinds)] for index in range(number)], dtype=torch.float64)
    drawn = positive(torch._standard_gamma(kind[:, None].expand(number, classes).contiguous(), generator=rng) + 1e-12)
    turn = torch.arange(number) // len(kinds) % 4  # of every fold the kinds come once so and once so
    amount = torch.rand(number, 1, generator=rng, dtype=torch.float64) * (turn >= 2)[:, None]
    rank = torch.rand(number, classes, generator=rng).argsort(1).argsort(1)
    chosen = rank <= torch.randint(FAVOURED, (number, 1), generator=rng)
    favoured = positive(torch.rand(number, classes, generator=rng, dtype=torch.float64) * chosen)
    return (1 - amount) * drawn + amount * favoured


def counts_of_shares(shares: Tensor, samples: int) -> Tensor:
    """(clients, classes) whole counts that sum to `samples`, largest remainders first."""
    exact = shares * samples
    counts = exact.floor()
    rank = (exact - counts).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (counts + (rank < (samples - counts.sum(1))[:, None])).long()


def deal_apart(counts: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
    """Like `deal`, but the even clients draw from one half of every class's samples and the odd ones from the other.

    So a fit to the even ones is tried on the odd ones by samples that it has not seen.
    """
    place = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None]).squeeze(1)
    alone = torch.bincount(labels)[labels] == 1  # the only one of its class: both need it
    sides = [torch.nonzero((place % 2 == side) | alone).flatten() for side in (0, 1)]
    rows = [sides[index % 2][deal(row[None], labels[sides[index % 2]], rng)[0]] for index, row in enumerate(counts)]
    return torch.stack(rows)


def deal(counts: Tensor, labels: Tensor, rng: torch.Generator, *, halves: bool = True) -> Tensor:
    """(clients, n) auxiliary samples with the wanted label counts (clients, classes).

    Each client draws, with replacement, from a half of every class's samples that is its own. Half of them lie about as
    far from all of them as all of them lie from the population (half-sampling, McCarthy 1969). So each make-believe
    client errs as a real one does, of whose samples the adversary has none. Without `halves` a client draws from all,
    and none repeats before all were dealt.
    """
    pools = [torch.nonzero(labels == label).flatten() for label in range(counts.shape[1])]
    dealt = []
    for row in counts:
        parts = []
        for label in torch.nonzero(row).flatten().tolist():
            pool, number = pools[label], int(row[label])
            if halves:
                either = int(torch.randint(2, (1,), generator=rng))  # half of an odd number
                own = pool[torch.randperm(len(pool), generator=rng)[: max((len(pool) + either) // 2, 1)]]
                parts.append(own[torch.randint(len(own), (number,), generator=rng)])
            else:
                decks = [pool[torch.randperm(len(pool), generator=rng)] for _ in range(-(-number // len(pool)))]
                parts.append(torch.cat(decks)[:number])
        mine = torch.cat(parts)
        dealt.append(mine[torch.randperm(len(mine), generator=rng)])
    return torch.stack(dealt)
