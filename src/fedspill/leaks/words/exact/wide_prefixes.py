"""Decoder, more prefixes than the model has dimensions: texts are grown by what the inner layers of all blocks read.

A single block and token leave doubt (inner_space.py), so that the blocks' evidence is added up, each in units of what
tokens drawn at random behind the same prefix get. What is believed is then known, which sharpens the evidence of the
rest; texts are grown again from the start until nothing is added.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText, batch_of
from fedspill.leaks.words.exact.growing import Growing, NextTokens, block_of
from fedspill.leaks.words.exact.inner_space import InnerSpace
from fedspill.leaks.words.exact.token_test import Cells

_PASSES = 6
_BEST, _DRAWN = 16, 12  # tokens behind a prefix that all blocks judge: the best of the first block, and random ones
_STANDS_OUT = 8.0  # deviations of random tokens above which a token is followed
_BESIDE = 0.8  # share of the best token's evidence that another one behind the same prefix must have
_SUPPORTED = 1.4  # F of an input that is believed; those that were not there have about 1
_FULLEST = 0.9  # share of the inner dimensions that inputs may fill when they are weighed against each other
_PER_DIMENSION = 8  # tokens drawn for each inner dimension, to know its usual inputs
_TEXTS_AT_ONCE = 64


@torch.no_grad()
def grow_wide(attacked: AttackedText, cells: Cells, rng: torch.Generator) -> Iterator[list[list[int]]]:
    """After each pass all prefixes that are believed to have been there, while they become more."""
    if not cells.places or not all(f"h.{block}.mlp.c_proj.weight" in attacked.gradients for block in _blocks(attacked)):
        return
    spaces = _spaces(attacked, cells, rng)
    known: list[list[int]] = []
    for _ in range(_PASSES):
        start = spaces
        if known:
            start = [space.knowing(read) for space, read in zip(spaces, _inner(attacked, known), strict=True)]
        believed = _supported(attacked, _grown(attacked, cells, start, rng), spaces)
        if len(believed) <= len(known):
            return
        known = believed
        yield known


def work(attacked: AttackedText, cells: Cells) -> float:
    """Floating-point operations of one pass, roughly, and of taking apart what blocks usually read."""
    inner = 4 * attacked.width
    return 2.0 * attacked.samples * cells.many * inner * (3 * inner) + 10.0 * len(_blocks(attacked)) * inner**3


def _blocks(attacked: AttackedText) -> range:
    """All blocks but the last, in which only the end of a text leaves a trace."""
    return range(max(1, len(attacked.net.h) - 1))


def _spaces(attacked: AttackedText, cells: Cells, rng: torch.Generator) -> list[InnerSpace]:
    """Of each block, in the metric of texts whose tokens are drawn at random."""
    tokens, length = cells.all_tokens(), cells.places
    covariances: list[Tensor] = []
    for _ in range(1 + _PER_DIMENSION * 4 * attacked.width // (length * _TEXTS_AT_ONCE)):
        drawn = torch.randint(len(tokens), (_TEXTS_AT_ONCE, length), generator=rng).to(tokens.device)
        products = []
        for read in _caught(attacked, tokens[drawn]):
            rows = read.flatten(0, 1).double()
            products.append(rows.T @ rows / len(rows))
        covariances = [a + b for a, b in zip(covariances, products, strict=True)] if covariances else products
    sent = [attacked.gradients[f"h.{block}.mlp.c_proj.weight"] for block in _blocks(attacked)]
    return [InnerSpace.of(gradient, usual) for gradient, usual in zip(sent, covariances, strict=True)]


def _grown(attacked: AttackedText, cells: Cells, spaces: list[InnerSpace], rng: torch.Generator) -> list[list[int]]:
    """One pass from the first place to the last: all prefixes that stood out."""
    alive, found = Growing.begun(attacked.net, len(spaces)), []
    for place in range(cells.places):
        behind = alive.try_next(cells.tokens[place])
        likely, drawn = _screened(alive, behind, spaces[0], attacked.samples, rng)
        prefixes = torch.arange(len(likely), device=likely.device).repeat_interleave(likely.shape[1])
        pairs = alive.judged(prefixes, behind.tokens[likely.flatten()])
        evidence = _evidence(pairs.inner, spaces, likely.shape, drawn)
        good = evidence > _STANDS_OUT
        if len(alive.texts) > 1:
            good &= evidence >= _BESIDE * evidence.max(1, keepdim=True).values
        chosen = good.flatten().nonzero().flatten()
        chosen = chosen[evidence.flatten()[chosen].argsort(descending=True)][: 2 * attacked.samples]
        if not len(chosen):
            break
        firm = chosen[: attacked.samples]
        spaces = [space.knowing(read[firm]) for space, read in zip(spaces, pairs.inner, strict=True)]
        alive = alive.followed(pairs, chosen)
        found += alive.texts
    return found


def _screened(
    alive: Growing, behind: NextTokens, space: InnerSpace, samples: int, rng: torch.Generator
) -> tuple[Tensor, int]:
    """(prefixes, judged) tokens behind each prefix: those the first block holds for likeliest, and some at random.

    How many are drawn at random is the second value; they stand at the end.
    """
    block, many = block_of(alive.net, 0), len(behind.tokens)
    screen = space.screen()
    shares = torch.zeros(len(alive.texts), many, device=screen.device)
    for row, column, mixed in alive.mixed(behind, screen.shape[1]):
        state = behind.state[column : column + mixed.shape[1]] + block.attn.c_proj(mixed)
        read = block.mlp.inner(block.ln_2(state))
        found = space.shares(read.flatten(0, 1), screen).view(read.shape[:2])
        shares[row : row + len(found), column : column + found.shape[1]] = found
    shares = shares - shares.median(1, keepdim=True).values
    if len(alive.texts) > 8:  # some tokens are nearer to the space behind every prefix
        shares = shares - shares.median(0, keepdim=True).values
    best = shares.topk(min(many, max(_BEST, 4 * samples // len(alive.texts))), 1).indices
    drawn = max(_DRAWN, 100 // len(alive.texts))
    return torch.cat([best, torch.randint(many, (len(best), drawn), generator=rng).to(best)], 1), drawn


def _evidence(read: list[Tensor], spaces: list[InnerSpace], shape: torch.Size, drawn: int) -> Tensor:
    """(prefixes, judged) over all blocks, in deviations of the tokens that were drawn; -inf for the drawn ones."""
    total = torch.zeros(shape, device=read[0].device)
    for inputs, space in zip(read, spaces, strict=True):
        shares = space.shares(inputs, space.screen()).view(shape)
        usual = shares[:, -drawn:].median(1, keepdim=True).values
        spread = 1.4826 * (shares[:, -drawn:] - usual).abs().median().clamp_min(1e-6)
        total += (shares - usual) / spread
    total /= len(spaces) ** 0.5
    total[:, -drawn:] = -torch.inf
    return total


def _supported(attacked: AttackedText, texts: list[list[int]], spaces: list[InnerSpace]) -> list[list[int]]:
    """Without those that explain no more than chance would, beside the others."""
    if not texts:
        return []
    read = _inner(attacked, texts)
    kept = torch.arange(min(len(texts), int(_FULLEST * read[0].shape[1])), device=read[0].device)
    while len(kept):
        support = torch.stack([space.support(of_block[kept]) for of_block, space in zip(read, spaces, strict=True)])
        good = support.mean(0) > _SUPPORTED
        if bool(good.all()):
            break
        kept = kept[good]
    return [texts[number] for number in kept.tolist()]


def _inner(attacked: AttackedText, prefixes: list[list[int]]) -> list[Tensor]:
    """Per block (prefixes, inner): what its last matrix reads of the last token of each."""
    begun = {tuple(prefix[:-1]) for prefix in prefixes}
    longest = [prefix for prefix in prefixes if tuple(prefix) not in begun]
    place_of = {
        tuple(text[:end]): (row, end - 1) for row, text in enumerate(longest) for end in range(1, len(text) + 1)
    }
    rows, places = torch.tensor([place_of[tuple(prefix)] for prefix in prefixes]).unbind(1)
    inner = 4 * attacked.width
    device = attacked.net.wte.weight.device
    found = [torch.zeros(len(prefixes), inner, device=device) for _ in _blocks(attacked)]
    for begin in range(0, len(longest), _TEXTS_AT_ONCE):
        part = longest[begin : begin + _TEXTS_AT_ONCE]
        mine = ((rows >= begin) & (rows < begin + len(part))).nonzero().flatten()
        x = batch_of(part, [0] * len(part), attacked.net).x
        for of_block, read in zip(found, _caught(attacked, x), strict=True):
            of_block[mine] = read[rows[mine] - begin, places[mine]]
    return found


def _caught(attacked: AttackedText, x: Tensor) -> Iterator[Tensor]:
    """Per block (n, length, inner): what its last matrix reads of the texts x (n, length)."""
    hidden, real = attacked.net.embed(x), attacked.net.real(x)
    for number in _blocks(attacked):
        block = block_of(attacked.net, number)
        hidden = hidden + block.attn(block.ln_1(hidden), real)
        read = block.mlp.inner(block.ln_2(hidden))
        hidden = hidden + block.mlp.c_proj(read)
        yield read
