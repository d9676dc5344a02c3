"""Which kind of plant a model looks like, and what could have been read by it, in words."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from statistics import fmean

import torch
from torch import Tensor, nn

from fedspill.defense import ClientContext
from fedspill.defenses.model_checks.isolating_units import LayerLook, look_at
from fedspill.defenses.model_checks.peelable_batches import SIZES
from fedspill.defenses.model_checks.rehearsal import Rehearsed, draw_anew
from fedspill.defenses.model_checks.row_likeness import LEAST_LEFT, MOST_ALIKE, RowLook

# Of a layer's units. Benign models had 0.08 in pairs and 0.20 alone at most (digits and MNIST, one seed each); whole
# plants have 0.88 at least (docs/design/active.md). False alarms on seeds that no bar was set on: docs/guards.md.
MOST_IN_PAIRS = 0.25
MOST_ALONE = 0.5
LEAST_BINS = 8  # neurons: of narrow layers a few alike are a large share, and read next to nothing (convention)
BESIDE = 2.0  # times as many as rehearsed models have: draws, and ways of training, differ by less (convention)
# Of this client's samples that can be taken out one by one, above the least that a model gave away so far: over batches
# of all sizes, and over the large ones, from 32 samples on. Training takes the first far, up to 0.38 on tables, but not
# the second: by 0.22 at most in 240 client histories of tables, and by 0.27 in 48 of digits (100 rounds, seeds 78500 to
# 78531). So a rehearsal excuses the first and never the second, of which it shows too much where it is trained on until
# it knows a few samples by heart. Wide bars are for layers behind others, whose inputs training changes too, beside the
# first accepted model; and for a first model beside a fresh one (0.37 at most of large batches of those of digits).
MOST_GAINED, MOST_GAINED_WIDE = 0.16, 0.32
MOST_OF_LARGE, MOST_OF_LARGE_WIDE, LARGE = 0.33, 0.45, 32
# The same above the model before, if that was this client's at most so many rounds ago: honest ones gained 0.12 in one
# round and 0.17 in four at most, of those 288 clients.
MOST_SUDDEN, LATELY = 0.2, 4
_FRESH = 4  # draws
MOST_SILENCED = 0.5  # of the samples that a model is wrong about


def looks_of(state: Mapping[str, Tensor], client: ClientContext) -> list[LayerLook]:
    """What a client's own samples show of a model; nothing where it has no samples or code at hand."""
    if client.architecture is None or client.examples is None:
        return []
    model = client.architecture()
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return look_at(model, client.examples, {name: value.to(own[name]) for name, value in state.items() if name in own})


def fresh_looks(client: ClientContext) -> list[LayerLook]:
    """What this client's samples show of a model of this architecture which nobody trained or planted."""
    if client.architecture is None or client.examples is None:
        return []
    model = copy.deepcopy(client.architecture())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draw_anew(model)
    return look_at(model, client.examples)


def redrawn_readable(state: Mapping[str, Tensor], client: ClientContext, layer: str) -> Tensor:
    """(SIZES,) the most that a layer gives away if its own parameters are drawn anew, on the inputs that it has now.

    Training changes what a layer behind others reads. What a layer gives away that nobody trained or planted is then
    due to these inputs.
    """
    assert client.architecture is not None
    assert client.examples is not None
    model = copy.deepcopy(client.architecture())
    model.load_state_dict(dict(state), strict=False)
    module = model.get_submodule(layer)
    assert isinstance(module, nn.Linear)
    drawn: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        for number in range(_FRESH):
            torch.manual_seed(number)
            module.reset_parameters()
            drawn += [torch.tensor(look.readable) for look in look_at(model, client.examples) if look.name == layer]
    return reduce(torch.fmax, drawn)  # NaN where no draw says anything


def readable_by(looks: Sequence[LayerLook]) -> Tensor:
    """(layers, SIZES) the share of this client's samples that each layer gives away, by the size of a batch."""
    return torch.tensor([look.readable for look in looks]).reshape(len(looks), len(SIZES))


def least_readable(looks: Sequence[LayerLook], so_far: Tensor | None) -> Tensor:
    """(layers, SIZES) what later models are held against: the least that a layer gave away that reads the samples
    themselves, and of layers behind others, whose inputs training changes, what the first model did.
    """
    now = readable_by(looks)
    if so_far is None or so_far.shape != now.shape:
        return now
    less = torch.tensor([look.first for look in looks]) & (now.nanmean(1) < so_far.nanmean(1))
    return torch.where(less[:, None], now, so_far)


