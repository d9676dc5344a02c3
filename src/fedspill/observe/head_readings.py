"""Readings of the last layer's change: one number for each class, of which a rehearsal finds out what it means."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.federation.local import load
from fedspill.observe.path_bases import HeadProbe, class_mean_weights, probe_head
from fedspill.observe.share_fits import positive
from fedspill.training import Tensors

SHARES_ALONE = ("shares of rows", "shares of bias")  # readings without a size
RIDGE = 0.001  # of the mean variance of a sample's gradient, in the decomposition (as in Decaf's path, convention)
MOST_NUMBERS = 20_000_000  # of single samples' gradients: with more the update is not decomposed (convention: memory)


@dataclass(frozen=True, eq=False)
class _ClassMeans:
    """What some labelled samples say of the last layer's inputs and of the change that each class brings."""

    features: Tensor  # (classes, features) mean input of the last layer on samples of each class, less the common mean
    decomposer: Tensor | None  # (classes, outputs * (features + 1)); None where that would be too large

    @staticmethod
    def of(seen: HeadProbe, classes: int, *, has_bias: bool) -> _ClassMeans:
        means = class_mean_weights(seen.labels, classes) @ seen.features[:, :-1]
        fits = len(seen.labels) * seen.errors.shape[1] * seen.features.shape[1] <= MOST_NUMBERS
        return _ClassMeans(means - means.mean(0), decomposer(seen, classes, has_bias=has_bias) if fits else None)


@dataclass(frozen=True, eq=False)
class HeadReader:
    """Reads the change of the last layer of one round's model.

    What it knows of classes comes from the auxiliary samples that make-believe clients are made of. A client is not to
    be read by its own samples, so that each fold of clients is read by what the other folds' samples say.
    """

    weight: str
    bias: str | None
    without: tuple[_ClassMeans, ...]  # for each fold, what the samples of the others say
    shows_presence: bool  # see `absent`

    @staticmethod
    def of(
        model: nn.Module,
        start: Tensors,
        weight: str,
        bias: str | None,
        own: Examples,
        folds: Tensor,
        classes: int,
        *,
        decays: bool,
    ) -> HeadReader:
        """`own` are labelled samples in `folds` (n,), every class in each; the model is used as scratch space.

        decays: weights shrink by themselves.
        """
        load(model, start)
        model.eval()
        seen = probe_head(model, weight, own)
        parts = [seen.take(folds != fold) for fold in range(int(folds.max()) + 1)]
        parts = [part if bool(torch.bincount(part.labels, minlength=classes).all()) else seen for part in parts]
        without = tuple(_ClassMeans.of(part, classes, has_bias=bias is not None) for part in parts)
        return HeadReader(weight, bias, without, float(seen.features.min()) >= 0 and not decays)

    @property
    def names(self) -> list[str]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def read(self, sent: Tensors, scale: float, fold: Tensor | None) -> dict[str, Tensor]:
        """Each (updates, classes), of tensors (updates, ...); `scale` makes updates of few and many steps alike.

        fold (updates,): that each make-believe client belongs to; None for real clients, who belong to none.

        rows    how far each class's weights rose in all, which is what LLG reads
        toward  how far they rose towards the inputs that samples of the class have: right for inputs of any sign
        bias    how far its bias rose, which is what EBI and LLBG read
        parts   the least-squares decomposition of the whole layer's change into what each class's samples would send
        shares of either, without their size: an update that is smaller than any that was rehearsed is read by these
        """
        weights = scale * sent[self.weight].double().flatten(2)
        rows = weights.sum(2)
        bias = torch.zeros_like(rows) if self.bias is None else scale * sent[self.bias].double()
        found = {"rows": rows, "shares of rows": positive(rows)}
        if self.bias is not None:
            found |= {"bias": bias, "shares of bias": positive(bias)}
        found["toward"] = self._by_fold([(weights * one.features).sum(2) for one in self.without], fold)
        whole = torch.cat([weights, bias[..., None]], 2).flatten(1)
        parts = [whole @ one.decomposer.T for one in self.without if one.decomposer is not None]
        if parts:
            found["parts"] = self._by_fold(parts, fold)
        return found

    def _by_fold(self, readings: list[Tensor], fold: Tensor | None) -> Tensor:
        """Of readings (updates, classes) without a fold, that without the client's own; their mean for real clients."""
        each = torch.stack(readings)
        return each.mean(0) if fold is None else each[fold, torch.arange(each.shape[1])]

    def absent(self, sent: Tensors) -> Tensor:
        """(updates, classes) the classes that were not there, of tensors (updates, ...) that are changes.

        Samples of other classes only lower a class's weights where the last layer's inputs are never negative, in any
        number of steps of any optimizer. So a class of which some weight rose was there; one of which none did was not,
        or was outweighed in every weight. Where inputs have either sign nothing follows.
        """
        rose = (sent[self.weight].flatten(2) > 0).any(2)
        some = rose.any(1, keepdim=True)
        return ~rose & some if self.shows_presence else torch.zeros_like(rose)

    def main(self) -> str:
        """The reading by which updates are held against rehearsals."""
        return "rows" if self.bias is None else "bias"


def decomposer(probe: HeadProbe, classes: int, *, has_bias: bool) -> Tensor:
    """(classes, outputs * (features + 1)) maps a change of the last layer to the share of each class in it.

    A change is taken as a sum of the classes' mean gradients and of noise that scatters as single samples' gradients do
    within their class: generalised least squares, inverted among the samples, of which there are fewer than weights.
    """
    member = class_mean_weights(probe.labels, classes)
    features = probe.features if has_bias else torch.cat([probe.features[:, :-1], 0 * probe.features[:, -1:]], 1)
    each = -(probe.errors[:, :, None] * features[:, None, :]).flatten(1)  # (n, outputs * (features + 1))
    bases = member @ each
    noise = (each - bases[probe.labels]) * member.mean(0).sqrt()[:, None]  # classes weigh the same
    gram = noise @ noise.T
    floor = RIDGE * float(gram.trace()) / each.shape[1] + 1e-30
    inside = torch.linalg.solve(gram + floor * torch.eye(len(gram), dtype=gram.dtype), noise @ bases.T)
    whitened = (bases - inside.T @ noise) / floor  # (classes, numbers) bases through the inverse covariance
    products = whitened @ bases.T
    steady = products + 1e-9 * products.diagonal().mean() * torch.eye(classes, dtype=products.dtype)
    found: Tensor = torch.linalg.solve(steady, whitened)
    return found
