"""Texts out of one message: tokens, then sequences, then what is certain of them, by the kind of transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from fedspill.leaks.words.exact.adapter_space import adapter_space
from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.cell_tables import LADDER, LOOSE, CellTables
from fedspill.leaks.words.exact.certificate import (
    Batch,
    by_head,
    certain_below,
    size_of,
    unexplained,
)
from fedspill.leaks.words.exact.encoder_texts import Marks, arrange_encoder
from fedspill.leaks.words.exact.key_texts import texts_by_keys
from fedspill.leaks.words.exact.next_targets import with_targets
from fedspill.leaks.words.exact.peeling import Peeled
from fedspill.leaks.words.exact.prefixes import grow_prefixes
from fedspill.leaks.words.exact.row_space import SPARE, RowSpaces, as_sent, row_spaces
from fedspill.leaks.words.exact.token_test import Cells
from fedspill.leaks.words.exact.wide_prefixes import QUICK, THOROUGH, Care, grow_wide, work
from fedspill.leaks.words.moved_rows import moved_rows

FIRST = "h.0.attn.c_attn"
TOLD_APART = (slice(0, 1), slice(0, 3), slice(2, 3))  # queries, all, values: by which an encoder's texts are told apart
MOST_PEELS = 16
MOST_TRIES = 6
_HEAD_MISSED = 0.3  # share of the head's gradient; with so much missing there is no need to look at all the others


@dataclass(frozen=True, eq=False)
class RecoveredText:
    """What came of one message."""

    tokens: Tensor  # (k,) int64
    sequences: list[list[int]] = field(default_factory=list)
    certified: list[bool] = field(default_factory=list)
    why: str = ""  # where sequences are missing or not certain


def recover_text(
    attacked: AttackedText, stacked: Sequence[Tensor], marks: Marks, rng: torch.Generator
) -> RecoveredText:
    """Everything that the message gives away; `stacked` are whitened rows of the first layer."""
    used = used_tokens(attacked)
    nothing = RowSpaces([], False)
    noisy = attacked.noise_of(FIRST) > 0
    spaces = row_spaces(torch.cat([part.to(stacked[0]) for part in stacked]), noisy=noisy) if stacked else nothing
    adapter = adapter_space(attacked, FIRST)
    likely = spaces.likely if adapter is None else [adapter, *spaces.likely]
    every, known = CellTables.every(attacked, used), used is not None
    cells = every if spaces.full and known else CellTables.told_by(likely, attacked, used, rng)
    told = not known and cells.any
    cells = cells if cells.any or not spaces.full else every

    def tokens() -> Tensor:
        return cells.tokens() if told else torch.zeros(0, dtype=torch.int64) if used is None else used

    if not cells.any:
        why = _why_no_cell(any_space=bool(likely), noisy=noisy)
        return RecoveredText(tokens(), why=why)
    if not attacked.plain:
        return RecoveredText(tokens(), why="the steps are not those of plain SGD, so that texts cannot be checked")
    # Where the first layer is full it does not say which tokens: past the dimensions all are tried.
    wide = (every if spaces.full else cells).at(0)
    texts = _texts(attacked, cells, wide, marks, used, rng)
    whole = bool(texts.sequences) and all(texts.certified) and len(texts.sequences) == attacked.samples
    named = texts.tokens if whole else tokens()
    if not len(named):
        named = torch.tensor(sorted({token for sequence in texts.sequences for token in sequence}), dtype=torch.int64)
    return replace(texts, tokens=named)


def _why_no_cell(*, any_space: bool, noisy: bool) -> str:
    if noisy:
        return "noise hides what the first layer read, so that it cannot be told which words were there"
    return "the first layer has as many inputs as dimensions" if any_space else "nothing of the first layer was sent"


def used_tokens(attacked: AttackedText) -> Tensor | None:
    """The tokens whose rows moved, where the embedding is trained."""
    rows = attacked.gradients.get("wte.weight")
    if rows is None or not bool(rows.any()):
        return None
    still = torch.zeros((), device=rows.device)
    return moved_rows(rows.double(), still, attacked.net.wte.weight.detach().double()).cpu()


def _texts(
    attacked: AttackedText, cells: CellTables, wide: Cells, marks: Marks, used: Tensor | None, rng: torch.Generator
) -> RecoveredText:
    """Texts that were there; those that are proven are taken out, and the rest is read again."""
    nothing, causal = torch.zeros(0, dtype=torch.int64), attacked.net.causal
    peeled, best, tries = Peeled.of(attacked), Batch([], [], float("inf")), 0
    for _ in range(MOST_PEELS):
        proven, spaces = peeled.proven, peeled.rest.spaces_of("h.0.mlp.c_fc")
        if peeled.nothing_left:
            return RecoveredText(nothing, proven.sequences, [True] * len(proven.sequences))
        past = causal and spaces.crowded
        care = THOROUGH if tries else QUICK
        by_arranging = _arranged(peeled, spaces, cells, marks, rng)
        candidates = _prefixes(peeled, spaces, cells, wide, rng, care) if causal else by_arranging
        found = _best(peeled, candidates, all_or_none=past)
        if found.unexplained < certain_below(attacked):
            return RecoveredText(nothing, found.sequences, [True] * len(found.sequences))
        best = min(best, found, key=lambda batch: batch.unexplained)
        if peeled.proven is proven and not peeled.take_out([*found.sequences, *found.others]):
            tries += 1
            if peeled.last is None or not past or tries >= MOST_TRIES or peeled.effort.ended:
                break
            continue  # past the dimensions a pass depends on what is drawn: it is drawn anew, with more care
        tries, first = 0, peeled.rest.spaces_of(FIRST)
        of_rest = cells.of_rest([] if first.full else first.likely, peeled.rest, used, rng)
        cells = of_rest if of_rest.any else CellTables(iter([wide]))
    sequences = peeled.proven.sequences + peeled.new(best.sequences)
    sequences += sorted(peeled.new(best.others), key=len, reverse=True)[: max(0, attacked.samples - len(sequences))]
    certain = len(peeled.proven.sequences)
    full = "the first block has as many inputs as dimensions"
    nothing_fits = full if spaces.crowded else "no text fits the first block"
    why = "the texts found do not explain all that was sent" if sequences else nothing_fits
    why = "the search was ended before it was through: it would take too long" if peeled.effort.ended else why
    return RecoveredText(nothing, sequences, [True] * certain + [False] * (len(sequences) - certain), why)


def _best(peeled: Peeled, candidates: Iterator[list[list[int]]], *, all_or_none: bool) -> Batch:
    """The batch that leaves least unexplained; one that is certain, or texts that were taken out, end the search."""
    best, tried, proven = Batch([], [], float("inf")), set(), peeled.proven
    for texts in candidates:
        if peeled.proven is not proven:
            return Batch([], [], 1.0, texts)  # the others are told more easily without these
        same = frozenset(map(tuple, texts))
        if same in tried:  # to do a client's steps again is what takes long
            continue
        tried.add(same)
        batch = _beside(peeled, texts, all_or_none=all_or_none)
        batch = Batch([], [], 1.0) if batch is None else batch
        if batch.unexplained < best.unexplained:
            best = replace(batch, others=[one for one in texts if one not in batch.sequences])
        if best.unexplained < certain_below(peeled.attacked):
            break
    return best


def _prefixes(
    peeled: Peeled, found: RowSpaces, cells: CellTables, wide: Cells, rng: torch.Generator, care: Care
) -> Iterator[list[list[int]]]:
    """Texts that fit the first block's feed-forward part, at each tolerance."""
    rest = peeled.rest
    gradient = rest.inputs_gradient("h.0.mlp.c_fc")
    if gradient is None:  # as with adapters on attention alone: a single text is its tokens, one at each place
        table = cells.at(0)
        if rest.samples == 1 and table.many == table.places:
            yield [[int(table.tokens[place][0]) for place in range(table.places)]]
        return
    if found.crowded and rest.steps == 1 and rest.whole:
        believed = False
        for texts in _past_dimensions(peeled, wide, rng, care):
            believed = True
            yield texts
        if believed:
            return
    spaces = found.likely
    if spaces and spaces[0].free >= SPARE:
        most = max(200, 4 * rest.samples)
        for number, tolerance in enumerate(LADDER):
            texts = grow_prefixes(rest.net, cells.at(number), spaces[0], tolerance, most, peeled.effort, rng)
            yield texts
            if len(texts) >= rest.width:  # more would fit at every looser tolerance; the rank may be another one
                break
    # What drifted over steps is as large as what it drifted from: there rows keep their lengths.
    drifted = rest.steps > 1 or not rest.whole
    if drifted or rest.noise_of("h.0.mlp.c_fc") > 0:  # what drifts fills the width before it fills the layers inside
        yield from _past_dimensions(peeled, cells.anywhere(), rng, care)
    others = spaces[1:] + row_spaces(as_sent(gradient)).likely if drifted else spaces[1:]
    others = [space for space in others if space.free >= SPARE]
    for space in others:
        for tolerance in LOOSE:
            table, most = cells.at(len(LADDER) - 1), 2 * rest.samples
            texts = grow_prefixes(rest.net, table, space, tolerance, most, peeled.effort, rng)
            yield texts
            if len(texts) >= rest.width:
                break


