"""Which hidden units single samples out: alone, or when compared with another unit.

What a batch sends back to a unit is a sum over samples. A server reads a sample where it can form a sum with one sample
in it. A trap is such a unit by itself. Bins are such units in pairs: two of them get the same from every sample but the
few that lie between their thresholds, so their difference has these alone in it. Both are seen on a client's own data,
whatever the weights look like and however slowly they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedspill.dataset import Examples
from fedspill.defenses.model_checks.peelable_batches import SIZES, readable_shares
from fedspill.training import is_next_token, is_single, loss_of, next_tokens

MOST_SAMPLES = 64  # of a client's own that are looked at
FEW = 5.0  # effective samples, of so many, below which a sum gives single ones away
FEWEST_SAMPLES = 16  # fewer say nothing: honest units may well tell few samples apart
MOST_UNITS = 256  # of a layer, evenly taken; a plant needs many
_NOTHING = 1e-5  # of what a unit gets: a difference below is rounding
_SILENT = 1e-6  # of what the loudest sample sends: one that sends less says nothing


def contributors(signals: Tensor) -> Tensor:
    """(units,) how many samples effectively make up what each unit gets (samples, units): (sum |s|)^2 / sum s^2."""
    signals = signals.double()
    return signals.abs().sum(0).square_().div_(signals.square().sum(0).clamp_min_(1e-300))


def fewest_in_pairs(signals: Tensor) -> Tensor:
    """(units,) the fewest effective samples in what a unit gets, less as much of any other unit's as fits best.

    signals (samples, units). Counted by fourth powers, (sum r^2)^2 / sum r^4, which products of the signals' powers
    give for all pairs at once. Two units that get the same from every sample count as 0: what tells them apart is a
    sample that is not among these. Units that get nothing count as many.
    """
    return _pairs(signals)[0]


def _pairs(signals: Tensor) -> tuple[Tensor, Tensor]:
    """(units,) as above, and (samples, units) what is left of each unit beside the one that leaves fewest, but some."""
    s = signals.double()
    s = s / s.square().sum(0).sqrt_().clamp_min_(1e-300)
    s2 = s.square()
    fit = s.T @ s  # (units, units) of unit j in unit i, both of norm 1
    left = (1 - fit.square()).clamp_min_(0)
    cubes, squares, fourth = (s2 * s).T @ s, s2.T @ s2, s2.square().sum(0)
    # fourth_i - 4 fit cubes + 6 fit^2 squares - 4 fit^3 cubes' + fit^4 fourth_j, from the inside; in place, since these
    # are the largest tensors of a trial
    rest = (fit * fourth).sub_(cubes.T, alpha=4).mul_(fit).add_(squares, alpha=6).mul_(fit)
    rest = rest.sub_(cubes, alpha=4).mul_(fit).add_(fourth[:, None])
    many = left.square().div_(rest.clamp_min_(1e-300)).masked_fill_(left <= _NOTHING, 0)
    nothing = s2.sum(0) < 0.5
    many.masked_fill_(nothing, torch.inf).fill_diagonal_(torch.inf)
    if len(many) < 2:
        return torch.full((len(many),), torch.inf, dtype=torch.float64), s
    found = many.amin(1)
    other = many.masked_fill_(left <= _NOTHING, torch.inf).argmin(1)  # what has nothing left gives nobody away
    left_over = s - s[:, other] * fit.gather(1, other[:, None])[:, 0]
    return torch.where(nothing, torch.full_like(found, torch.inf), found), left_over


@dataclass(frozen=True)
class LayerLook:
    """What a client's own samples show of one hidden layer, as shares."""

    name: str
    units: int  # that got anything
    alone: float  # of them, units that few samples reach
    pairs: float  # of them, units that few samples tell from another
    silenced: float  # of samples that the model is wrong about, those that others drown
    readable: tuple[float, ...]  # of batches of SIZES, what can be taken out one by one; NaN with too few samples
    first: bool = True  # it reads the samples themselves, not what other layers make of them


