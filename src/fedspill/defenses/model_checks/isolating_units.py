"""Which hidden units single samples out: alone, or when compared with another unit.

What a batch sends back to a unit is a sum over samples. A server reads a sample where it can form a sum with one sample
in it. A trap is such a unit by itself. Bins are such units in pairs: two of them get the same from every sample but the
few that lie between their thresholds, so their difference has these alone in it. Both are seen on a client's own data,
whatever the weights look like and however slowly they came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedspill.dataset import Examples
from fedspill.training import loss_of

FEW = 5.0  # effective samples below which a sum gives single ones away
MOST_SAMPLES = 64  # of a client's own that are looked at
FEWEST_SAMPLES = 16  # fewer say nothing: honest units may well tell few samples apart
SIZES = (8, 16, 24, 32, 40, 48, 56, 64)  # of batches that are tried
MOST_UNITS = 256  # of a layer, evenly taken; a plant needs many
_PART = 1e-3  # of the largest: a smaller part of a unit's sum is rounding
_NOTHING = 1e-5  # of what a unit gets: a difference below is rounding


def contributors(signals: Tensor) -> Tensor:
    """(units,) how many samples effectively make up what each unit gets (samples, units): (sum |s|)^2 / sum s^2."""
    total = signals.abs().double().sum(0)
    return total**2 / signals.double().square().sum(0).clamp(min=1e-300)


def fewest_in_pairs(signals: Tensor) -> Tensor:
    """(units,) the fewest effective samples in what a unit gets, less as much of any other unit's as fits best.

    signals (samples, units). Counted by fourth powers, (sum r^2)^2 / sum r^4, which products of the signals' powers
    give for all pairs at once. Two units that get the same from every sample count as 0: what tells them apart is a
    sample that is not among these. Units that get nothing count as many.
    """
    return _pairs(signals)[0]


def fewest_between(signals: Tensor) -> Tensor:
    """(units,) the fewest samples that reach a unit and not another, or that one and not it; signals (samples, units).

    A server that gives each unit weights of its own in the next layer makes all samples tell every pair of units apart,
    and takes three or more units together to cancel them. To single a sample out these still have to differ by few in
    whom they fire for. Units that all samples reach, or none, are not compared: smooth activations have no others.
    """
    on = (signals != 0).double()
    reached = on.sum(0)
    some = (reached >= FEW) & (reached <= len(on) - FEW)
    apart = reached[:, None] + reached[None] - 2 * on.T @ on
    apart[:, ~some] = torch.inf
    apart.fill_diagonal_(torch.inf)
    if len(apart) < 2:
        return torch.full((len(apart),), torch.inf, dtype=torch.float64)
    return torch.where(some, apart.amin(1), torch.full_like(reached, torch.inf))


def _pairs(signals: Tensor) -> tuple[Tensor, Tensor]:
    """(units,) as above, and (samples, units) what is left of each unit beside the other that leaves the fewest."""
    s = signals.double()
    s = s / s.norm(dim=0).clamp_min(1e-300)
    s2 = s.square()
    fit = s.T @ s  # (units, units) of unit j in unit i, both of norm 1
    left = (1 - fit.square()).clamp_min(0)
    cubes, squares, fourth = (s2 * s).T @ s, s2.T @ s2, s2.square().sum(0)
    rest = fourth[:, None] - 4 * fit * cubes + 6 * fit**2 * squares - 4 * fit**3 * cubes.T + fit**4 * fourth[None]
    many = torch.where(left > _NOTHING, left.square() / rest.clamp_min(1e-300), torch.zeros_like(left))
    nothing = s2.sum(0) < 0.5
    many[:, nothing] = torch.inf
    many.fill_diagonal_(torch.inf)
    if len(many) < 2:
        return torch.full((len(many),), torch.inf, dtype=torch.float64), s
    found, other = many.min(1)
    left_over = s - s[:, other] * fit.gather(1, other[:, None])[:, 0]
    return torch.where(nothing, torch.full_like(found, torch.inf), found), left_over


def readable_shares(signals: Tensor, left_over: Tensor) -> Tensor:
    """(SIZES,) the share of samples that could be taken out one after the other, each when it is the last in some unit,
    or in the difference of two: what a server could read at most by such readings (planting/peel.py).

    signals and left_over (samples, units). How much can be read falls from all to nothing within a narrow range of
    batch sizes, so batches of several sizes are drawn from these samples, two of each.
    """
    inside = torch.cat([part.abs() > _PART * part.abs().amax(0) for part in (signals.double(), left_over)], 1)
    inside = inside[:, inside.any(0)].float()
    places = torch.arange(len(inside))
    batches = [chosen for size in SIZES for chosen in (places < size, places >= len(inside) - size)]
    return _taken_out(inside, torch.stack(batches).float()).reshape(len(SIZES), 2).mean(1)


def _taken_out(inside: Tensor, waiting: Tensor) -> Tensor:
    """(batches,) the share of each batch that can be taken out; inside (samples, sums) says which samples are part of
    which sums, waiting (batches, samples) who is in which batch.
    """
    sizes = waiting.sum(1)
    while True:
        last = (waiting @ inside) == 1
        taken = (last.float() @ inside.T > 0) & (waiting > 0)
        if not bool(taken.any()):
            return 1 - waiting.sum(1) / sizes
        waiting = waiting.masked_fill(taken, 0)


@dataclass(frozen=True)
class LayerLook:
    """What a client's own samples show of one hidden layer, as shares."""

    name: str
    units: int  # that got anything
    alone: float  # of them, units that few samples reach
    pairs: float  # of them, units that few samples tell from another
    silenced: float  # of samples that the model is wrong about, those that send nothing back
    readable: tuple[float, ...]  # of samples that send something, those that can be taken out one by one, by SIZES
    first: bool = True  # it reads the samples themselves, not what other layers make of them


