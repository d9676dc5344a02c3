"""Encoder: whole texts from a few of their tokens, because what a query is told is made of the keys of its own text.

In each head the signal at a token's query is a sum of the keys of its text, and the signal at its key a sum of the
queries of its text. The signals of some tokens of one text span a part of what the keys of all its tokens span; which
keys these are, out of all that may have been there, is found one after the other, each time the one that lies most in
what is still unexplained (rank-aware order recursive matching pursuit, Davies and Eldar 2012). All heads must agree.
It needs texts shorter than a head is wide, and as few as two or three tokens that no other text of the batch has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.encoder_texts import NEAR, TIGHT, Marks, distances, repaired, told
from fedspill.leaks.words.exact.row_space import RowSpace
from fedspill.leaks.words.exact.token_test import Cells, first_norm
from fedspill.models.lora import linear_weight

_CORES = (10, 6, 3, 15)  # tokens that a text is sought from: many tell more, few are less often of two texts
_SEEDS = 24  # bunches of tokens that are tried for one size without a text being found
_NOISE = 1e-4  # share of the largest singular value of signals below which rounding reigns
_EXPLAINED = 1e-2  # share of a token's signals that its own text leaves


@dataclass(frozen=True, eq=False)
class Heads:
    """All cells that may have been there, and per head what they add to signals.

    `parts` (2 heads, cells, head width) holds keys, of which the signals at queries are made, and then queries, of
    which those at keys are made. `signals` (2 heads, tokens, head width) are these signals of every token.
    """

    tokens: Tensor  # (cells,)
    places: Tensor  # (cells,)
    parts: Tensor
    signals: Tensor

    @staticmethod
    @torch.no_grad()
    def of(attacked: AttackedText, cells: Cells, signals: Tensor) -> Heads:
        """From what each token was told (tokens, 3 width)."""
        net, width, heads = attacked.net, attacked.width, attacked.first.attn.heads
        tokens = torch.cat([cells.tokens[place] for place in range(cells.places)])
        places = torch.cat([torch.full_like(cells.tokens[place], place) for place in range(cells.places)])
        read = first_norm(net)(net.wte.weight[tokens] + net.wpe.weight[places]).double()
        weight, bias = linear_weight(attacked.first.attn.c_attn)
        made = read @ weight.double().T + (0 if bias is None else bias.double())

        def by_head(rows: Tensor, third: int) -> Tensor:
            part = rows[:, third * width : (third + 1) * width]
            return part.reshape(len(rows), heads, width // heads).transpose(0, 1).cpu()

        parts = torch.cat([by_head(made, 1), by_head(made, 0)])
        return Heads(
            tokens.cpu(),
            places.cpu(),
            parts / parts.norm(dim=2, keepdim=True).clamp_min(1e-30),
            torch.cat([by_head(signals, 0), by_head(signals, 1)]),
        )

    def chosen_for(self, core: Tensor, first: int | None) -> list[int]:
        """Cells in the order in which they explain the signals of the tokens `core`, one for each place."""
        left = [_basis(one) for one in self.signals[:, core]]
        free, parts = torch.ones(len(self.tokens), dtype=torch.bool), self.parts.clone()
        chosen: list[int] = []
        most = min(int(self.places.max()) + 1, self.parts.shape[2] - 1)
        while len(chosen) < most and bool(free.any()):
            if first is not None and not chosen:
                best = first
            else:
                lengths = parts.norm(dim=2)
                inside = torch.stack([(part @ basis.T).norm(dim=1) for part, basis in zip(parts, left, strict=True)])
                evidence = torch.where(lengths > 1e-3, inside / lengths.clamp_min(1e-3), 0.0).square().sum(0)
                best = int(torch.where(free, evidence, -1.0).argmax())
            chosen.append(best)
            free &= self.places != self.places[best]
            direction = parts[:, best] / parts[:, best].norm(dim=1, keepdim=True).clamp_min(1e-30)
            parts = parts - (parts @ direction[:, :, None]) * direction[:, None, :]
            left = [
                _basis(basis - (basis @ one)[:, None] * one, 1e-3) for basis, one in zip(left, direction, strict=True)
            ]
            if not any(map(len, left)):
                break
        return chosen

    def explained(self, text: list[int]) -> Tensor:
        """(tokens,) whether the signals of a token are made of the keys and queries of this text alone."""
        cells = {(token, place): row for row, (token, place) in enumerate(zip(*self._pairs(), strict=True))}
        mine = [cells[token, place] for place, token in enumerate(text) if (token, place) in cells]
        missed = torch.zeros(self.signals.shape[:2], dtype=torch.float64)
        for number, (signals, parts) in enumerate(zip(self.signals, self.parts[:, mine], strict=True)):
            basis = _basis(parts)
            missed[number] = (signals - (signals @ basis.T) @ basis).norm(dim=1) / signals.norm(dim=1).clamp_min(1e-30)
        return missed.median(0).values < _EXPLAINED

    def _pairs(self) -> tuple[list[int], list[int]]:
        return self.tokens.tolist(), self.places.tolist()


def _basis(rows: Tensor, least: float = 0.0) -> Tensor:
    """(rank, width) orthonormal directions of rows (n, width), without those of rounding or shorter than `least`."""
    if not len(rows):
        return rows
    if not least:
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    _, values, directions = torch.linalg.svd(rows, full_matrices=False)
    kept: Tensor = directions[values > (least or _NOISE * float(values[0]))]
    return kept


def texts_by_keys(attacked: AttackedText, many: int, cells: Cells, space: RowSpace, marks: Marks) -> list[list[int]]:
    """Texts of which every token fits the first feed-forward part, at most so many, as many as are found."""
    tokens = cells.all_tokens()
    signals = told(attacked, tokens, cells.places)
    if signals is None or cells.places < 2:
        return []
    heads = Heads.of(attacked, cells, signals.tokens.to(tokens.device))
    first = next(iter(((heads.places == 0) & (heads.tokens == marks.begin)).nonzero().flatten().tolist()), None)
    pool = torch.tensor([token not in marks.known() for token in tokens.tolist()])
    queries = signals.tokens[:, : attacked.width].cpu()
    unit = queries / queries.norm(dim=1, keepdim=True).clamp_min(1e-30)
    found: list[list[int]] = []
    for size in _CORES:
        failed = 0
        tried: set[tuple[int, ...]] = set()
        while len(found) < many and failed < _SEEDS:
            core = next((one for one in _bunches(unit, pool, size) if tuple(one.tolist()) not in tried), None)
            if core is None:
                break
            tried.add(tuple(core.tolist()))
            text = _nearest(attacked, heads, core, heads.chosen_for(core, first), cells, space, marks)
            if text is None or text in found:
                failed += 1
                continue
            found.append(text)
            pool &= ~heads.explained(text)
            failed = 0
    return found


def _bunches(unit: Tensor, pool: Tensor, size: int) -> Iterator[Tensor]:
    """(size,) tokens of the pool whose queries were told most alike, around each token, the tightest bunch first."""
    rows = pool.nonzero().flatten()
    if not len(rows):
        return
    near, places = (unit[rows] @ unit[rows].T).topk(min(size, len(rows)), 1)
    for row in near[:, -1].argsort(descending=True).tolist():
        yield rows[places[row]].sort().values


def _nearest(
    attacked: AttackedText,
    heads: Heads,
    core: Tensor,
    chosen: list[int],
    cells: Cells,
    space: RowSpace,
    marks: Marks,
) -> list[int] | None:
    """The text that the first so many chosen cells make, wherever they leave no gap, if its tokens fit, or nearly."""
    texts: list[list[int]] = []
    at: dict[int, int] = {}
    for row in chosen:
        at[int(heads.places[row])] = int(heads.tokens[row])
        text = [at.get(place, -1) for place in range(len(at))]
        if -1 not in text and (marks.end is None or text[-1] == marks.end):
            texts.append(text)
    far = distances(attacked, texts, space)
    for text, of_text in zip(texts, far, strict=True):
        if float(of_text.max()) < TIGHT * space.level:
            return text
    near = [number for number in range(len(texts)) if float(far[number].max()) < NEAR * space.level]
    for number in near:  # more inputs than dimensions leave no closer test than this
        if bool(heads.explained(texts[number])[core].all()):
            return texts[number]
    if not near:
        return None
    # Long texts have the smallest signals, of which float32 leaves little beside those of short ones: then the right
    # text is not much nearer than one in which two words are swapped. What is left is the nearest of its neighbours.
    nearest = min(near, key=lambda number: float(far[number].max()))
    tables = [cells.tokens[place].tolist() for place in range(cells.places)]
    return repaired(attacked, texts[nearest], set(heads.tokens.tolist()), tables, space, marks)
