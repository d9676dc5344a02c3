"""What each part of the label reading earns: the same recorded updates read with all parts, and with one left out.

    python benchmarks/label_parts.py wire  --out parts.json [--seed 77] [--only HABITAT ...] [--few] [--even]
    python benchmarks/label_parts.py whole --out parts.json [--seed 500] ...
    python benchmarks/label_parts.py grid  --out parts.json [--seed 100] [--only "trained cell name" ...] [--blind]

`wire` and `whole` are cells of label_zoo.py, without and with data; `grid` is cells of label_grid.py, read update by
update, without rehearsal. A part is left out by putting something simpler in its place (PARTS below), which nothing but
this file does. Printed is by how many points fewer labels are right without the part: positive figures are what it
earns. Differences are paired, their standard error is over cells.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import label_grid
import label_zoo
import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.labels import labels as labels_file
from fedspill.leaks.labels.counts import each_update, lattice, major_classes, posterior, readings
from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.span_counts import SpanCounts
from fedspill.leaks.labels.counts.span_reader import SpanReader
from fedspill.leaks.labels.counts.trial import Tried
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.metrics import overlap, true_counts
from fedspill.observe import rehearsal_plan, rehearsed_shares, share_fits
from fedspill.observe.drawn_clients import deal
from fedspill.observe.head_readings import HeadReader
from fedspill.observe.local_changes import KnownOptimizer
from fedspill.observe.rehearsed_shares import RehearsalSizes
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_SERVER, EAVESDROPPER
from fedspill.trace import View

AS_IS = "as is"
CHANGED = 0.5  # points from which a cell counts as better or worse


@dataclass(frozen=True)
class Swap:
    """Something simpler in the place of an attribute of a module, a class or a frozen set of constants."""

    where: Any
    name: str
    by: Any


Part = tuple[Swap, ...]


@contextmanager
def without(part: Part) -> Iterator[None]:
    kept = [(swap, getattr(swap.where, swap.name)) for swap in part]
    try:
        for swap in part:
            _put(swap.where, swap.name, swap.by)
        yield
    finally:
        for swap, value in kept:
            _put(swap.where, swap.name, value)
        posterior._priors.cache_clear()


def _put(where: Any, name: str, value: Any) -> None:
    if dataclasses.is_dataclass(where) and not isinstance(where, type):
        object.__setattr__(where, name, value)  # constants are frozen to everyone else
    else:
        setattr(where, name, value)
    posterior._priors.cache_clear()


def constants(**values: Any) -> Part:
    return tuple(Swap(COUNTS, name, value) for name, value in values.items())


def no_reading(name: str) -> Part:
    return (Swap(readings, "READINGS", tuple(one for one in readings.READINGS if one.name != name)),)


def priors(keep: Callable[[str], bool]) -> Part:
    whole = posterior.count_priors

    def some(classes: int, samples: int) -> tuple[tuple[str, ...], Tensor]:
        names, tables = whole(classes, samples)
        kept = [place for place, name in enumerate(names) if keep(name)]
        return tuple(names[place] for place in kept), tables[kept]

    return (Swap(posterior, "count_priors", some),)


def _two_classes_by_evidence(view: View, layer: Any, bias: Any, messages: Any, *, plain: bool) -> Any:
    optimizer = KnownOptimizer.known_to(view)
    return each_update._by_evidence(view, layer, bias, messages, None, None, None, optimizer, plain=plain)


def _ebi(seen: readings.ObservedLayers) -> Tensor:
    return ebi_counts(seen.bias, torch.full((len(seen.bias),), seen.steps.samples)).double()


def _nothing_spanned(self: SpanReader, messages: Any, samples: int, scale: float, wanted: Tensor) -> SpanCounts:
    return SpanCounts.none(len(messages), self.probe.classes)


def _by_push(bias: Tensor, major: Tensor, left: Tensor, *rest: Any) -> Tensor:
    return lattice.by_push(bias, major, left)


def _no_samples_that_led(whole: Callable[..., Any], found: lattice.Lattice, *rest: Any) -> Any:
    return whole(dataclasses.replace(found, amounts=found.amounts.clamp_min(COUNTS.negative + 0.01)), *rest)


ALONE: dict[str, Part] = {
    "reading: measured": no_reading("measured"),
    "reading: lattice": no_reading("lattice"),
    "priors: skewed": priors(lambda name: not name.startswith("skewed")),
    "priors: sparse": priors(lambda name: not name.startswith("sparse")),
    "decision: tails": (Swap(readings, "decide", posterior.rounded_means),),
    "decision: means": (Swap(readings, "decide", posterior.best_tails),),
    "noise: four levels": constants(noises=(0.02,)),
    "clients of a round decide together": constants(one_voice=0.0),
    "leak in turns": constants(leak_turns=1),
    "lattice: violent drift": constants(violent_cost=math.inf),
    "lattice: field in a slow drift": (Swap(major_classes, "calmness", lambda time, steps: torch.zeros(len(time), 1)),),
    "lattice: field": (Swap(major_classes, "by_field", _by_push),),
    "lattice: classes that led": (Swap(lattice, "_major", partial(_no_samples_that_led, lattice._major)),),
    "lattice: stands out": (Swap(lattice.Lattice, "stands_out", lambda self: torch.ones(len(self.score)).bool()),),
}
WIRE: dict[str, Part] = ALONE | {
    "reading: unaided": no_reading("unaided"),
    "reading: two classes together": (Swap(each_update, "_two_classes", _two_classes_by_evidence),),
    "rounds of a client": (Swap(each_update, "read_together", lambda each, samples, clients: each),),
    "rounds say which of two readings": (Swap(each_update, "weight_of_first", lambda *rest: 0.5),),
    "own mean features": (Swap(each_update, "_by_itself", lambda view, sent: None),),
    "gradients of more than one": constants(liars=1.0),
    "input by input, not EBI": (Swap(readings, "_negative_shares", _ebi),),
    "mean of two: LLBG": (Swap(readings, "_between_readings", lambda seen: readings._negative_shares(seen)),),
    "hardness: eight": constants(hardnesses=(0.02, 0.1, 0.35, 0.85)),
    "hardness: doubt": constants(hardness_doubt=0.0),
    "hardness: few samples": constants(hardness_samples=1e6),
}
DATA: dict[str, Part] = ALONE | {
    "reading: bayes": no_reading("bayes"),
    "spans": (Swap(SpanReader, "read", _nothing_spanned),),
    "spans: unlike": constants(span_unlike=math.inf),
    "spans: half of the rehearsals": constants(span_rehearsals=60),
}


def _no_head_reading(*names: str) -> Part:
    whole = HeadReader.read

    def some(self: HeadReader, sent: Any, scale: float) -> dict[str, Tensor]:
        return {name: one for name, one in whole(self, sent, scale).items() if name == self.main() or name not in names}

    return (Swap(HeadReader, "read", some),)


def _no_fit(place: int) -> Part:
    return (Swap(share_fits, "FITTERS", tuple(kind for i, kind in enumerate(share_fits.FITTERS) if i != place)),)


def _dirichlet(number: int, classes: int, kinds: Any, rng: torch.Generator) -> Tensor:
    kind = torch.tensor([kinds[index % len(kinds)] for index in range(number)], dtype=torch.float64)
    drawn = torch._standard_gamma(kind[:, None].expand(number, classes).contiguous(), generator=rng)
    return share_fits.positive(drawn + 1e-12)


def _sizes(**values: Any) -> Part:
    return (Swap(rehearsal_plan, "RehearsalSizes", partial(RehearsalSizes, **values)),)


def _no_absence(self: HeadReader, sent: Any) -> Tensor:
    return torch.zeros_like((sent[self.weight].flatten(2) > 0).any(2))


_REHEARSED_ALONE: Part = (
    Swap(labels_file, "_rounds_read_alone", lambda *rest: set()),
    Swap(labels_file, "_is_exact", lambda *rest: False),
    Swap(labels_file, "tried_on_make_believe", lambda *rest: None),
)
WHOLE: dict[str, Part] = {
    "head: rows": _no_head_reading("rows"),
    "head: toward own inputs": _no_head_reading("toward"),
    "head: bias": (Swap(HeadReader, "main", lambda self: "rows"), *_no_head_reading("bias")),
    "head: shares": _no_head_reading("shares of rows", "shares of bias"),
    "fit: one slope": _no_fit(0),
    "fit: a slope a class": _no_fit(1),
    "fit: ridge": _no_fit(2),
    "absence": (Swap(HeadReader, "absent", _no_absence),),
    "absence: up to a limit": (Swap(rehearsed_shares, "largest_absent", lambda *rest: 1.0),),
    "knows its samples": _sizes(known=(0,)),
    "knows its samples: four lengths": _sizes(known=(0, 6)),
    "habits": (Swap(rehearsed_shares, "unsaid_habits", lambda *rest: iter(())),),
    "broad draw: favoured classes": (
        Swap(rehearsed_shares, "broad_shares", _dirichlet),
        Swap(labels_file, "broad_shares", _dirichlet),
    ),
    "broad draw: four kinds": _sizes(kinds=(0.3, 5.0)),
    "halves": (Swap(rehearsed_shares, "deal", partial(deal, halves=False)),),
    "rounds of a client": (
        Swap(labels_file, "clients_of", lambda updates, joint: [[row] for row in range(len(updates))]),
    ),
    "rounds that contradict": (Swap(rehearsed_shares, "CONTRADICTS", math.inf),),
    "clients that are alike": (Swap(labels_file, "read_together", list),),
    "near: half as many": _sizes(near=32),
    "broad: half as many": _sizes(broad=24),
}
BELIEVED: dict[str, Part] = {
    "each update by itself": _REHEARSED_ALONE,
    "what it overstates in its trial": (Swap(Tried, "overstated", 0.0),),
    "exact: not rehearsed": (Swap(labels_file, "_is_exact", lambda *rest: False),),
}
PARTS: Mapping[str, Mapping[str, Part]] = {
    "wire": WIRE,
    "whole": WHOLE,
    "believed": BELIEVED,
    "grid": DATA,
    "blind": WIRE,
}
OF_TWO = ("reading", "rounds", "own", "gradients", "input")  # parts that matter for two classes


@dataclass(frozen=True)
class ByUpdate:
    """Reads each update by itself, as an attack."""

    def __call__(self, view: View, *, seed: int) -> LabelCounts:
        return each_update.read_each_update(view, generator(seed, "attack", "labels"))


def measured(
    attack: Attack | ByUpdate, trace: Any, view: Callable[[], View], parts: Mapping[str, Part], seed: int
) -> Any:
    """Of each part what is read without it: mean share of labels right, stated, counts within intervals, CPU s."""
    found = {}
    for name, part in {AS_IS: (), **parts}.items():
        began = time.process_time()
        with without(part):
            guess = attack(view(), seed=seed)
        assert isinstance(guess, LabelCounts)
        assert guess.low is not None
        assert guess.high is not None
        assert guess.confidence is not None
        real = true_counts(guess, trace.truth())
        inside = ((real >= guess.low) & (real <= guess.high)).double().mean()
        found[name] = {
            "right": 100 * float(overlap(guess.counts, real).mean()),
            "stated": 100 * float(guess.confidence.mean()),
            "inside": 100 * float(inside),
            "seconds": time.process_time() - began,
        }
    return found


@contextmanager
def spans_kept() -> Iterator[None]:
    """What hidden layers say is found once for a message, whatever is left out elsewhere."""
    whole, kept = SpanReader.read, {}

    def read(self: SpanReader, messages: Any, samples: int, scale: float, wanted: Tensor) -> SpanCounts:
        key = (tuple((one.round, one.sender) for one in messages), samples, tuple(wanted.tolist()))
        if key not in kept:
            kept[key] = whole(self, messages, samples, scale, wanted)
        return kept[key]

    SpanReader.read = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        SpanReader.read = whole  # type: ignore[method-assign]


def zoo_cell(kind: str, name: str, stage: str, asked: argparse.Namespace) -> Any:
    made = label_zoo.federation(name, stage, asked.seed, asked.data_dir, asked.rounds, even=asked.even)
    if kind == "wire":
        parts = that_matter(WIRE, int(made.trace.protocol["classes"]), asked)
        return measured(ByUpdate(), made.trace, lambda: made.trace.view(EAVESDROPPER, knowledge={}), parts, asked.seed)
    seen = partial(made.trace.view, CURIOUS_SERVER, knowledge=made.knowledge)
    if kind == "believed":
        return measured(Labels(), made.trace, seen, BELIEVED, asked.seed)
    with without(_REHEARSED_ALONE):  # else the choice of what is believed would hide what a part of rehearsal earns
        return measured(Labels(), made.trace, seen, that_matter(WHOLE, COUNTS.lattice_classes, asked), asked.seed)


def that_matter(parts: Mapping[str, Part], classes: int, asked: argparse.Namespace) -> Mapping[str, Part]:
    """Lattices are read of many classes only, two classes all together. Of these what was asked for."""
    parts = {name: part for name, part in parts.items() if any(word in name for word in asked.parts)}
    if classes == 2:
        return {name: part for name, part in parts.items() if name.startswith(OF_TWO) and "lattice" not in name}
    return {name: part for name, part in parts.items() if classes >= COUNTS.lattice_classes or "lattice" not in name}


def grid_cell(kind: str, cell: label_grid.Cell, asked: argparse.Namespace) -> Any:
    seeds = label_grid.Seeds.of(asked.seed, None)
    made = label_grid.federation(cell, asked.data_dir, asked.store, asked.batches, seeds)
    seen = partial(made.trace.view, CURIOUS_SERVER, knowledge={} if kind == "blind" else made.knowledge)
    parts = that_matter(PARTS[kind], int(made.trace.protocol["classes"]), asked)
    of_spans = {name: part for name, part in parts.items() if name.startswith("spans")}
    others = {name: part for name, part in parts.items() if name not in of_spans}
    with spans_kept():
        found = measured(ByUpdate(), made.trace, seen, others, asked.seed)
    trained = label_grid.NETWORKS[cell.network].epochs > 0
    return found | (measured(ByUpdate(), made.trace, seen, of_spans, asked.seed) if trained and of_spans else {})


def table(cells: Mapping[str, Any]) -> str:
    """A line a part: points lost without it over cells, and how many cells it makes better and worse."""
    lines = []
    for name in dict.fromkeys(part for found in cells.values() for part in found):
        pairs = [(found[AS_IS], found[name]) for found in cells.values() if name in found]
        lost = torch.tensor([whole["right"] - one["right"] for whole, one in pairs], dtype=torch.float64)
        stated, inside, seconds = (
            sum(one[word] - whole[word] for whole, one in pairs) / len(pairs)
            for word in ("stated", "inside", "seconds")
        )
        error = float(lost.std()) / len(lost) ** 0.5 if len(lost) > 1 else math.nan
        better, worse = int((lost > CHANGED).sum()), int((lost < -CHANGED).sum())
        lines.append(
            f"{name:<50} {float(lost.mean()):+6.2f} ({error:.2f})  largest {float(lost.max()):+5.1f} "
            f"{float(lost.min()):+5.1f}  earns in {better}, costs in {worse} of {len(lost)}  "
            f"stated {stated:+5.1f}  inside {inside:+5.1f}  {seconds:+6.1f} s"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(PARTS))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON; cells in it are not run again")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="such files of other runs, for the table")
    parser.add_argument("--store", type=Path, default=Path("label-grid-networks"))
    parser.add_argument("--seed", type=int, help="default: the development seed of the zoo or the grid")
    parser.add_argument("--only", nargs="*", help="habitats, or names of grid cells, none for the table alone")
    parser.add_argument("--parts", nargs="*", default=[""], help="parts whose name contains one of these")
    parser.add_argument("--stages", default="fresh,early,late")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--even", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    of_grid = asked.kind in ("grid", "blind")
    asked.seed = asked.seed or (label_grid.DEVELOPMENT if of_grid else label_zoo.DEVELOPMENT)
    done: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    todo: dict[str, Callable[[], Any]] = {}
    if of_grid:
        for cell in label_grid.cells():
            if asked.only is None or cell.name in asked.only:
                todo[f"{asked.kind} {cell.name}"] = partial(grid_cell, asked.kind, cell, asked)
    else:
        there = label_zoo._few_classes() if asked.few else label_zoo._habitats()
        for name in there if asked.only is None else asked.only:
            for stage in asked.stages.split(","):
                title = f"{asked.kind} {name} {stage}{' even' if asked.even else ''} {asked.seed}"
                todo[title] = partial(zoo_cell, asked.kind, name, stage, asked)
    for title, run in todo.items():
        if title not in done:
            done[title] = run()
            asked.out.write_text(json.dumps(done))
            print(title, flush=True)
    for other in asked.also:
        done |= json.loads(other.read_text())
    print(table(done))


if __name__ == "__main__":
    main()
