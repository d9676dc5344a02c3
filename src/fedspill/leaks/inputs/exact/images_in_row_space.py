"""Images by the first linear layer behind convolutions alone: their features lie in the row space of its gradient.

The row space V (f, B) of the layer's gradient holds the features of every image of the batch. There are more features
than pixels, so that

    (I - V V^T) features(x) = 0,        f - B equations in as many unknowns as x has pixels,

has the images of the batch as roots, whatever lies above the layer: images that send back alike are told apart as well
as others. The gradient of the bias counts every image once, which gives one equation more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.certificate import sent_back
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, truncated_svd
from fedspill.leaks.inputs.exact.images_with_features import MOVED, MOVES, image_near, image_of
from fedspill.leaks.inputs.exact.leading_layers import LinearLayer
from fedspill.leaks.inputs.exact.reckoned_time import MULTIPLICATION, VALUE, TimeLeft

ROOT = 1e-4  # share of the features outside of the row space; roots of float32 gradients have 3e-7, false minima 2e-2
SAME = 1e-2  # relative distance of images that are one
STARTS, TOWARDS = 32, 60  # starts of a round, and moves that make an image of each
ROUNDS = 4  # in a row that find nothing new


@dataclass(frozen=True, eq=False)
class RowSpace:
    """Where features of images lie that are to be found."""

    below: nn.Module  # makes features of images
    directions: Tensor  # (f, r)
    sizes: Tensor  # (r,) singular values of the gradient along these
    once: Tensor | None  # (f,) whose product with the features of an image is 1
    usual: float  # norm of features

    def features(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.below(x)).flatten(1)

    def missed(self, x: Tensor) -> Tensor:
        """(k, f + 1) what of the features of x (k, *shape) lies outside, and by how much they do not count once."""
        features = self.features(x)
        outside = (features - (features @ self.directions) @ self.directions.T) / self.usual
        count = torch.zeros_like(outside[:, :1]) if self.once is None else (features @ self.once - 1)[:, None]
        return torch.cat([outside, count], 1)

    def holds(self, x: Tensor) -> Tensor:
        """(k,) whether the features of x (k, *shape) lie inside, but for rounding."""
        with torch.no_grad():
            size = self.features(x).norm(dim=1).clamp_min(1e-300) / self.usual
            within: Tensor = self.missed(x).norm(dim=1) < ROOT * size
        return within

    def nearest(self, x: Tensor, time: TimeLeft) -> Tensor:
        """(k, *shape) where searches from x (k, *shape) for images with features inside end."""
        if not len(x):
            return x
        time.spend(len(x) * MOVES / 4 * self.seconds_each(x))  # most searches end early
        # The last column is 1 of 1, so that what is missed counts as a share of it.
        aim = torch.zeros(len(x), len(self.directions) + 2, dtype=x.dtype, device=x.device)
        aim[:, -1] = 1

        def layers(at: Tensor, _: Tensor) -> Tensor:
            missed = self.missed(at)
            return torch.cat([missed, torch.ones_like(missed[:, :1])], 1)

        return image_of(layers, aim, x)

    def drawn(self, like: Tensor, rng: torch.Generator, time: TimeLeft) -> Tensor:
        """(STARTS, *shape) images that come near random features inside."""
        along = torch.randn(STARTS, len(self.sizes), generator=rng, dtype=torch.float64).to(self.sizes) * self.sizes
        features = self.usual * (along / along.norm(dim=1, keepdim=True).clamp_min(1e-300)) @ self.directions.T
        grey = like.new_full((STARTS, *like.shape[1:]), 0.5)
        time.spend(STARTS * TOWARDS * self.seconds_each(grey))
        return image_near(self.below, features, grey, TOWARDS)

    def seconds_each(self, x: Tensor) -> float:
        """What one move of one image takes, as reckoned: there and back."""
        spent = list[float]()

        def count(module: nn.Module, _: object, out: Tensor) -> None:
            weights = getattr(module, "weight", None)
            each = weights[0].numel() if isinstance(module, nn.Conv2d) and weights is not None else 0
            spent.append(out[0].numel() * (3 * MULTIPLICATION * each + 3 * VALUE))

        hooks = [module.register_forward_hook(count) for module in self.below.modules() if not list(module.children())]
        try:
            with torch.no_grad():
                self.below(x[:1])
        finally:
            for hook in hooks:
                hook.remove()
        return sum(spent) + 4 * MULTIPLICATION * self.directions.numel()


@dataclass(frozen=True, eq=False)
class FoundImages:
    """Images (k, *shape) of a batch, each with its label and what speaks for it."""

    x: Tensor
    labels: Tensor
    outside: Tensor  # (k,) share of what an image sends back that the gradient's columns do not hold
    share: Tensor  # (k,) of the batch that it has: 1/B
    unlike: Tensor  # (k,) how unlike it another image is that a search from beside it ends at, relative


def images_in_row_space(
    below: nn.Module,
    usual: float,
    model: nn.Module,
    layer: LinearLayer,
    gradient: tuple[Tensor, Tensor | None],
    samples: int,
    near: Tensor,
    rng: torch.Generator,
    time: TimeLeft,
) -> FoundImages:
    """The images of a batch, from some (k, *shape) that may be `near` them and from random ones.

    `below` makes features of images, which have a `usual` norm; `gradient` is that of the layer's weights and bias.
    """
    rows = truncated_svd(gradient[0], samples, rng)
    if rows is None or not 0 < rows.rank <= samples or not float(rows.sizes[-1]) > 0:
        return FoundImages(near[:0], *(near.new_zeros(0) for _ in range(4)))
    whole = rest = _what_is_left(
        rows, gradient[1], near.new_zeros(0, rows.rank), near.new_zeros(0, rows.rank), below, usual
    )
    found, starts, idle = near[:0], near, 0
    signals = _signals(model, layer, rows, whole, found)
    while len(found) < rows.rank and idle < ROUNDS and not time.is_over:
        x = rest.nearest(starts, time) if len(starts) else starts
        x = whole.nearest(x[rest.holds(x)], time)  # errors of images that were taken out are no longer in it
        more = _new(x[whole.holds(x)], found)[: rows.rank - len(found)]
        idle = 0 if len(more) else idle + 1
        if len(more):
            found = torch.cat([found, more])
            signals = _signals(model, layer, rows, whole, found)
            rest = _what_is_left(rows, gradient[1], signals.sent, signals.along, below, usual)
        if len(found) < rows.rank:
            starts = rest.drawn(near, rng, time)
    moved = MOVED * found.square().mean().sqrt() * torch.randn(found.shape, generator=rng, dtype=torch.float64)
    apart = (whole.nearest(found + moved.to(found), time) - found).flatten(1).norm(dim=1)
    unlike = apart / found.flatten(1).norm(dim=1).clamp_min(1e-12)
    return FoundImages(found, signals.labels, signals.outside, signals.share, unlike)


@dataclass(frozen=True, eq=False)
class _Signals:
    """What images give of the gradient, in its directions."""

    labels: Tensor  # (k,)
    sent: Tensor  # (k, r) along its columns, each with the image's share of the batch
    along: Tensor  # (k, r) its features along its rows
    outside: Tensor  # (k,)
    share: Tensor  # (k,)


def _signals(model: nn.Module, layer: LinearLayer, rows: TruncatedSvd, space: RowSpace, x: Tensor) -> _Signals:
    """Under the label for which the gradient's columns hold best what an image sends back."""
    if not len(x):
        none = rows.sizes.new_zeros(0, rows.rank)
        return _Signals(none.new_zeros(0, dtype=torch.int64), none, none, none.new_zeros(0), none.new_zeros(0))
    with torch.no_grad():
        features = space.features(x)
    values = features @ layer.weight.T + (0 if layer.bias is None else layer.bias)
    sent = sent_back(model, layer.weight_name.rpartition(".")[0], values)
    inside = sent @ rows.left
    outside = (sent - inside @ rows.left.T).norm(dim=2) / sent.norm(dim=2).clamp_min(1e-300)
    least, labels = outside.min(1)
    one, along = inside[torch.arange(len(x)), labels], features @ rows.right
    share = 1 / (one / rows.sizes * along).sum(1)
    return _Signals(labels, share[:, None] * one, along, least, share)


def _what_is_left(
    rows: TruncatedSvd, bias: Tensor | None, sent: Tensor, along: Tensor, below: nn.Module, usual: float
) -> RowSpace:
    """The row space without images that give `sent` (k, r) times `along` (k, r)."""
    left, sizes, right = torch.linalg.svd(torch.diag(rows.sizes) - sent.T @ along)
    rank = rows.rank - len(sent)
    once = None
    if bias is not None:
        once = rows.right @ (right[:rank].T @ ((left[:, :rank].T @ (rows.left.T @ bias - sent.sum(0))) / sizes[:rank]))
    return RowSpace(below, rows.right @ right[:rank].T, sizes[:rank], once, usual)


def _new(x: Tensor, known: Tensor) -> Tensor:
    """Those of x (k, *shape) that are none of the known, each once."""
    several = known
    for one in x:
        apart = (several - one).flatten(1).norm(dim=1)
        if not bool((apart < SAME * one.norm()).any()):
            several = torch.cat([several, one[None]])
    return several[len(known) :]
