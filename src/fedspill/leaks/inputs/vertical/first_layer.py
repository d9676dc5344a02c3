"""What entered each party's first linear layer, sample by sample: Steps I and II by the route that the rounds allow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.vertical.intersect_row_spaces import NUMBERS, from_columns, intersect, row_spaces, scaled
from fedspill.leaks.inputs.vertical.moving_model import free_gradients
from fedspill.leaks.inputs.vertical.separate_products import Products
from fedspill.leaks.inputs.vertical.server_observations import Heard, Observed

_DEAD = 1e-5  # a v_n this small beside the others is zero: the sample left nothing in the gradients
_ABOVE = 1.3  # times its standard error that a v_n must be to be more than noise; with many outputs noise is even
_NOISY = 1e-5  # residual from which on the gradients are more than rounded
COLUMNS = "column spaces"
FREE = "column spaces, every round its own v"
_ALONE = 1e-8  # doubt up to which a direction is taken as exact


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """Per sample: input h (n, d1) of the layer, gradient v (n, d2) of its output; float64, zero where unknown."""

    h: Tensor
    v: Tensor
    error: Tensor  # (n,) relative error of h at most, from residuals; infinite where nothing is known
    doubtful: Tensor  # (n,) bool: its v, or the length of its h, could not be told apart from that of others
    residual: float  # of Step II, relative
    route: str

    @property
    def known(self) -> Tensor:
        """The samples that left a trace in this party's gradients (n,)."""
        return torch.isfinite(self.error)


def first_layer(heard: Heard, observed: Observed, rng: torch.Generator) -> FirstLayer:
    """Steps I and II for one party. Enough rounds: linear. Fewer: by intersecting row spaces."""
    if not heard.rows:
        raise NotApplicable(f"party:{heard.party} sent no sound gradient of its first layer's bias.")
    try:
        solved = observed.plan(heard.rows, heard.sums.device).separate(heard.sums)
        # Where most samples left nothing, what is solved for is mostly rounding: as large as the error says.
        noise = solved.error * solved.values.shape[1] ** 0.5
        v = torch.where((solved.values.norm(dim=1) > _ABOVE * noise)[:, None], solved.values, 0)
        return with_gradients(heard, observed, v, torch.zeros(len(v), dtype=torch.bool, device=v.device), "linear")
    except NotApplicable as few:
        _refuse_wide(heard, observed, few)
    by_rows = _by_ranges(heard, observed, rng, columns=False)
    if by_rows.residual < _NOISY:
        return by_rows
    by_columns = _by_ranges(heard, observed, rng, columns=True)
    return min(by_rows, by_columns, key=lambda layer: layer.residual)


def moving_layer(heard: Heard, observed: Observed, rng: torch.Generator) -> FirstLayer:
    """Steps I and II for one party of a federation whose model moves, without any belief about v."""
    if not heard.rows:
        raise NotApplicable(f"party:{heard.party} sent no sound gradient of its first layer's bias.")
    _refuse_wide(heard, observed, NotApplicable("The v of a model that moves are another in every round."))
    places = _both(heard)
    directions = intersect(_spaces(heard, observed, places, rng, True), observed.used(places, heard.sums.device))
    found = free_gradients(directions, heard, observed)
    norms = found.v.norm(dim=1)
    dead = (norms <= _DEAD * norms.max()) | ~torch.isfinite(found.error)
    h, v = (torch.where(dead[:, None], 0, part) for part in (found.h, found.v))
    error = torch.where(dead, torch.inf, found.error)
    return FirstLayer(h, v, error, found.doubtful, found.residual, FREE)


def with_gradients(heard: Heard, observed: Observed, v: Tensor, doubtful: Tensor, route: str) -> FirstLayer:
    """Step II, with the v (n, d2) of all samples."""
    norms = v.norm(dim=1)
    dead = norms <= _DEAD * norms.max()
    v = torch.where(dead[:, None], 0, v)
    used = observed.used(range(len(observed.rounds)), v.device)
    solved = Products(used, v, heard.products()).solve_noisy()
    h = solved.values
    size = h.norm(dim=1)
    error = solved.most * h.shape[1] ** 0.5 / size.clamp_min(1e-300)
    error[dead | (size == 0)] = torch.inf
    return FirstLayer(h, v, error, doubtful, solved.residual, route)


def _refuse_wide(heard: Heard, observed: Observed, few: NotApplicable) -> None:
    """Fewer rounds than samples are enough for batches whose h and v can be independent."""
    places = _both(heard)
    largest = max((len(observed.batches[place]) for place in places), default=0)
    width = min(heard.sums.shape[1], heard.inputs)
    if largest > width:
        what = "inputs" if width == heard.inputs else "outputs"
        raise NotApplicable(
            f"{few.problem} Fewer would do only for batches of at most {width}, the {what} of the first linear layer; "
            f"these have up to {largest}."
        )
    if not places:
        raise NotApplicable(f"{few.problem} Fewer would do only with the gradients of the first layer's weights.")


def _both(heard: Heard) -> list[int]:
    """The rounds with both gradients."""
    weighed = set(heard.weighed)
    return [place for place in heard.rows if place in weighed]


def _by_ranges(heard: Heard, observed: Observed, rng: torch.Generator, *, columns: bool) -> FirstLayer:
    places = _both(heard)
    directions = intersect(_spaces(heard, observed, places, rng, columns), observed.used(places, heard.sums.device))
    device = heard.sums.device
    if columns:
        directions = from_columns(directions, observed.used(range(len(observed.rounds)), device), heard.products())
    v, doubt = scaled(directions, observed.used(heard.rows, device), heard.sums)
    return with_gradients(heard, observed, v, doubt > _ALONE, COLUMNS if columns else "row spaces")


def _spaces(heard: Heard, observed: Observed, places: list[int], rng: torch.Generator, columns: bool) -> Tensor:
    """The row (or column) spaces of those rounds, many at a time: (rounds, d2 or d1, largest batch)."""
    largest = max(len(observed.batches[place]) for place in places)
    wanted = set(places)
    kept = ((place, total.T if columns else total) for place, total in heard.products() if place in wanted)
    at_once = max(1, NUMBERS // (heard.inputs * heard.sums.shape[1]))
    found = []
    while some := list(islice(kept, at_once)):
        sizes = torch.tensor([len(observed.batches[place]) for place, _ in some])
        found.append(row_spaces(torch.stack([total for _, total in some]), sizes, largest, rng))
    return torch.cat(found)


def empty(heard: Heard, observed: Observed) -> FirstLayer:
    """For a party that said nothing: no sample is known."""
    n, device = observed.samples, heard.sums.device
    h = torch.zeros(n, heard.inputs, dtype=torch.float64, device=device)
    v = torch.zeros(n, heard.sums.shape[1], dtype=torch.float64, device=device)
    unknown = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
    return FirstLayer(h, v, unknown, torch.ones(n, dtype=torch.bool, device=device), 1.0, "none")
