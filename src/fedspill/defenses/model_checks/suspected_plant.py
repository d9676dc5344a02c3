"""Which kind of plant a model looks like, and what could have been read by it, in words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from statistics import fmean

from torch import Tensor

from fedspill.defense import ClientContext
from fedspill.defenses.model_checks.isolating_units import SIZES, LayerLook, look_at
from fedspill.defenses.model_checks.row_likeness import LEAST_LEFT, MOST_ALIKE, RowLook

# Of a layer's units. Benign models had 0.08 in pairs and 0.20 alone at most (digits and MNIST, one seed each); whole
# plants have 0.88 at least (docs/design/active.md). False alarms on seeds that no bar was set on: docs/guards.md.
MOST_IN_PAIRS = 0.25
MOST_ALONE = 0.5
# Of this client's samples that can be taken out one by one, above the first accepted model's. Benign training gained
# 0.17 at most in 120 clients with perceptrons, 0.24 in 40 where convolutions change what the layer reads (digits, seeds
# 9600 to 9815, on which these bars were set). A
# patient server can read that much more before it is stopped, unless a gate over pairs stands behind.
MOST_GAINED, MOST_GAINED_BEHIND = 0.2, 0.3
# The same, of batches of one size from 32 samples on, where honest models give little away: plants on their way read
# such a batch whole before the mean shows it. Benign training gained 0.34 at most (12 clients, seeds 8000 to 8003).
MOST_GAINED_AT_ONCE, LARGE = 0.5, 32
MOST_SILENCED = 0.5  # of the samples that a model is wrong about


def looks_of(state: Mapping[str, Tensor], client: ClientContext) -> list[LayerLook]:
    """What a client's own samples show of a model; nothing where it has no samples or code at hand."""
    if client.architecture is None or client.examples is None:
        return []
    model = copy.deepcopy(client.architecture())
    model.load_state_dict(dict(state), strict=False)
    return look_at(model, client.examples)


def readable_by(looks: Sequence[LayerLook]) -> tuple[float, ...]:
    """The share of this client's samples that the layer nearest to the input gives away, by the size of a batch."""
    return looks[0].readable if looks else (0.0,) * len(SIZES)


def plant_words(looks: Sequence[LayerLook], readable_at_first: Sequence[float]) -> str:
    """The plant that a model looks like; nothing where it looks like none."""
    found = next((words for look in looks if (words := _words(look))), "")
    if found or not looks:
        return found
    now = readable_by(looks)
    in_all = fmean(now) - fmean(readable_at_first)
    at_once, place = max((now[i] - readable_at_first[i], i) for i, size in enumerate(SIZES) if size >= LARGE)
    if in_all > (MOST_GAINED if looks[0].first else MOST_GAINED_BEHIND):
        return _on_its_way(looks[0], fmean(now), fmean(readable_at_first), "this client's samples")
    if at_once > MOST_GAINED_AT_ONCE:
        batch = f"a batch of {SIZES[place]} of this client's samples"
        return _on_its_way(looks[0], now[place], readable_at_first[place], batch)
    return ""


def _on_its_way(look: LayerLook, now: float, at_first: float, of: str) -> str:
    return (
        f"{_percent(now)} of {of} could be taken out of the sums of {look.name} one by one, and {_percent(at_first)} "
        "with the first model: a plant that is on its way"
    )


def _words(look: LayerLook) -> str:
    if look.silenced > MOST_SILENCED:
        return (
            f"{_percent(look.silenced)} of the samples that the model is wrong about send nothing back to {look.name}: "
            "a head or layer that silences all but some, so that these, or those of another client, could be read"
        )
    if look.alone > MOST_ALONE:
        return (
            f"{_percent(look.alone)} of the neurons of {look.name} fire for single samples of this client: traps, by "
            "which samples that are alone in a neuron could be read"
        )
    if look.pairs <= MOST_IN_PAIRS:
        return ""
    return (
        f"{_percent(look.pairs)} of the neurons of {look.name} differ from another one by single samples of this "
        "client: bins, by which up to 0.6 samples a neuron could be read"
    )


def likeness_words(look: RowLook) -> str:
    """What the rows of a model show without any data."""
    if look.alike > MOST_ALIKE:
        return (
            f"{_percent(look.alike)} of the rows of {look.alike_in} have a parallel one: bins, by which up to 0.6 "
            "samples a row could be read"
        )
    if look.left < LEAST_LEFT:
        return f"the rows of {look.turned_in} have nothing left of the first model's: they were replaced, if slowly"
    return ""


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"
