"""DAGER (Petrov et al., NeurIPS 2024): tokens, then texts, whose inputs lie in the span of two layers' gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.words.exact.attacked_text import AttackedText, attacked_texts, batch_of
from fedspill.leaks.words.exact.recover import RecoveredText
from fedspill.leaks.words.exact.row_space import RowSpace
from fedspill.leaks.words.exact.token_test import Cells, first_norm
from fedspill.leaks.words.guess import ClientText, stacked
from fedspill.leaks.words.leak import FROZEN_CONTROL, WORDS
from fedspill.models.text_transformer import TextTransformer
from fedspill.threat import needs
from fedspill.trace import View

_TOKENS_AT_ONCE, _TEXTS_AT_ONCE = 8192, 64


@final
@dataclass(frozen=True)
class Dager(Attack):
    """Token by token against the gradient of the first attention, then texts against that of the second.

    A decoder's texts are grown greedily. An encoder's are searched among all combinations of tokens, length by length,
    as long as these are no more than `most_combinations`. Does not apply where the batch has as many tokens as the
    model has dimensions, and vouches for nothing.
    """

    name: ClassVar[str] = "dager"
    title: ClassVar[str] = "DAGER, texts in the span of gradients"
    paper: ClassVar[str] = "Petrov et al., DAGER, NeurIPS 2024"
    needs = needs(sees=["update|gradient", "model"], knows=["architecture"])
    leak = WORDS
    control = FROZEN_CONTROL

    origins: int = 4
    rank_tolerance: float = 5e-7  # share of the largest singular value that still counts
    first_threshold: float = 1e-3  # distance to the first span, of unit vectors
    second_threshold: float = 1e-3
    most_combinations: int = 20_000

    def run(self, view: View, rng: torch.Generator) -> ClientText:
        messages, notes = attacked_texts(view, self.origins, rng, "cpu")
        found = [self.recover(attacked) for attacked in messages]
        notes += dict.fromkeys(one.why for one in found if one.why)
        return ClientText(
            [attacked.of for attacked in messages],
            [one.tokens for one in found],
            [stacked(one.sequences) for one in found],
            [torch.tensor(one.certified, dtype=torch.bool) for one in found],
            notes,
        )

    def recover(self, attacked: AttackedText) -> RecoveredText:
        nothing = torch.zeros(0, dtype=torch.int64)
        spans = [self._span(attacked, layer) for layer in (0, 1)]
        if spans[0] is None or spans[1] is None or len(attacked.net.h) < 2:
            return RecoveredText(nothing, why="DAGER reads the gradients of two attention layers")
        if spans[0].free < 1:
            return RecoveredText(nothing, why="as many tokens as dimensions: every token lies in the span")
        cells = tokens_in_span(attacked.net, spans[0], self.first_threshold)
        tokens = cells.all_tokens().cpu()
        if spans[1].free < 1:
            return RecoveredText(tokens, why="as many tokens as dimensions: every text lies in the span")
        if attacked.net.causal:
            scored = list(self._grown(attacked, cells, spans[1]))
        else:
            scored = list(self._combined(attacked, cells, spans[1]))
        best = [text for _, text in sorted(scored)[: attacked.samples]]
        why = "" if best else "no text lies in the span, or there are too many combinations"
        return RecoveredText(tokens, best, [False] * len(best), why)

    def _span(self, attacked: AttackedText, layer: int) -> RowSpace | None:
        gradient = attacked.inputs_gradient(f"h.{layer}.attn.c_attn")
        if gradient is None:
            return None
        # GPT-2 keeps queries, keys and values in one matrix; of an encoder the queries are read.
        rows = gradient if attacked.net.causal else gradient[: attacked.width]
        _, values, directions = torch.linalg.svd(rows.double(), full_matrices=False)
        rank = int((values > self.rank_tolerance * values[0]).sum())
        return RowSpace(directions[:rank].T.contiguous(), attacked.width)

    def _grown(self, attacked: AttackedText, cells: Cells, span: RowSpace) -> Iterator[tuple[float, list[int]]]:
        """Texts that no token lengthens, with the mean distance of their tokens."""
        alive: list[tuple[float, list[int]]] = [(0.0, [])]
        for place in range(cells.places):
            longer = [(far, [*text, token]) for far, text in alive for token in cells.tokens[place].tolist()]
            distances = second_inputs(attacked, [text for _, text in longer], span)
            grown = [
                (far + float(new[-1]), text)
                for (far, text), new in zip(longer, distances, strict=True)
                if float(new[-1]) < self.second_threshold
            ]
            begun = {tuple(text[:-1]) for _, text in grown}
            yield from ((far / len(text), text) for far, text in alive if text and tuple(text) not in begun)
            alive = sorted(grown)[: 4 * attacked.samples]
        yield from ((far / len(text), text) for far, text in alive if text)

    def _combined(self, attacked: AttackedText, cells: Cells, span: RowSpace) -> Iterator[tuple[float, list[int]]]:
        """All combinations of tokens, length by length, that lie in the span with every token."""
        for length in range(1, cells.places + 1):
            tables = [cells.tokens[place].tolist() for place in range(length)]
            if prod(len(table) for table in tables) > self.most_combinations:
                return
            texts = [list(text) for text in product(*tables)]
            for text, far in zip(texts, second_inputs(attacked, texts, span), strict=True):
                if float(far.max()) < self.second_threshold:
                    yield float(far.mean()) - length, text  # a text that goes on is better than its beginning


@torch.no_grad()
def tokens_in_span(net: TextTransformer, span: RowSpace, threshold: float) -> Cells:
    """For each place the tokens whose first input lies in the span, up to the first place that none fits."""
    norm, found = first_norm(net), {}
    for place in range(net.wpe.num_embeddings):
        near = []
        for begin in range(0, net.wte.num_embeddings, _TOKENS_AT_ONCE):
            inputs = norm(net.wte.weight[begin : begin + _TOKENS_AT_ONCE] + net.wpe.weight[place])
            near.append(begin + (span.distance(inputs) < threshold).nonzero().flatten())
        fitting = torch.cat(near)
        fitting = fitting[fitting != net.wte.padding_idx] if net.wte.padding_idx is not None else fitting
        if not len(fitting):
            break
        found[place] = fitting
    return Cells(found)


@torch.no_grad()
def second_inputs(attacked: AttackedText, texts: Sequence[list[int]], span: RowSpace) -> list[Tensor]:
    """Of each text how far what the second layer reads of each token lies from the span."""
    net, found = attacked.net, []
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[begin : begin + _TEXTS_AT_ONCE]
        x = batch_of(part, [0] * len(part), net).x
        state = attacked.first(net.embed(x), net.real(x))
        second = net.h[1]
        far = span.distance(second.ln_1(state) if net.causal else state).cpu()  # type: ignore[operator]
        found += [far[row, : len(text)] for row, text in enumerate(part)]
    return found