@torch.enable_grad()
def look_at(model: nn.Module, examples: Examples) -> list[LayerLook]:
    """Looks at every hidden linear layer of a model through at most 64 samples; nothing where there are too few."""
    if len(examples) < FEWEST_SAMPLES:
        return []
    places = torch.linspace(0, len(examples) - 1, min(len(examples), MOST_SAMPLES)).long()
    own = examples.take(places.to(examples.y.device))
    caught: dict[str, Tensor] = {}
    first: set[str] = set()
    handles = _watch(model.eval(), own.x, caught, first)
    try:
        logits = model(own.x)
    finally:
        for handle in handles:
            handle.remove()
    if not caught:
        return []
    loss = len(own) * loss_of(logits, own.y)
    sent = torch.autograd.grad(loss, list(caught.values()), materialize_grads=True)
    wrong = _wrong(logits.detach(), own.y)
    looks = [_layer(name, signal.detach(), wrong) for name, signal in zip(caught, sent, strict=True)]
    return [replace(look, first=look.name in first) for look in looks]


def _watch(model: nn.Module, x: Tensor, caught: dict[str, Tensor], first: set[str]) -> list[RemovableHandle]:
    hidden = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)][:-1]

    def hook(name: str) -> object:
        def catch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if output.ndim == 2 and output.requires_grad and name not in caught:
                caught[name] = output
                if inputs[0].numel() == x.numel() and torch.equal(inputs[0].detach().flatten(), x.flatten()):
                    first.add(name)

        return catch

    return [module.register_forward_hook(hook(name)) for name, module in hidden]  # type: ignore[arg-type]


def _layer(name: str, signals: Tensor, wrong: Tensor) -> LayerLook:
    """signals (samples, units), wrong (samples,) bool."""
    sizes = signals.norm(dim=1)
    silent = sizes <= 1e-6 * sizes.max()
    silenced = float((silent & wrong).sum() / wrong.sum().clamp_min(1)) if int(wrong.sum()) >= FEW else 0.0
    heard = signals[~silent]
    # How wrong the model is about a sample says nothing about what a unit singles out, so all samples count alike.
    even = heard / sizes[~silent, None]
    on = even.abs().sum(0) > 0
    even = even[:, on][:, :: max(1, int(on.sum()) // MOST_UNITS)]
    if even.shape[0] < 2 * FEW or even.shape[1] < 8:
        return LayerLook(name, even.shape[1], 0.0, 0.0, silenced, (0.0,) * len(SIZES))
    few, left_over = _pairs(even)
    alone = contributors(even) < FEW
    pairs = (few < FEW) & ~alone
    readable = tuple(readable_shares(even, left_over).tolist())
    return LayerLook(
        name, even.shape[1], float(alone.double().mean()), float(pairs.double().mean()), silenced, readable
    )


def _wrong(logits: Tensor, y: Tensor) -> Tensor:
    """(samples,) whether the model gives the label less than one half."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        chance = torch.sigmoid(logits.flatten())
        return torch.where(y > 0, chance, 1 - chance) < 0.5
    return torch.softmax(logits, 1).gather(1, y[:, None])[:, 0] < 0.5
