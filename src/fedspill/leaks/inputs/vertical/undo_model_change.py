"""CAFE on a model that is trained meanwhile: what the moving of the model did to the gradients is taken out again.

Every round has a model of its own, which the server knows. From a first recovery at the model of the middle round it
predicts what each round would have shown had the model stood still, subtracts the difference and recovers anew; a pass
is kept only while the systems close better for it. Features change smoothly and are predicted well. Gradients v jump
where a ReLU turns, so they are compensated only where no route does without them (free.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.predicted_gradients import predicted
from fedspill.leaks.inputs.vertical.server_observations import Observed
from fedspill.models.vertical import VerticalNet

_CHUNK = 500


@dataclass(frozen=True, eq=False)
class Shown:
    """What a model makes of samples: for each party the features h (n, d1) and the gradients v (n, d2)."""

    h: list[Tensor]
    v: list[Tensor]


def shown(net: VerticalNet, x: Tensor, labels: Tensor) -> Shown:
    with torch.no_grad():
        h = [
            torch.cat([net.tower(party).front(some) for some in torch.split(part, _CHUNK)])
            for party, part in enumerate(net.parts.split(x))
        ]
    return Shown(h, [v.float() for v in predicted(net, h, labels)])


def as_if_still(observed: Observed, place: int, x: Tensor, labels: Tensor, *, features_only: bool) -> Observed:
    """The same rounds as if the model of `place` had never moved, judged by samples x (n, ...) and labels (n,).

    With `features_only` every round keeps its own v.
    """
    still = shown(observed.nets(place), x, labels)
    sums = [heard.sums.clone() for heard in observed.heard]
    products: list[dict[int, Tensor]] = [dict(heard.products()) for heard in observed.heard]
    for number, batch in enumerate(observed.batches):
        batch = batch.to(x.device)
        there = shown(observed.nets(number), x[batch], labels[batch])
        for party, heard in enumerate(observed.heard):
            h, v = still.h[party][batch], there.v[party] if features_only else still.v[party][batch]
            if number in heard.rows and not features_only:
                row = heard.rows.index(number)
                sums[party][row] -= (there.v[party] - v).double().sum(0)
            if number in products[party]:
                products[party][number] = products[party][number] - (there.h[party].T @ there.v[party] - h.T @ v)
    heard_still = tuple(
        replace(heard, sums=sums[party], products=_again(products[party])) for party, heard in enumerate(observed.heard)
    )
    return replace(observed, heard=heard_still)


def _again(products: dict[int, Tensor]) -> Callable[[], Iterator[tuple[int, Tensor]]]:
    def each() -> Iterator[tuple[int, Tensor]]:
        yield from products.items()

    return each
