"""What entered each party's first linear layer, sample by sample: Steps I and II by the route that the rounds allow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.vertical.intersect_row_spaces import (
    NUMBERS,
    intersect,
    row_spaces,
    rows_from_columns,
    scale_directions,
)
from fedspill.leaks.inputs.vertical.moving_model import per_round_gradients
from fedspill.leaks.inputs.vertical.separate_products import ProductSystem
from fedspill.leaks.inputs.vertical.server_observations import PartyUploads, ServerObservations

_DEAD = 1e-5  # a v_n below this share of the largest counts as zero: the sample is not in the gradients
_ABOVE = 1.3  # a v_n below so many of its standard errors counts as noise (with many outputs its norm varies little)
_NOISY = 1e-5  # residual from which on the gradients are more than rounded
COLUMNS = "column spaces"
FREE = "column spaces, every round its own v"
_EXACT = 1e-8  # doubt up to which a direction is taken as exact


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """Per sample: input h (n, d1) of the layer, gradient v (n, d2) of its output; float64, zero where unknown."""

    h: Tensor
    v: Tensor
    error: Tensor  # (n,) relative error of h at most, from residuals; infinite where nothing is known
    doubtful: Tensor  # (n,) bool: its v, or the length of its h, may be mixed with that of other samples
    residual: float  # of Step II, relative
    route: str

    @property
    def known(self) -> Tensor:
        """The samples that left a trace in this party's gradients (n,)."""
        return torch.isfinite(self.error)


def first_layer(uploads: PartyUploads, observed: ServerObservations, rng: torch.Generator) -> FirstLayer:
    """Steps I and II for one party. Enough rounds: linear. Fewer: by intersecting row spaces."""
    if not uploads.bias_places:
        raise NotApplicable(f"party:{uploads.party} sent no sound gradient of its first layer's bias.")
    try:
        solved = observed.design(uploads.bias_places, uploads.sums.device).separate(uploads.sums)
        # Samples that left nothing in the gradients come out as rounding, whose size the standard error gives.
        noise = solved.error * solved.values.shape[1] ** 0.5
        v = torch.where((solved.values.norm(dim=1) > _ABOVE * noise)[:, None], solved.values, 0)
        return with_gradients(uploads, observed, v, torch.zeros(len(v), dtype=torch.bool, device=v.device), "linear")
    except NotApplicable as few:
        _refuse_wide(uploads, observed, few)
    by_rows = _by_intersection(uploads, observed, rng, columns=False)
    if by_rows.residual < _NOISY:
        return by_rows
    by_columns = _by_intersection(uploads, observed, rng, columns=True)
    return min(by_rows, by_columns, key=lambda layer: layer.residual)


def first_layer_of_moving_model(
    uploads: PartyUploads, observed: ServerObservations, rng: torch.Generator
) -> FirstLayer:
    """Steps I and II for one party of a federation whose model is trained meanwhile; v may differ in every round."""
    if not uploads.bias_places:
        raise NotApplicable(f"party:{uploads.party} sent no sound gradient of its first layer's bias.")
    _refuse_wide(uploads, observed, NotApplicable("The v of a model that moves are another in every round."))
    places = _places_with_both(uploads)
    directions = intersect(_spaces(uploads, observed, places, rng, True), observed.used(places, uploads.sums.device))
    found = per_round_gradients(directions, uploads, observed)
    norms = found.v.norm(dim=1)
    dead = (norms <= _DEAD * norms.max()) | ~torch.isfinite(found.error)
    h, v = (torch.where(dead[:, None], 0, part) for part in (found.h, found.v))
    error = torch.where(dead, torch.inf, found.error)
    return FirstLayer(h, v, error, found.doubtful, found.residual, FREE)


def with_gradients(
    uploads: PartyUploads, observed: ServerObservations, v: Tensor, doubtful: Tensor, route: str
) -> FirstLayer:
    """Step II, with the v (n, d2) of all samples."""
    norms = v.norm(dim=1)
    dead = norms <= _DEAD * norms.max()
    v = torch.where(dead[:, None], 0, v)
    used = observed.used(range(len(observed.rounds)), v.device)
    solved = ProductSystem(used, v, uploads.products()).solve_noisy()
    h = solved.values
    size = h.norm(dim=1)
    error = solved.most * h.shape[1] ** 0.5 / size.clamp_min(1e-300)
    error[dead | (size == 0)] = torch.inf
    return FirstLayer(h, v, error, doubtful, solved.residual, route)


def _refuse_wide(uploads: PartyUploads, observed: ServerObservations, few: NotApplicable) -> None:
    """Raises unless batches are small enough for their h and v to be independent, which routes with few rounds need."""
    places = _places_with_both(uploads)
    largest = max((len(observed.batches[place]) for place in places), default=0)
    width = min(uploads.sums.shape[1], uploads.inputs)
    if largest > width:
        what = "inputs" if width == uploads.inputs else "outputs"
        raise NotApplicable(
            f"{few.problem} Fewer would do only for batches of at most {width}, the {what} of the first linear layer; "
            f"these have up to {largest}."
        )
    if not places:
        raise NotApplicable(f"{few.problem} Fewer would do only with the gradients of the first layer's weights.")


def _places_with_both(uploads: PartyUploads) -> list[int]:
    """The rounds with both gradients."""
    weighed = set(uploads.weight_places)
    return [place for place in uploads.bias_places if place in weighed]


def _by_intersection(
    uploads: PartyUploads, observed: ServerObservations, rng: torch.Generator, *, columns: bool
) -> FirstLayer:
    places = _places_with_both(uploads)
    directions = intersect(_spaces(uploads, observed, places, rng, columns), observed.used(places, uploads.sums.device))
    device = uploads.sums.device
    if columns:
        directions = rows_from_columns(
            directions, observed.used(range(len(observed.rounds)), device), uploads.products()
        )
    v, doubt = scale_directions(directions, observed.used(uploads.bias_places, device), uploads.sums)
    return with_gradients(uploads, observed, v, doubt > _EXACT, COLUMNS if columns else "row spaces")


def _spaces(
    uploads: PartyUploads, observed: ServerObservations, places: list[int], rng: torch.Generator, columns: bool
) -> Tensor:
    """The row (or column) spaces of those rounds, many at a time: (rounds, d2 or d1, largest batch)."""
    largest = max(len(observed.batches[place]) for place in places)
    wanted = set(places)
    kept = ((place, total.T if columns else total) for place, total in uploads.products() if place in wanted)
    at_once = max(1, NUMBERS // (uploads.inputs * uploads.sums.shape[1]))
    found = []
    while some := list(islice(kept, at_once)):
        sizes = torch.tensor([len(observed.batches[place]) for place, _ in some])
        found.append(row_spaces(torch.stack([total for _, total in some]), sizes, largest, rng))
    return torch.cat(found)


def unknown_first_layer(uploads: PartyUploads, observed: ServerObservations) -> FirstLayer:
    """For a party whose uploads could not be used: nothing is known of any sample."""
    n, device = observed.samples, uploads.sums.device
    h = torch.zeros(n, uploads.inputs, dtype=torch.float64, device=device)
    v = torch.zeros(n, uploads.sums.shape[1], dtype=torch.float64, device=device)
    unknown = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
    return FirstLayer(h, v, unknown, torch.ones(n, dtype=torch.bool, device=device), 1.0, "none")
