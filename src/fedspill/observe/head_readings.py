"""Readings of the last layer's change: one number for each class, of which a rehearsal finds out what it means."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.federation.local import load
from fedspill.observe.path_bases import class_mean_weights, probe_head
from fedspill.observe.share_fits import positive
from fedspill.training import Tensors

SHARES_ALONE = ("shares of rows", "shares of bias")  # readings without a size


@dataclass(frozen=True, eq=False)
class HeadReader:
    """Reads the change of the last layer of one round's model; `features` say what its inputs look like."""

    weight: str
    bias: str | None
    features: Tensor  # (classes, features) mean input of the last layer on samples of each class, less the common mean
    shows_presence: bool  # see `absent`

    @staticmethod
    def of(
        model: nn.Module, start: Tensors, weight: str, bias: str | None, own: Examples, classes: int, *, decays: bool
    ) -> HeadReader:
        """`own` are labelled samples; the model is used as scratch space. decays: weights shrink by themselves."""
        load(model, start)
        model.eval()
        if not isinstance(_layer_of(model, weight), nn.Linear):
            means = row_inputs(model, weight, own, classes)
            return HeadReader(weight, bias, means - means.mean(0), shows_presence=False)
        seen = probe_head(model, weight, own)
        means = class_mean_weights(seen.labels, classes) @ seen.features[:, :-1]
        positive_inputs = float(seen.features.min()) >= 0
        return HeadReader(weight, bias, means - means.mean(0), positive_inputs and not decays)

    @property
    def names(self) -> list[str]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def sized(self) -> int:
        """Readings that have a size: all but shares."""
        return 1 + len(self.names)

    def read(self, sent: Tensors, scale: float) -> dict[str, Tensor]:
        """Each (updates, classes), of tensors (updates, ...); `scale` makes updates of few and many steps alike.

        rows    how far each class's weights rose in all, which is what LLG reads
        toward  how far they rose towards the inputs that samples of the class have: right for inputs of any sign
        bias    how far its bias rose, which is what EBI and LLBG read
        shares of either, without their size: an update that is smaller than any that was rehearsed is read by these
        """
        weights = scale * sent[self.weight].double().flatten(2)
        rows = weights.sum(2)
        found = {"rows": rows, "shares of rows": positive(rows), "toward": (weights * self.features).sum(2)}
        if self.bias is not None:
            bias = scale * sent[self.bias].double()
            found |= {"bias": bias, "shares of bias": positive(bias)}
        return found

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


def row_inputs(model: nn.Module, weight: str, own: Examples, classes: int) -> Tensor:
    """(classes, features) what samples of each class move the row of their class by, for each unit of its logit.

    In a plain layer that is the layer's mean input. Where weights are normalised, it is what they answer to.
    """
    rows = model.get_parameter(weight)
    found = []
    for label in range(classes):
        samples = own.x[own.y == label].to(rows.device)
        (gradient,) = torch.autograd.grad(model(samples)[:, label].mean(), rows)
        found.append(gradient[label].double().flatten().cpu())
    return torch.stack(found)


def _layer_of(model: nn.Module, weight: str) -> nn.Module | None:
    """The module whose own tensor is called so."""
    return dict(model.named_modules()).get(weight.rpartition(".")[0])
