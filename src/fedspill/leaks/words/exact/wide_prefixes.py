"""Decoder, more prefixes than the model has dimensions: texts are grown by what the inner layers of the blocks read.

The first block screens every token behind every prefix. A single block and token leave doubt (inner_space.py), so that
the evidence of several is added up for the best, each in units of what tokens drawn at random behind the same prefix
get. What is believed is then known, which sharpens the evidence of the rest; texts are grown again from the start until
nothing is added. Where local steps let inputs drift they fill the width before they fill these layers, so that the same
serves there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedspill.leaks.words.exact.attacked_text import AttackedText, alike_long, along_longest, batch_of
from fedspill.leaks.words.exact.certificate import LastBlock
from fedspill.leaks.words.exact.effort import Effort
from fedspill.leaks.words.exact.growing import Growing, NextTokens, block_of
from fedspill.leaks.words.exact.inner_space import InnerSpace
from fedspill.leaks.words.exact.peeling import Peeled
from fedspill.leaks.words.exact.token_test import Cells
from fedspill.models.lora import linear_weight


@dataclass(frozen=True)
class Care:
    """How closely passes look."""

    judged: int  # tokens behind a prefix that all blocks judge: the best of the first block
    stands_out: float  # deviations of random tokens above which a token is followed
    every_block: bool  # whether all of all blocks is asked, also where less would do


# Where nothing else is said, chosen on batches of seed 1 with decoders 4 x 128 and 6 x 256 (benchmarks/words.py decoder
# --embeddings), `_USUAL` and `_BESIDE` also on ten local steps of seed 98500; `THOROUGH` on five batches of seed 300,
# 4 x 128, that `QUICK` does not read.
QUICK, THOROUGH = Care(6, 8.0, every_block=False), Care(16, 5.0, every_block=True)
_PASSES = 6
_DRAWN = 8  # random tokens behind a prefix that are judged beside the best
_DRAWN_FIRST = 100  # random ones at the first place
_CLEARLY = 2.0  # times that: where the first tokens stand out so far, no further block is asked
_AT_A_TIME = 0.1  # of the width: so many inputs are taken for known together, because the space is turned each time
_EXACT = 1e-5  # share that float32 may leave of an input that lies in the space wholly
_USUAL = 0.3  # share of the evidence that tokens were believed by so far which the next one must have
_BESIDE = 0.8  # share of the best new token's evidence that another one behind the same prefix must have
_SUPPORTED = 1.4  # F of an input that is believed; those that were not there have about 1
_FULLEST = 0.9  # share of the inner dimensions that inputs may fill when they are weighed against each other
_ROOMY = 0.55  # of an inner layer may be filled by inputs if it is to do alone
_PER_DIMENSION = 4  # tokens drawn for each inner dimension, to know its usual inputs
_TEXTS_AT_ONCE = 16
_AT_ONCE_OUT = 0.05  # of the width: whole texts with so many tokens are taken out together


@torch.no_grad()
def grow_wide(peeled: Peeled, cells: Cells, rng: torch.Generator, care: Care) -> Iterator[list[list[int]]]:
    """After each pass the texts that are believed to have been there, or their beginnings, while they become more.

    Texts that are proven are taken out on the way, and as soon as what is left is within the dimensions it ends.
    """
    attacked = peeled.rest
    if not cells.places or not all(f"h.{block}.mlp.c_proj.weight" in attacked.gradients for block in _blocks(attacked)):
        return
    nothing_known = _needed(attacked, cells, rng, care)
    blocks = len(nothing_known.spaces)
    whole = None if peeled.last is None else _Whole(peeled, peeled.last)
    known: list[list[int]] = []
    for _ in range(_PASSES):
        start = nothing_known.knowing(_inner(attacked, known, blocks)) if known else nothing_known
        grown = _grown(attacked, cells, start, set(map(tuple, known)), whole, peeled.effort, rng, care)
        if whole is not None and (whole.enough or peeled.take_out(whole.texts)):
            yield whole.texts
            return
        believed = _supported(attacked, grown, nothing_known.spaces)
        if len(believed) <= len(known):
            return
        known = believed
        begun = {tuple(prefix[:-1]) for prefix in known}
        ended = set(map(tuple, whole.texts)) if whole is not None else set()
        yield [one for one in known if tuple(one) in ended or tuple(one) not in begun]


def work(attacked: AttackedText, cells: Cells) -> float:
    """Floating-point operations of one pass, roughly, as if all texts were as long as the longest."""
    width, inner = attacked.width, 4 * attacked.width
    return 2.0 * attacked.samples * cells.many * (width * width + 2 * width * inner) + 10.0 * inner**3


def _blocks(attacked: AttackedText) -> range:
    """All blocks but the last, in which only the end of a text leaves a trace."""
    return range(max(1, len(attacked.net.h) - 1))


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What the first blocks tell of inputs, and along how many directions of the first one they are screened."""

    spaces: list[InnerSpace]
    directions: int

    def knowing(self, read: list[Tensor]) -> _Evidence:
        """The same when inputs, per block (n, inner), are known to have been there."""
        return replace(self, spaces=[space.knowing(one) for space, one in zip(self.spaces, read, strict=True)])

    def screen(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.spaces[0].screen(self.directions, rng)


def _needed(attacked: AttackedText, cells: Cells, rng: torch.Generator, care: Care) -> _Evidence:
    """Half of the first inner layer, all of it, or of more blocks: what it takes for the first tokens to stand out."""
    first, others = cells.tokens[0], _drawn(cells, _DRAWN_FIRST, rng)
    tried = torch.cat([first, others])[:, None]
    evidence = _Evidence([], 4 * attacked.width)
    for half in (False,) if care.every_block else (True, False):
        inner = (2 if half else 4) * attacked.width
        usual = _Usual.drawn(attacked, cells, inner, rng)
        spaces: list[InnerSpace] = []
        total = torch.zeros(len(first), device=first.device)
        for block, read in zip(_blocks(attacked)[: 1 if half else None], _caught(attacked, tried), strict=False):
            spaces.append(InnerSpace.of(attacked.gradients[f"h.{block}.mlp.c_proj.weight"], usual.covariance()))
            shares = spaces[-1].shares(read[:, 0])
            total = total + _deviations(shares[None], len(others))[0, : len(first)]
            out = total / len(spaces) ** 0.5 > care.stands_out
            evidence = _Evidence(spaces, evidence.directions)
            if not bool(out.any()):
                continue
            there, usually = shares[: len(first)][out], shares[len(first) :].median()
            if block == 0:
                evidence = _Evidence(spaces, _directions(there, usually))
            # An input that was there lies in the rows by rows / inputs, and its rest as any other one does.
            inputs = attacked.width * float((1 - usually) / (there.median() - usually).clamp_min(1e-3))
            clear = float((total[out] / len(spaces) ** 0.5).median()) > _CLEARLY * care.stands_out
            if clear and not care.every_block and (not half or inputs < _ROOMY * inner):
                return evidence
    return evidence


def _directions(there: Tensor, usually: Tensor) -> int:
    """Random directions by which a share is told to a tenth of what sets most inputs that were there apart.

    Told by m of them within the rows and m beside, a share s is off by 2 s (1 - s) / sqrt(m).
    """
    apart = (there.quantile(0.1) - usually).clamp_min(1e-3)
    spread = torch.cat([there, usually[None]])
    return int((20 * (spread * (1 - spread)).max() / apart).square()) + 1


@dataclass(eq=False)
class _Usual:
    """Texts whose tokens are drawn at random, followed from block to block: what each usually reads."""

    attacked: AttackedText
    parts: list[Iterator[Tensor]]

    inner: int  # how many numbers of a layer are looked at

    @staticmethod
    def drawn(attacked: AttackedText, cells: Cells, inner: int, rng: torch.Generator) -> _Usual:
        tokens, length = cells.all_tokens(), cells.places
        many = 1 + _PER_DIMENSION * inner // (length * _TEXTS_AT_ONCE)
        drawn = torch.randint(len(tokens), (many, _TEXTS_AT_ONCE, length), generator=rng).to(tokens.device)
        return _Usual(attacked, [_caught(attacked, tokens[part]) for part in drawn], inner)

    def covariance(self) -> Tensor:
        """(inner, inner) of the next block, the first one at first."""
        total = torch.zeros(self.inner, self.inner, device=self.attacked.net.wte.weight.device)
        counted = 0
        for part in self.parts:
            rows = next(part).flatten(0, 1)[:, : self.inner]
            total.addmm_(rows.T, rows)
            counted += len(rows)
        return total / counted


def _drawn(cells: Cells, many: int, rng: torch.Generator) -> Tensor:
    """So many tokens at random, of all that may stand somewhere: at a given place most of them did not."""
    tokens = cells.all_tokens()
    return tokens[torch.randint(len(tokens), (many,), generator=rng).to(tokens.device)]


def _deviations(shares: Tensor, drawn: int) -> Tensor:
    """What shares (prefixes, judged) leave, in deviations of the last ones, which are drawn at random.

    It is compared by its logarithm: where hardly any input is missing, one that was there leaves next to nothing.
    """
    left = -(1 - shares).clamp_min(_EXACT).log()
    usual = left[:, -drawn:].median(1, keepdim=True).values
    return (left - usual) / (1.4826 * (left[:, -drawn:] - usual).abs().median()).clamp_min(1e-6)


@dataclass(eq=False)
class _Whole:
    """Texts that are whole among the prefixes of a pass: the last block tells, which reads the end of a text alone."""

    peeled: Peeled
    last: LastBlock
    texts: list[list[int]] = field(default_factory=list)
    enough: bool = False  # were taken out: what is left is within the dimensions
    alive: Growing = field(init=False)

    def begin(self) -> None:
        net = self.peeled.attacked.net
        self.alive = Growing.begun(net, len(net.h))

    def follow(self, prefixes: Tensor, tokens: Tensor) -> None:
        """Goes on with these tokens behind these prefixes."""
        judged = self.alive.judged(prefixes, tokens)
        self.alive = self.alive.followed(judged, torch.arange(len(prefixes), device=prefixes.device))
        ends = self.last.ends(judged.read).tolist()
        self.texts += [text for text, end in zip(self.alive.texts, ends, strict=True) if end and text not in self.texts]
        if sum(map(len, self.peeled.new(self.texts))) > _AT_ONCE_OUT * self.peeled.attacked.width:
            more = self.peeled.take_out(self.texts)
            self.enough = more and not self.peeled.rest.spaces_of("h.0.mlp.c_fc").crowded


def _grown(
    attacked: AttackedText,
    cells: Cells,
    told: _Evidence,
    known: set[tuple[int, ...]],
    whole: _Whole | None,
    effort: Effort,
    rng: torch.Generator,
    care: Care,
) -> list[list[int]]:
    """One pass from the first place to the last: all prefixes that stood out, or were known."""
    if whole is not None:
        whole.begin()
    alive, found = Growing.begun(attacked.net, len(told.spaces)), []
    believed: list[Tensor] = []
    usual = 0.0
    waiting = [torch.zeros(0, 4 * attacked.width, device=attacked.net.wte.weight.device) for _ in told.spaces]
    screen = told.screen(rng)
    for place in range(cells.places):
        behind = alive.try_next(cells.tokens[place])
        screened = 2.0 * len(alive.texts) * len(behind.tokens) * screen[0].numel()
        if not effort.spend(alive.operations(behind, len(screen[0]) + attacked.width) + screened):
            break
        likely = behind.tokens[
            _screened(alive, behind, screen, max(care.judged, 4 * attacked.samples // len(alive.texts)))
        ]
        drawn = max(_DRAWN, _DRAWN_FIRST // len(alive.texts))
        others = _drawn(cells, len(likely) * drawn, rng).view(len(likely), drawn)
        judged = torch.cat([likely, others], 1)
        prefixes = torch.arange(len(judged), device=judged.device).repeat_interleave(judged.shape[1])
        pairs = alive.judged(prefixes, judged.flatten())
        evidence = _evidence(pairs.inner, told.spaces, judged.shape, drawn)
        rows = zip(alive.texts, judged.tolist(), strict=True)
        had = torch.tensor([[(*text, token) in known for token in row] for text, row in rows])
        had = had.to(evidence.device) & evidence.isfinite()
        good = evidence > max(care.stands_out, _USUAL * usual)
        if len(alive.texts) > 1:
            good &= evidence >= _BESIDE * evidence.masked_fill(had, -torch.inf).max(1, keepdim=True).values
        good |= had
        chosen = good.flatten().nonzero().flatten()
        chosen = chosen[evidence.flatten()[chosen].argsort(descending=True)][: 2 * attacked.samples]
        if not len(chosen):
            break
        believed.append(evidence.flatten()[chosen])
        usual = float(torch.cat(believed).median())
        firm = chosen[: attacked.samples]
        waiting = [torch.cat([old, read[firm]]) for old, read in zip(waiting, pairs.inner, strict=True)]
        if len(waiting[0]) >= _AT_A_TIME * attacked.width:
            told = told.knowing(waiting)
            waiting = [read[:0] for read in waiting]
            screen = told.screen(rng)
        alive = alive.followed(pairs, chosen)
        found += alive.texts
        if whole is not None:
            whole.follow(pairs.prefixes[chosen], pairs.tokens[chosen])
            if whole.enough:
                break
    return found


def _screened(alive: Growing, behind: NextTokens, looked_at: tuple[Tensor, Tensor], best: int) -> Tensor:
    """(prefixes, best) numbers of the tokens behind each prefix that the first block holds for likeliest."""
    kind = _quick(behind.state)
    block, many = block_of(alive.net, 0), len(behind.tokens)
    directions, counts = looked_at
    screen, inner = directions.to(kind), len(directions)
    (output, output_bias), (wider, wider_bias) = linear_weight(block.attn.c_proj), linear_weight(block.mlp.c_fc)
    # LayerNorm takes the mean away, divides by the length, and is linear but for that length: it is taken along.
    norm, wider = block.ln_2, wider[:inner]
    read = torch.cat([(wider * norm.weight).T, torch.eye(alive.net.wte.embedding_dim).to(wider)], 1)
    read = read - read.mean(0)
    state = (behind.state if output_bias is None else behind.state + output_bias) @ read
    shift = wider @ norm.bias if wider_bias is None else wider @ norm.bias + wider_bias[:inner]
    state, shift = state.to(kind), shift.to(kind)
    shares = torch.zeros(len(alive.texts), many, device=screen.device)
    for row, column, brought in alive.brought(behind, (output.T @ read).to(kind)):
        brought += state[column : column + brought.shape[1]]
        length = brought[..., inner:].float().square().mean(2, keepdim=True).add(norm.eps).sqrt()
        before = (brought[..., :inner] / length.to(kind)).add_(shift)
        sizes = (nn.functional.gelu(before, approximate=block.mlp.approximate) @ screen).float().square()
        inside, every = (sizes @ counts).unbind(2)
        shares[row : row + len(brought), column : column + brought.shape[1]] = inside / every.clamp_min(1e-30)
    shares = shares - shares.median(1, keepdim=True).values
    if len(alive.texts) > 8:  # some tokens are nearer to the space behind every prefix
        shares = shares - shares.median(0, keepdim=True).values
    return shares.topk(min(many, best), 1).indices


def _quick(like: Tensor) -> torch.dtype:
    """Half precision on a GPU: enough for a sum of squares that only picks candidates. All processors do the same."""
    return torch.bfloat16 if like.is_cuda else torch.float32


def _evidence(read: list[Tensor], spaces: list[InnerSpace], shape: torch.Size, drawn: int) -> Tensor:
    """(prefixes, judged) over all blocks, in deviations of the tokens that were drawn; -inf for the drawn ones."""
    total = torch.zeros(shape, device=read[0].device)
    for inputs, space in zip(read, spaces, strict=True):
        total += _deviations(space.shares(inputs).view(shape), drawn)
    total /= len(spaces) ** 0.5
    total[:, -drawn:] = -torch.inf
    return total


def _supported(attacked: AttackedText, texts: list[list[int]], spaces: list[InnerSpace]) -> list[list[int]]:
    """Without those that explain no more than chance would, beside the others."""
    if not texts:
        return []
    read = _inner(attacked, texts, len(spaces))
    most = int(_FULLEST * min(len(space.metric) for space in spaces))
    kept = torch.arange(min(len(texts), most), device=read[0].device)
    while len(kept):
        support = torch.stack([space.support(of_block[kept]) for of_block, space in zip(read, spaces, strict=True)])
        good = support.mean(0) > _SUPPORTED
        if bool(good.all()):
            break
        kept = kept[good]
    return [texts[number] for number in kept.tolist()]


def _inner(attacked: AttackedText, prefixes: list[list[int]], blocks: int) -> list[Tensor]:
    """Per block, of the first ones, (prefixes, inner): what its last matrix reads of the last token of each."""
    longest, rows, places = along_longest(prefixes)
    inner = 4 * attacked.width
    device = attacked.net.wte.weight.device
    found = [torch.zeros(len(prefixes), inner, device=device) for _ in range(blocks)]
    for numbers in alike_long(longest, _TEXTS_AT_ONCE):
        at = torch.full((len(longest),), -1)
        at[numbers] = torch.arange(len(numbers))
        mine = (at[rows] >= 0).nonzero().flatten()
        x = batch_of([longest[one] for one in numbers], [0] * len(numbers), attacked.net).x
        for of_block, read in zip(found, _caught(attacked, x), strict=False):
            of_block[mine] = read[at[rows[mine]], places[mine]]
    return found


def _caught(attacked: AttackedText, x: Tensor) -> Iterator[Tensor]:
    """Per block (n, length, inner): what its last matrix reads of the texts x (n, length)."""
    hidden, real = attacked.net.embed(x), attacked.net.real(x)
    for number in _blocks(attacked):
        block = block_of(attacked.net, number)
        hidden = hidden + block.attn(block.ln_1(hidden), real)
        read = block.mlp.inner(block.ln_2(hidden))
        yield read
        hidden = hidden + block.mlp.c_proj(read)