def _past_dimensions(peeled: Peeled, cells: Cells, rng: torch.Generator, care: Care) -> Iterator[list[list[int]]]:
    """Texts where there are more prefixes than dimensions, if that is not too much work."""
    if work(peeled.rest, cells) <= peeled.effort.left:
        yield from grow_wide(peeled, cells, rng, care)


def _beside(peeled: Peeled, candidates: Sequence[Sequence[int]], *, all_or_none: bool) -> Batch | None:
    """The texts that were there beside those that are proven, with these, and what they leave of the whole message."""
    attacked, rest, proven, others = peeled.attacked, peeled.rest, peeled.proven, peeled.new(candidates)
    if not proven.sequences or attacked.lr is not None:  # what rounded the weights was the sum of all
        return _explained(attacked, [*proven.sequences, *others], attacked.samples, all_or_none)
    found = _explained(rest, others, peeled.missing, all_or_none)
    if found is None:
        return None
    left = found.unexplained * size_of(rest) / size_of(attacked)
    return Batch([*proven.sequences, *found.sequences], [*proven.labels, *found.labels], left)


def _explained(
    attacked: AttackedText, candidates: Sequence[Sequence[int]], many: int, all_or_none: bool = False
) -> Batch | None:
    """The texts among the candidates that were there, `many` at most, and what they leave unexplained of all of it.

    With `all_or_none` a batch that is not complete is held against the head alone: it is sure to leave something.
    """
    if not candidates or len(candidates) >= attacked.width:
        return None
    if attacked.net.every_place:
        batch = with_targets(attacked, candidates)
    else:
        batch = by_head(attacked, candidates)
        if batch is not None and len(batch.sequences) < many:
            # A text that begins another one is no longest prefix: all prefixes are tried.
            begun = {tuple(one[:end]) for one in candidates for end in range(1, len(one) + 1)}
            more = by_head(attacked, [list(one) for one in sorted(begun)]) if len(begun) < attacked.width // 2 else None
            batch = more if more is not None and more.unexplained < 0.5 * batch.unexplained else batch
    if batch is None or not batch.sequences:
        return None
    if not attacked.whole or (attacked.steps == 1 and batch.unexplained > _HEAD_MISSED):
        return batch
    if all_or_none and attacked.steps == 1 and len(batch.sequences) != many:
        return batch
    if len(batch.sequences) > 2 * many:
        # So many more than the client had are no batch of its: the head was fitted by texts that were not there.
        return replace(batch, unexplained=1.0)
    return replace(batch, unexplained=unexplained(attacked, batch.sequences, batch.labels))


def _arranged(
    peeled: Peeled, found: RowSpaces, cells: CellTables, marks: Marks, rng: torch.Generator
) -> Iterator[list[list[int]]]:
    """An encoder's texts that keys told, and where these are too few, with them what clusters of tokens make."""
    if not found.likely or found.likely[0].free < SPARE:
        return
    attacked, missing, space = peeled.rest, peeled.missing, found.likely[0]
    tables = (cells.at(0), cells.at(2))
    by_keys = texts_by_keys(attacked, missing, tables[0], space, marks)
    yield by_keys
    taken_out = peeled.take_out(by_keys)
    for table, parts in product(tables, TOLD_APART):
        if taken_out:
            return
        texts = arrange_encoder(attacked, missing, table, space, marks, parts, rng)
        texts = [*by_keys, *(one for one in texts if one not in by_keys)]
        yield texts
        taken_out = peeled.take_out(texts)
