"""Texts out of one message: tokens, then sequences, then what is certain of them, by the kind of transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.certificate import Batch, LastBlock, by_head, certain_below, unexplained
from fedspill.leaks.words.exact.encoder_texts import Marks, arrange_encoder
from fedspill.leaks.words.exact.next_targets import with_targets
from fedspill.leaks.words.exact.prefixes import grow_prefixes
from fedspill.leaks.words.exact.row_space import SPARE, RowSpace, as_sent, leading_space, row_spaces
from fedspill.leaks.words.exact.token_test import Cells, fitting_tokens
from fedspill.leaks.words.moved_rows import moved_rows

# Distances, as shares of a random vector's, within which an input counts as inside: rounding first, then what local
# steps and noise leave.
LADDER = (1e-3, 3e-3, 1e-2, 0.03, 0.1)
LOOSE = (0.05, 0.2, 0.45)
SHARES = (0.9, 0.8, 0.65)  # of the width: leading directions that are taken for the space where it is full
MOST_CELLS = 180_000
MOST_PEELS = 6


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
    spaces = row_spaces(torch.cat([part.to(stacked[0]) for part in stacked])) if stacked else []
    cells = list(_cells(attacked, spaces, used, rng))
    if not cells:
        found = used if used is not None else torch.zeros(0, dtype=torch.int64)
        why = "the first layer has as many inputs as dimensions" if spaces else "nothing of the first layer was sent"
        return RecoveredText(found, why=why)
    tokens = used if used is not None else cells[0].inside().all_tokens().cpu()
    if not attacked.plain:
        return RecoveredText(tokens, why="the steps are not those of plain SGD, so that texts cannot be checked")
    texts = _decoder(attacked, cells, rng) if attacked.net.causal else _encoder(attacked, cells, marks, rng)
    if texts.sequences and all(texts.certified) and len(texts.sequences) == attacked.samples:
        tokens = torch.tensor(sorted({token for sequence in texts.sequences for token in sequence}))
    return replace(texts, tokens=tokens)


def used_tokens(attacked: AttackedText) -> Tensor | None:
    """The tokens whose rows moved, where the embedding is trained."""
    rows = attacked.gradients.get("wte.weight")
    if rows is None or not bool(rows.any()):
        return None
    return moved_rows(rows.double(), torch.zeros((), device=rows.device)).cpu()


def _cells(
    attacked: AttackedText, spaces: Sequence[RowSpace], used: Tensor | None, rng: torch.Generator
) -> Iterator[Cells]:
    """Which token may stand where, at each tolerance, the strictest first."""
    allowed = None if used is None else used.to(attacked.net.wte.weight.device)
    roomy = [space for space in spaces if space.free >= SPARE]
    for number, space in enumerate(roomy):
        for tolerance in LADDER if number == 0 else LOOSE:
            cells = fitting_tokens(attacked.net, space, tolerance, rng, allowed).inside()
            if 0 < cells.many <= MOST_CELLS:
                yield cells
    positions = attacked.gradients.get("wpe.weight")
    if allowed is not None and positions is not None:  # tokens are known: any may stand at any place that was used
        places = int((positions.abs().sum(1) > 0).sum())
        if places and len(allowed):
            yield Cells({place: allowed for place in range(places)})


def _decoder(attacked: AttackedText, cells: Sequence[Cells], rng: torch.Generator) -> RecoveredText:
    """Texts by prefixes; where they are too many for the first block, those with the strongest signal first."""
    rest, proven = attacked, Batch([], [], 1.0)
    best = Batch([], [], float("inf"))
    last = LastBlock.of(attacked)
    for _ in range(MOST_PEELS):
        found = _best_batch(rest, attacked, proven, cells, rng)
        if found.unexplained < certain_below(attacked):
            return RecoveredText(torch.zeros(0, dtype=torch.int64), found.sequences, [True] * len(found.sequences))
        best = min(best, found, key=lambda batch: batch.unexplained)
        if last is None or not attacked.whole or attacked.steps > 1:
            break
        marked = last.proven(attacked, found.sequences, found.labels)
        sure = [place for place, good in enumerate(marked) if good]
        if len(sure) <= len(proven.sequences):
            break
        proven = Batch([found.sequences[i] for i in sure], [found.labels[i] for i in sure], 1.0)
        rest = _without(attacked, proven)
    sequences = proven.sequences + [one for one in best.sequences if one not in proven.sequences]
    certified = [True] * len(proven.sequences) + [False] * (len(sequences) - len(proven.sequences))
    why = "the texts found do not explain all that was sent" if sequences else "no text fits the first block"
    return RecoveredText(torch.zeros(0, dtype=torch.int64), sequences, certified, why)


def _without(attacked: AttackedText, proven: Batch) -> AttackedText:
    """What is left of a message when the texts that are certain are taken out of it."""
    mine = attacked.sent_by(proven.sequences, proven.labels)
    share = len(proven.sequences) / attacked.samples
    return replace(attacked, gradients={n: t - share * mine[n] for n, t in attacked.gradients.items()})


def _best_batch(
    rest: AttackedText, attacked: AttackedText, proven: Batch, cells: Sequence[Cells], rng: torch.Generator
) -> Batch:
    """The batch that leaves least unexplained, over tolerances; the first that is certain ends the search."""
    best = Batch([], [], float("inf"))
    for candidates in _candidates(rest, cells, rng):
        together = [*proven.sequences, *(one for one in candidates if one not in proven.sequences)]
        batch = _explained(attacked, together)
        if batch is not None and batch.unexplained < best.unexplained:
            best = batch
        if best.unexplained < certain_below(attacked):
            break
    return best


def _candidates(rest: AttackedText, cells: Sequence[Cells], rng: torch.Generator) -> Iterator[list[list[int]]]:
    """Texts that fit the first block's feed-forward part, at each tolerance."""
    gradient = rest.inputs_gradient("h.0.mlp.c_fc")
    if gradient is None:
        return
    rows = rest.rows_of("h.0.mlp.c_fc")
    spaces = [] if rows is None else row_spaces(rows)
    roomy = bool(spaces) and spaces[0].free >= SPARE
    if roomy:
        most = max(200, 4 * rest.samples)
        for table, tolerance in zip(_each(cells, len(LADDER)), LADDER, strict=False):
            texts = grow_prefixes(rest.net, table, spaces[0], tolerance, most, rng)
            yield texts
            if len(texts) >= rest.width:  # more would fit at every looser tolerance
                return
    # What drifted over steps is as large as what it drifted from: there rows keep their lengths.
    others = spaces[1:] + row_spaces(as_sent(gradient)) if rest.steps > 1 or not rest.whole else spaces[1:]
    others = [space for space in others if space.free >= SPARE]
    if not roomy and rest.steps == 1:
        others += [leading_space(gradient, share) for share in SHARES]
    loosest = _each(cells, len(LADDER))[-1]
    for space in others:
        for tolerance in LOOSE:
            texts = grow_prefixes(rest.net, loosest, space, tolerance, 2 * rest.samples, rng)
            yield texts
            if len(texts) >= rest.width:
                break


