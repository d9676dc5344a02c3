"""CAFE on a model that is trained meanwhile: the effect of training on the gradients is predicted and subtracted.

Every round has a model of its own, which the server knows. From a first recovery at the model of the middle round it
predicts what each round would have shown had the model not been trained, subtracts the difference and recovers again; a
pass is kept only if it lowers the residual. Features change smoothly and are predicted well. Gradients v jump where a
ReLU switches, so they are compensated only where the route of moving_model.py, which does not need that, is not open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.predicted_gradients import predicted
from fedspill.leaks.inputs.vertical.server_observations import ServerObservations, replayed
from fedspill.models.vertical import VerticalNet

_CHUNK = 500


@dataclass(frozen=True, eq=False)
class ModelResponse:
    """What a model makes of samples: for each party the features h (n, d1) and the gradients v (n, d2)."""

    h: list[Tensor]
    v: list[Tensor]


def model_response(net: VerticalNet, x: Tensor, labels: Tensor) -> ModelResponse:
    with torch.no_grad():
        h = [
            torch.cat([net.tower(party).front(some) for some in torch.split(part, _CHUNK)])
            for party, part in enumerate(net.parts.split(x))
        ]
    return ModelResponse(h, [v.float() for v in predicted(net, h, labels)])


def with_model_held_still(
    observed: ServerObservations, place: int, x: Tensor, labels: Tensor, *, features_only: bool
) -> ServerObservations:
    """The same rounds as if the model of `place` had never moved, judged by samples x (n, ...) and labels (n,).

    With `features_only` every round keeps its own v.
    """
    still = model_response(observed.nets(place), x, labels)
    sums = [uploads.sums.clone() for uploads in observed.uploads]
    products: list[dict[int, Tensor]] = [dict(uploads.products()) for uploads in observed.uploads]
    for number, batch in enumerate(observed.batches):
        batch = batch.to(x.device)
        there = model_response(observed.nets(number), x[batch], labels[batch])
        for party, uploads in enumerate(observed.uploads):
            h, v = still.h[party][batch], there.v[party] if features_only else still.v[party][batch]
            if number in uploads.bias_places and not features_only:
                row = uploads.bias_places.index(number)
                sums[party][row] -= (there.v[party] - v).double().sum(0)
            if number in products[party]:
                products[party][number] = products[party][number] - (there.h[party].T @ there.v[party] - h.T @ v)
    heard_still = tuple(
        replace(uploads, sums=sums[party], products=replayed(products[party]))
        for party, uploads in enumerate(observed.uploads)
    )
    return replace(observed, uploads=heard_still)