@torch.enable_grad()
def look_at(model: nn.Module, examples: Examples, state: Mapping[str, Tensor] | None = None) -> list[LayerLook]:
    """Looks at every hidden linear layer through at most 64 samples; nothing where there are too few.

    `state` is looked at in place of the model's own parameters, which stay as they are.
    """
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if len(examples) < FEWEST_SAMPLES or len(linear) < 2:
        return []
    places = torch.linspace(0, len(examples) - 1, min(len(examples), MOST_SAMPLES)).long()
    own = examples.take(places.to(examples.y.device))
    caught: dict[str, Tensor] = {}
    first: set[str] = set()
    passed: list[str] = []
    with _evaluated(model), _watched(linear, own.x, caught, first, passed):
        logits = functional_call(model, dict(state or {}), (own.x,))
    if passed:
        caught.pop(passed[-1], None)  # the head, wherever the model's code lists it
    if not caught:
        return []
    if is_next_token(logits):
        predicted, targets = next_tokens(logits, own)
        loss, wrong = nn.functional.cross_entropy(predicted, targets, reduction="sum"), None
    else:
        loss, wrong = len(own) * loss_of(logits, own.y), _wrong(logits.detach(), own.y)
    sent = torch.autograd.grad(loss, list(caught.values()), materialize_grads=True)
    looks = [_layer(name, signal.detach(), wrong) for name, signal in zip(caught, sent, strict=True)]
    return [replace(look, first=look.name in first) for look in looks]


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and each part of it as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _watched(
    linear: Mapping[str, nn.Linear], x: Tensor, caught: dict[str, Tensor], first: set[str], passed: list[str]
) -> Iterator[None]:
    """Catches what trained layers put out, of each sample or of each of its places, (samples, ..., units).

    `passed` becomes the names of all layers in the order in which samples pass them.
    """
    trained = {name for name, module in linear.items() if module.weight.requires_grad}

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
        def catch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            passed.append(name)
            if name not in trained or output.ndim < 2 or len(output) != len(x) or name in caught:
                return None
            caught[name] = output if output.requires_grad else output.requires_grad_()
            if inputs[0].numel() == x.numel() and torch.equal(inputs[0].detach().flatten(), x.flatten()):
                first.add(name)
            return output.clone()  # a rectifier that works in place must not change what was caught

        return catch

    handles = [module.register_forward_hook(hook(name)) for name, module in linear.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer(name: str, signals: Tensor, wrong: Tensor | None) -> LayerLook:
    """signals (samples, units) or (samples, places, units), wrong (samples,) bool."""
    sizes = signals.flatten(1).norm(dim=1)
    silenced = 0.0 if wrong is None or int(wrong.sum()) < FEW else 1 - _share_heard(sizes[wrong])
    heard = sizes > _SILENT * sizes.max()
    many = int(heard.sum())
    # How wrong the model is about a sample says nothing about what a unit singles out, so all samples count alike, but
    # for those that send nothing back, as those that wake no row: they are in no sum.
    places = _loudest_places(signals)
    even = places * (heard / places.norm(dim=1).clamp_min(1e-30))[:, None]
    got = even.abs().sum(0) > 0
    even = even if bool(got.all()) else even[:, got]
    even = even[:, :: max(1, even.shape[1] // MOST_UNITS)]
    if many < 2 * FEW or even.shape[1] < 8:
        return LayerLook(name, even.shape[1], 0.0, 0.0, silenced, (0.0,) * len(SIZES))
    fewest, left_over = _pairs(even)
    few = FEW * many / MOST_SAMPLES  # the same share of fewer samples
    alone = contributors(even) < few
    pairs = (fewest < few) & ~alone
    shares = float(alone.double().mean()), float(pairs.double().mean())
    return LayerLook(name, even.shape[1], *shares, silenced, readable_shares(even, left_over))


def _loudest_places(signals: Tensor) -> Tensor:
    """(samples, units): where a sample has several places, as an image has patches, the one that sends back the most.

    Such a layer is read place by place, and bins for places are as narrow for one of each sample as for all of them.
    """
    if signals.ndim == 2:
        return signals
    places = signals.flatten(1, -2)
    loudest = places.norm(dim=2).argmax(1)
    return places[torch.arange(len(places), device=places.device), loudest]


def _share_heard(sizes: Tensor) -> float:
    """How many samples effectively send something back, as a share; sizes (samples,) of what each of them sends."""
    return float(contributors(sizes[:, None])) / len(sizes)


def _wrong(logits: Tensor, y: Tensor) -> Tensor:
    """(samples,) whether the model gives the label less than one half."""
    if is_single(logits):
        chance = torch.sigmoid(logits.flatten())
        return torch.where(y > 0, chance, 1 - chance) < 0.5
    return torch.softmax(logits, 1).gather(1, y[:, None])[:, 0] < 0.5
