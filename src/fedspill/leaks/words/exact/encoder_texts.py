"""Encoder: texts without growing them, because every token sees every other and no prefix can be tested by itself.

The gradient of the first layer is a sum over tokens and places (token_test.py), so that least squares give what each
token and each place was told, as long as they are fewer than dimensions. The query part of that points the same way
for all tokens of one text: they are clustered by it. What a place was told is a mixture of what its tokens were told,
which puts them in order. What is still wrong is repaired by single changes until the first block's feed-forward part
fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText, batch_of
from fedspill.leaks.words.exact.row_space import RowSpace
from fedspill.leaks.words.exact.token_test import Cells, first_norm

TIGHT = 1e-3  # distance, as a share of a random vector's, below which a token fits
NEAR = 0.03  # the same of a text with a wrong word or two, or where there are more inputs than dimensions
_TRIES, _MOVES = 20, 25  # of clustering, and single changes of repair
_PUREST = 6  # tokens that stand for a cluster
_AT_ONCE = 64
_ALIVE = 0.3  # share of its first places' weight that a text still has where it goes on


@dataclass(frozen=True)
class Marks:
    """The tokens at which every text begins and ends, where texts have such."""

    begin: int | None = None
    end: int | None = None

    @staticmethod
    def seen_in(texts: Tensor | None, padding: int | None) -> Marks:
        """From texts of the kind, (n, length): what all of them begin and end with."""
        if texts is None or texts.is_floating_point() or not len(texts):
            return Marks()
        real = texts != padding if padding is not None else torch.ones_like(texts, dtype=torch.bool)
        last = texts[torch.arange(len(texts)), real.sum(1).clamp_min(1) - 1]
        first = texts[:, 0]
        begin = int(first[0]) if bool((first == first[0]).all()) else None
        return Marks(begin, int(last[0]) if begin is not None and bool((last == last[0]).all()) else None)

    def known(self) -> set[int]:
        return {mark for mark in (self.begin, self.end) if mark is not None}


@dataclass(frozen=True, eq=False)
class Told:
    """What each token (tokens, 3 width) and each place (places, 3 width) was told: the signals behind its inputs."""

    tokens: Tensor
    places: Tensor


def told(attacked: AttackedText, tokens: Tensor, places: int) -> Told | None:
    """By least squares: gradient - bias gradient x shift is the sum of embeddings times what each was told."""
    name = "h.0.attn.c_attn"
    weight, bias = attacked.gradients.get(f"{name}.weight"), attacked.gradients.get(f"{name}.bias")
    if weight is None or bias is None or len(tokens) + places >= attacked.width:
        return None
    norm = first_norm(attacked.net)
    scale, shift = norm.weight.detach().double(), norm.bias.detach().double()
    both = torch.cat([attacked.net.wte.weight.detach()[tokens], attacked.net.wpe.weight.detach()[:places]]).double()
    centred = (both - both.mean(1, keepdim=True)) * scale
    rest = weight.double() - bias.double()[:, None] * shift
    solved = torch.linalg.lstsq(centred.T.cpu(), rest.T.cpu(), driver="gelsd").solution
    return Told(solved[: len(tokens)], solved[len(tokens) :])


def arrange_encoder(
    attacked: AttackedText, many: int, cells: Cells, space: RowSpace, marks: Marks, parts: slice, rng: torch.Generator
) -> list[list[int]]:
    """So many texts, each with every token in its place as far as the first block tells.

    `parts` are the thirds of what tokens were told (queries, keys, values) by which they are put into texts.
    """
    tokens, places = cells.all_tokens().cpu(), cells.places
    signals = told(attacked, tokens.to(attacked.net.wte.weight.device), places)
    body = [row for row, token in enumerate(tokens.tolist()) if token not in marks.known()]
    if signals is None or len(body) < many or places < 3:
        return []
    fits = torch.zeros(len(tokens), places, dtype=torch.bool)
    row_of = {token: row for row, token in enumerate(tokens.tolist())}
    for place in range(places):
        fits[[row_of[token] for token in cells.tokens[place].tolist()], place] = True
    order = _order(signals, fits)
    shares, lengths = _shares(
        signals, body, many, slice(parts.start * attacked.width, parts.stop * attacked.width), rng
    )
    drafts = []
    for text, length in enumerate(lengths):
        mine = order[:, :length].clamp(0, 1.2) * (shares[:, [text]] > min(0.2, 1.2 / max(2, many)))
        score = mine + 0.2 * shares[:, [text]]
        score[~fits[:, :length]] = -3
        draft = [int(tokens[row]) for row in score.argmax(0).tolist()]
        drafts.append(_marked(draft, marks))
    members = [set(tokens[shares[:, text] > 0.02].tolist()) for text in range(len(drafts))]
    tables = [cells.tokens[place].tolist() for place in range(places)]
    return [repaired(attacked, draft, own, tables, space, marks) for draft, own in zip(drafts, members, strict=True)]


def _order(signals: Told, fits: Tensor) -> Tensor:
    """(tokens, places) how much of what a place was told is what each token was told; -1 where it cannot stand."""
    scale = signals.tokens.norm(dim=0).clamp_min(1e-30)
    mixed: Tensor = torch.linalg.lstsq((signals.tokens / scale).T, (signals.places / scale).T, driver="gelsd").solution
    mixed[~fits] = -1
    return mixed


def _shares(
    signals: Told, body: list[int], texts: int, columns: slice, rng: torch.Generator
) -> tuple[Tensor, list[int]]:
    """(tokens, texts) which part of each token belongs to which text, and how long each text is."""
    tokens, places = signals.tokens[:, columns], signals.places[:, columns]
    own = tokens[body]
    centres = _cluster(own, texts, rng)
    unit = own / own.norm(dim=1, keepdim=True).clamp_min(1e-30)
    near = unit @ centres.T
    pure = torch.stack(
        [own[near[:, text].topk(min(_PUREST, len(body))).indices].median(0).values for text in range(texts)]
    )
    by_token = torch.from_numpy(np.stack([nnls(pure.T.numpy(), row.numpy())[0] for row in tokens]))
    by_place = torch.from_numpy(np.stack([nnls(pure.T.numpy(), row.numpy())[0] for row in places]))
    lengths = []
    for text in range(texts):
        weight = by_place[:, text]
        alive = (weight > _ALIVE * weight[1:6].median()).nonzero().flatten()
        lengths.append(max(3, int(alive.max()) + 1) if len(alive) else 3)
    return by_token / by_token.sum(1, keepdim=True).clamp_min(1e-12), lengths


def _cluster(vectors: Tensor, many: int, rng: torch.Generator) -> Tensor:
    """(many, width) centres of directions: the best of several k-means on the sphere, begun far apart."""
    unit = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-30)
    best: tuple[float, Tensor] | None = None
    for _ in range(_TRIES):
        chosen = [int(torch.randint(len(unit), (1,), generator=rng))]
        while len(chosen) < many:
            alike = (unit @ unit[chosen].T).max(1).values
            drawn = torch.multinomial((1 - alike).clamp_min(1e-9), 1, generator=rng)
            chosen.append(int(alike.argmin()) if torch.rand(1, generator=rng) < 0.5 else int(drawn))
        centres = unit[chosen]
        for _ in range(50):
            nearest = (unit @ centres.T).argmax(1)
            means = [unit[nearest == k].mean(0) if bool((nearest == k).any()) else centres[k] for k in range(many)]
            centres = torch.stack(means)
            centres = centres / centres.norm(dim=1, keepdim=True).clamp_min(1e-30)
        quality = float((unit @ centres.T).max(1).values.sum())
        if best is None or quality > best[0]:
            best = (quality, centres)
    assert best is not None
    return best[1]


def _marked(draft: list[int], marks: Marks) -> list[int]:
    begin = draft if marks.begin is None else [marks.begin, *draft[1:]]
    return begin if marks.end is None else [*begin[:-1], marks.end]


@torch.no_grad()
def distances(attacked: AttackedText, texts: list[list[int]], space: RowSpace) -> list[Tensor]:
    """Of each text how far what the first feed-forward part reads of each token lies from the space."""
    found = []
    for begin in range(0, len(texts), _AT_ONCE):
        part = texts[begin : begin + _AT_ONCE]
        x = batch_of(part, [0] * len(part), attacked.net).x
        read = attacked.first.attended(attacked.net.embed(x), attacked.net.real(x))
        far = space.distance(read).cpu()
        found += [far[row, : len(text)] for row, text in enumerate(part)]
    return found


def repaired(
    attacked: AttackedText, text: list[int], own: set[int], tables: list[list[int]], space: RowSpace, marks: Marks
) -> list[int]:
    """The text after the single changes (another token, two swapped, shorter, longer) that bring it nearest."""
    (far,) = distances(attacked, [text], space)
    for _ in range(_MOVES):
        if float(far.max()) < TIGHT * space.level:
            break
        others = _changes(text, far, own - marks.known(), tables, marks)
        if not others:
            break
        scored = distances(attacked, others, space)
        nearest = min(range(len(others)), key=lambda place: float(scored[place].mean()))
        if float(scored[nearest].mean()) >= 0.999 * float(far.mean()):
            break
        text, far = others[nearest], scored[nearest]
    return text


def _changes(text: list[int], far: Tensor, own: set[int], tables: list[list[int]], marks: Marks) -> list[list[int]]:
    fixed = {0} if marks.begin is not None else set()
    fixed |= {len(text) - 1} if marks.end is not None else set()
    worst = [place for place in far.argsort(descending=True).tolist() if place not in fixed][:10]
    found = [
        [*text[:place], token, *text[place + 1 :]]
        for place in worst[:6]
        for token in tables[place]
        if token in own and token != text[place]
    ]
    for number, place in enumerate(worst):
        for other in worst[:number]:
            swapped = list(text)
            swapped[place], swapped[other] = swapped[other], swapped[place]
            found.append(swapped)
    tail = [] if marks.end is None else [marks.end]
    inner = text[: len(text) - len(tail)]
    found += [[*inner[:-cut], *tail] for cut in (1, 2, 3) if len(inner) - cut >= 2]
    if len(text) < len(tables):
        found += [[*inner, token, *tail] for token in own]
    return found