def plant_words(
    looks: Sequence[LayerLook],
    at_first: Tensor | None,
    fresh: Tensor | None = None,
    redrawn: Callable[[str], Tensor] | None = None,
    rehearsed: Callable[[], Rehearsed | None] = lambda: None,
    lately: Tensor | None = None,
) -> str:
    """The plant that a model looks like; nothing where it looks like none, or where honest training looks the same.

    `rehearsed` are models that were trained honestly (rehearsal.py), and are asked for only if one looks like a plant.

    at_first (layers, SIZES) is what it is held against (least_readable). A first model is held against a fresh one,
    where a layer reads the samples themselves. What a layer behind others gained is no plant if it gives away as much
    when it is drawn anew (redrawn_readable); that is asked only then. `lately` (layers, SIZES) is what the model before
    gave away, if that was not long ago.
    """
    for place, look in enumerate(looks):
        if _words(look):
            found = _words(look, _of_layer(rehearsed(), place, len(looks)))
            if found:
                return found
    known = at_first is not None and at_first.shape == (len(looks), len(SIZES))
    held = at_first if known else fresh
    if held is None or held.shape != (len(looks), len(SIZES)):
        return ""
    if known and lately is not None and lately.shape == held.shape:
        for look, before in zip(looks, lately, strict=True):
            found = _gained_in_large(look, before, MOST_SUDDEN) if look.first else ""
            if found:
                return found
    for place, (look, before) in enumerate(zip(looks, held, strict=True)):
        if not known and not look.first:
            continue
        wide = not known or not look.first
        found = _gained(look, before, wide=wide)
        if found and not look.first and redrawn is not None:
            before = torch.fmax(before, redrawn(look.name))
            found = _gained(look, before, wide=wide)
        usual = _of_layer(rehearsed(), place, len(looks)) if found else None
        if usual is not None:
            found = _gained(look, before, usual.by_size, wide=wide)
        if found:
            return found
    return ""


def _of_layer(found: Rehearsed | None, place: int, layers: int) -> Rehearsed | None:
    """What is known of one layer, where there are as many as expected."""
    return Rehearsed(*(part[place] for part in found)) if found is not None and len(found.pairs) == layers else None


def _gained(look: LayerLook, held: Tensor, usual: Tensor | None = None, *, wide: bool) -> str:
    """Says what a layer gives away beyond what is held against it, (SIZES,), and what is usual in a rehearsal."""
    found = _gained_in_large(look, held, MOST_OF_LARGE_WIDE if wide else MOST_OF_LARGE)
    excused = held if usual is None else torch.fmax(held, usual)
    known = _known(look, held)
    if found or not known or SIZES[known[-1]] < LARGE:  # of few samples an honest model gives away most
        return found
    gain = fmean(look.readable[i] - float(excused[i]) for i in known)
    if gain > (MOST_GAINED_WIDE if wide else MOST_GAINED):
        return _on_its_way(look, fmean(look.readable[i] for i in known), gain, "this client's samples")
    return ""


def _gained_in_large(look: LayerLook, held: Tensor, most: float) -> str:
    """The same of large batches alone, if it is more than `most`."""
    large = [i for i in _known(look, held) if SIZES[i] >= LARGE]
    gain = fmean(look.readable[i] - float(held[i]) for i in large) if large else 0.0
    if gain <= most:
        return ""
    of = f"batches of {LARGE} and more of this client's samples"
    return _on_its_way(look, fmean(look.readable[i] for i in large), gain, of)


def _known(look: LayerLook, held: Tensor) -> list[int]:
    """The places of sizes of which both say something."""
    pairs = zip(look.readable, held.tolist(), strict=True)
    return [place for place, (now, before) in enumerate(pairs) if not math.isnan(now - before)]


def _on_its_way(look: LayerLook, now: float, gain: float, of: str) -> str:
    return (
        f"{_percent(now)} of {of} could be taken out of the sums of {look.name} one by one, and {_percent(now - gain)} "
        "with an earlier or honest model: a plant that is on its way"
    )


def _words(look: LayerLook, usual: Rehearsed | None = None) -> str:
    """What a layer looks like, beside what rehearsed ones show at most."""
    alone, pairs, silenced, little = MOST_ALONE, MOST_IN_PAIRS, MOST_SILENCED, -1.0
    if usual is not None:
        alone, pairs = max(alone, BESIDE * float(usual.alone)), max(pairs, BESIDE * float(usual.pairs))
        silenced, little = max(silenced, BESIDE * float(usual.silenced)), float(usual.readable) / BESIDE
    if look.silenced > silenced:
        return (
            f"{_percent(look.silenced)} of the samples that the model is wrong about send hardly anything back to "
            f"{look.name}: "
            "a head or layer that silences all but some, so that these, or those of another client, could be read"
        )
    if look.alone > alone:
        return (
            f"{_percent(look.alone)} of the neurons of {look.name} fire for single samples of this client: traps, by "
            "which samples that are alone in a neuron could be read"
        )
    known = [share for share in look.readable if not math.isnan(share)]
    gives = fmean(known) if known else 1.0
    if look.pairs <= pairs or look.pairs * look.units < LEAST_BINS or gives <= little:
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
