"""The statistics of our own attack, each on the records asked about and on left-out auxiliary ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.leaks.membership.passive.exact_span import best_layer, leading_directions, nearness, square_of
from fedspill.leaks.membership.passive.moved_rows_of_records import odds_by_rows
from fedspill.leaks.membership.passive.observed import Observed, SeenRound
from fedspill.leaks.membership.passive.places import records_at_places
from fedspill.leaks.membership.passive.sample_layers import LayerName, RecordsAtLayer, records_at_layers
from fedspill.leaks.membership.passive.soft_span import share_within, whitening
from fedspill.leaks.membership.passive.whitened_gradient import whitened_products, without_labels, without_others

_WIDEST = 4096  # inputs of a layer whose spaces are computed; more would take too long
_NUMBERS_AT_ONCE = 1 << 24  # of the records asked about, at the widest layer: 128 MB, of which some copies are needed
_MOST = 0.5  # of outsiders must be unlikely by their rows for these to be asked


@dataclass(frozen=True, eq=False)
class Statistic:
    """Scores of the records asked about (records, senders), and of auxiliary ones (left out, senders)."""

    name: str
    asked: Tensor
    outsiders: Tensor
    note: str = ""


@dataclass(frozen=True, eq=False)
class Question:
    """Everything that is asked in one go: records first, then auxiliary ones for the tail, then those to whiten by."""

    records: Examples
    left_out: Examples
    fitted: Examples

    @staticmethod
    def of(records: Examples, auxiliary: Examples, rng: torch.Generator) -> Question:
        """Half of the auxiliary records, at random, are left out of whitening and tell what is usual."""
        order = torch.randperm(len(auxiliary), generator=rng)
        half = len(auxiliary) // 2
        plain = Examples(auxiliary.x, auxiliary.y)
        return Question(records, plain.take(order[:half]), plain.take(order[half:]))

    @property
    def everything(self) -> Examples:
        return Examples.join([self.records, self.left_out, self.fitted])

    @property
    def tested(self) -> int:
        return len(self.records) + len(self.left_out)

    def split(self, name: str, table: Tensor, note: str = "") -> Statistic:
        """table (tested, senders)."""
        return Statistic(name, table[: len(self.records)], table[len(self.records) : self.tested], note)


def statistics(observed: Observed, question: Question, only: str = "") -> list[Statistic]:
    """Those that can be had here, or the one that is asked for; the sharpest first."""
    found = [make(observed, question) for name, make in _MAKERS.items() if only in ("", name)]
    return [one for one in found if one is not None]


def _layers(observed: Observed, place: int, question: Question) -> list[RecordsAtLayer]:
    """What the layers see whose spaces can be computed."""
    everything, model = question.everything, observed.at(observed.rounds[place].before)
    found = records_at_layers(model, everything.x, everything.y, signals=False, widest=_WIDEST)
    return _recorded(found, observed.rounds[place])


def _recorded(layers: Sequence[RecordsAtLayer], seen: SeenRound) -> list[RecordsAtLayer]:
    """Those that are in the messages."""
    return [layer for layer in layers if layer.name.weight in next(iter(seen.changes.values()))]


def _exact(observed: Observed, question: Question) -> Statistic | None:
    senders = observed.senders
    said = [observed.examples(sender) for sender in senders]
    most = None if any(count is None for count in said) else max(count for count in said if count is not None)
    layer = best_layer(_layers(observed, 0, question), observed, most)
    if layer is None:
        return None
    tested, gaps = question.tested, []
    table = torch.zeros(tested, len(senders), dtype=torch.double)
    if layer.raw:
        for column, sender in enumerate(senders):
            squares = [square_of(layer.matrix(s.changes[sender])) for s in observed.rounds if sender in s.changes]
            found = leading_directions(torch.stack(squares).sum(0), said[column])
            if found is not None:
                gaps.append(found.gap)
                table[:, column] = nearness(found, layer.inputs[:tested]).cpu()
    else:
        seen_by = torch.zeros(len(senders), dtype=torch.double)
        for place, seen in enumerate(observed.rounds):
            inputs = _same(_layers(observed, place, question), layer).inputs[:tested]
            for column, sender in enumerate(senders):
                if sender not in seen.changes:
                    continue
                found = leading_directions(square_of(layer.matrix(seen.changes[sender])), said[column])
                if found is not None:
                    gaps.append(found.gap)
                    table[:, column] += nearness(found, inputs).cpu()
                    seen_by[column] += 1
        table /= seen_by.clamp_min(1)
    if not gaps:
        return None
    # One round of a layer behind others is only near the space: directions that all records share are in it.
    name = f"{layer.name.weight}, {layer.inputs.shape[1]} inputs"
    note = f"row space of {name}, {'all rounds together' if layer.raw else 'round by round'}"
    return question.split("exact span", table, f"{note}; singular values end at a gap of {median(gaps):.3g}")


def _same(layers: list[RecordsAtLayer], like: RecordsAtLayer) -> RecordsAtLayer:
    return next(layer for layer in layers if layer.name == like.name)


def _soft(observed: Observed, question: Question) -> Statistic | None:
    first = _layers(observed, 0, question)
    if not first:
        return None
    like = max(first, key=lambda layer: layer.inputs.shape[1])
    at_first = like.inputs[:, None]

    def seen_in(place: int) -> Tensor:
        if place == 0 or like.raw:
            return at_first
        return _same(_layers(observed, place, question), like).inputs[:, None]

    table = _shares(observed, question, like.name, seen_in)
    return question.split("soft span", table, f"whitened rows of {like.name.weight}")


def _convolution(observed: Observed, question: Question) -> Statistic | None:
    x = question.everything.x
    first = records_at_places(observed.at(observed.rounds[0].before), x)
    if first is None or first.name.weight not in next(iter(observed.rounds[0].changes.values())):
        return None

    def seen_in(place: int) -> Tensor:
        found = records_at_places(observed.at(observed.rounds[place].before), x)
        assert found is not None, "the same code on the same records"
        return found.inputs

    table = _shares(observed, question, first.name, seen_in)
    places = first.inputs.shape[1]
    return question.split("convolution span", table, f"whitened rows of {first.name.weight}, {places} places a record")


def _shares(observed: Observed, question: Question, name: LayerName, seen_in: Callable[[int], Tensor]) -> Tensor:
    """(tested, senders) soft span of a layer that sees inputs (records, places, in) in a round; the mean of rounds."""
    senders, tested = observed.senders, question.tested
    total = torch.zeros(tested, len(senders), dtype=torch.double)
    seen_by = torch.zeros(len(senders), dtype=torch.double)
    before: Tensor | None = None
    for place, seen in enumerate(observed.rounds):
        inputs = seen_in(place)
        if inputs is not before:  # a layer that sees the records themselves sees the same in all rounds
            # By all records there are: members and outsiders, asked about or known, weigh the same in it.
            white = whitening(inputs.flatten(0, 1))
            whitened, before = inputs[:tested] @ white, inputs
        for column, sender in enumerate(senders):
            if sender in seen.changes:
                change = name.matrix(seen.changes[sender], inputs.device)
                total[:, column] += share_within(change, white, whitened).cpu()
                seen_by[column] += 1
    return without_others(total / seen_by.clamp_min(1))


def _gradient(observed: Observed, question: Question) -> Statistic | None:
    senders, tested = observed.senders, question.tested
    asked = Examples.join([question.records, question.left_out])
    known = slice(len(question.records), tested)
    total = torch.zeros(tested, len(senders), dtype=torch.double)
    seen_by = torch.zeros(len(senders), dtype=torch.double)
    if len(question.fitted) < 2 or len(question.left_out) < 2:
        return None
    for seen in observed.rounds:
        model = observed.at(seen.before)
        fitted = _recorded(records_at_layers(model, question.fitted.x, question.fitted.y), seen)
        if not fitted:
            return None
        columns = [column for column, sender in enumerate(senders) if sender in seen.changes]
        changes = [seen.changes[senders[column]] for column in columns]
        many = _NUMBERS_AT_ONCE // max(layer.inputs.shape[1] + layer.signals.shape[1] for layer in fitted)
        parts = zip(torch.split(asked.x, max(1, many)), torch.split(asked.y, max(1, many)), strict=True)
        found = torch.cat(
            [
                whitened_products(_recorded(records_at_layers(model, x, y), seen), fitted, changes).cpu()
                for x, y in parts
            ]
        )
        norms = found[known].square().mean(0).sqrt().clamp_min(1e-300)
        found = without_labels(without_others(found / norms), asked.y, known)
        total[:, columns] += found / found[known].std(0).clamp_min(1e-12)
        seen_by[columns] += 1
    return question.split("whitened gradient", total / seen_by.clamp_min(1))


def _rows(observed: Observed, question: Question) -> Statistic | None:
    asked = torch.cat([question.records.x, question.left_out.x])
    table = odds_by_rows(observed, asked, question.fitted.x)
    if table is None:
        return None
    found = question.split("moved rows", table, "rows of an embedding that moved")
    # Where few categories are all there is, outsiders have no row either that stood still: others tell more then.
    return found if float((found.outsiders < 0).double().mean()) > _MOST else None


_MAKERS: dict[str, Callable[[Observed, Question], Statistic | None]] = {
    "exact span": _exact,
    "moved rows": _rows,
    "soft span": _soft,
    "convolution span": _convolution,
    "whitened gradient": _gradient,
}