def _each(cells: Sequence[Cells], many: int) -> list[Cells]:
    """One table for each tolerance; the last stands in for those that are missing."""
    return [cells[min(place, len(cells) - 1)] for place in range(many)]


def _explained(attacked: AttackedText, candidates: Sequence[Sequence[int]]) -> Batch | None:
    """The texts among the candidates that were there, and what they leave unexplained of the whole message."""
    if not candidates or len(candidates) >= attacked.width:
        return None
    if attacked.net.every_place:
        batch = with_targets(attacked, candidates)
    else:
        batch = by_head(attacked, candidates)
        if batch is not None and len(batch.sequences) < attacked.samples:
            # A text that begins another one is no longest prefix: all prefixes are tried.
            begun = {tuple(one[:end]) for one in candidates for end in range(1, len(one) + 1)}
            more = by_head(attacked, [list(one) for one in sorted(begun)]) if len(begun) < attacked.width // 2 else None
            batch = more if more is not None and more.unexplained < 0.5 * batch.unexplained else batch
    if batch is None or not batch.sequences:
        return None
    if not attacked.whole:
        return batch
    if len(batch.sequences) > 2 * attacked.samples:
        # So many more than the client had are no batch of its: the head was fitted by texts that were not there.
        return replace(batch, unexplained=1.0)
    return replace(batch, unexplained=unexplained(attacked, batch.sequences, batch.labels))


def _encoder(attacked: AttackedText, cells: Sequence[Cells], marks: Marks, rng: torch.Generator) -> RecoveredText:
    """Texts by what each token and each place was told; see encoder_texts."""
    nothing = torch.zeros(0, dtype=torch.int64)
    rows = attacked.rows_of("h.0.mlp.c_fc")
    spaces = [] if rows is None else row_spaces(rows)
    if not spaces or spaces[0].free < SPARE:
        return RecoveredText(nothing, why="the first block has as many inputs as dimensions")
    best: list[list[int]] = []
    for table in (cells[0], cells[min(2, len(cells) - 1)]):
        best = arrange_encoder(attacked, table, spaces[0], marks, rng)
        batch = _explained(attacked, best)
        if batch is not None and batch.unexplained < certain_below(attacked):
            return RecoveredText(nothing, batch.sequences, [True] * len(batch.sequences))
        if batch is not None:
            last = LastBlock.of(attacked)
            sure = [] if last is None else last.proven(attacked, batch.sequences, batch.labels)
            if any(sure):
                others = [one for one in best if one not in batch.sequences]
                return RecoveredText(nothing, batch.sequences + others, sure + [False] * len(others))
    return RecoveredText(nothing, best, [False] * len(best), "the texts found do not explain all that was sent")
