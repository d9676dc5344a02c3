"""Inputs behind a defense that the adversary knows: the most likely batch, given the message and similar inputs.

A client sends its gradient clipped, sparse, rounded or noised in a way that is public. So the defense is applied to a
candidate batch's gradient as well before it is compared with the message, and each coordinate is weighted by its noise.
Many batches explain a noisy message; a Gaussian distribution fitted to the adversary's own inputs says which of them
are likely. The product of both is maximised, first with noise that is assumed larger and then with its true size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad

from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of, soft_cross_entropy
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.observe.row_by_row import row_by_row
from fedspill.trace import View

MOST_SAMPLES = 16  # of a batch: more are not sought
_STAGES = 6  # of the search, over which the assumed noise falls from the size of the message to its true size
_MOVES = 60  # of L-BFGS in each stage
_LEAST_NOISE = 1e-3  # share of the message's typical coordinate that is assumed as noise where there is none
_STARTS, _START_DISTANCE = 2, 0.3  # random starts, and their distance from the mean in standard deviations
_PIXEL_SHARE = 0.2  # share of the variance that is taken as independent in every pixel


@dataclass(frozen=True, eq=False)
class InputDistribution:
    """A Gaussian distribution of inputs: a mean for every class and one covariance, given by a root of it."""

    means: Tensor  # (classes, d)
    root: Tensor  # (d, d), root @ root.T is the covariance
    low: float
    high: float

    @staticmethod
    def known_to(view: View, classes: int) -> InputDistribution | None:
        """From labelled or unlabelled inputs of the adversary; None where it has none."""
        if view.has("aux_data"):
            own: Examples = view.knows("aux_data")
            x, y = own.x.flatten(1).double(), own.y
        elif view.has("unlabelled_aux"):
            x = view.knows("unlabelled_aux").flatten(1).double()
            y = torch.full((len(x),), -1)
        else:
            return None
        overall = x.mean(0)
        means = torch.stack([x[y == c].mean(0) if bool((y == c).any()) else overall for c in range(classes)])
        centred = x - torch.where((y >= 0)[:, None], means[y.clamp_min(0)], overall)
        covariance = centred.T @ centred / max(len(x) - 1, 1)
        # Few inputs do not determine the covariance of many pixels, so a part of it is replaced by a multiple of one.
        covariance = (1 - _PIXEL_SHARE) * covariance
        covariance += _PIXEL_SHARE * torch.eye(len(covariance)).double() * covariance.diagonal().mean().clamp_min(1e-6)
        sizes, directions = torch.linalg.eigh(covariance)
        return InputDistribution(means, directions * sizes.clamp_min(1e-12).sqrt(), float(x.min()), float(x.max()))


def may_be_sought(attacked: AttackedMessage) -> bool:
    """Whether the most likely batch is within reach: one step of few samples."""
    return attacked.steps <= 1 and attacked.samples <= MOST_SAMPLES


def most_likely_batch(
    attacked: AttackedMessage,
    shape: tuple[int, ...],
    classes: int,
    view: View,
    labels: Tensor | None,
    distribution: InputDistribution,
    first: Tensor | None,
    rng: torch.Generator,
) -> RecoveredInputs:
    """The most likely batch of one step; `labels` (samples,) by a label attack, `first` (k, *shape) one more start."""
    wire = KnownDefenses.known_to(view)
    assert wire is not None
    if not may_be_sought(attacked):
        return RecoveredInputs.none(
            "behind this defense, inputs are sought for one step of few samples only", tried=False
        )
    seen = attacked.gradient_list
    noise = wire.noise(1, 1, attacked.lr or 1.0, attacked.lr is not None)
    usual = math.sqrt(sum(float(g.square().sum()) for g in seen) / sum(g.numel() for g in seen))
    deviations = [max(math.hypot(noise, wire.rounding(g)), _LEAST_NOISE * usual) for g in seen]
    # A defense that drops coordinates sends zeros in their place. Such a zero does not mean that the gradient is zero
    # there, so these coordinates, and layers that are sent as all zero, are left out of the comparison.
    unsent = wire.effect.dropped or wire.effect.no_last_bias
    weights = [(g != 0).double() if unsent else torch.ones_like(g) for g in seen]
    if labels is None or len(labels) != attacked.samples:
        labels = torch.arange(attacked.samples) % classes
    blur = wire.effect.smoothed
    targets = (1 - blur) * one_hot(labels, classes).double() + blur / classes
    send = defended_gradient(attacked, view.knows("defense"))
    centre = distribution.means[labels]

    def misfit(u: Tensor, louder: float) -> Tensor:
        x = (centre + u @ distribution.root.T).reshape(attacked.samples, *shape)
        parts = zip(send(x, targets), seen, deviations, weights, strict=True)
        return sum((w * (g - s)).square().sum() / (louder * n) ** 2 for g, s, n, w in parts) + u.square().sum()

    # Samples of one class have the same mean. Started there, they would have equal gradients and stay equal.
    starts = [_START_DISTANCE * torch.randn(centre.shape, generator=rng, dtype=torch.float64) for _ in range(_STARTS)]
    if first is not None and len(first) == attacked.samples:
        starts.append(torch.linalg.solve(distribution.root, (first.flatten(1).double() - centre).T).T)
    loudest = max(1.0, usual / max(deviations))
    best = min((_search(misfit, start, loudest) for start in starts), key=lambda found: found[0])
    x = (centre + best[1] @ distribution.root.T).clamp(distribution.low, distribution.high)
    return RecoveredInputs(x.reshape(attacked.samples, *shape), torch.zeros(attacked.samples, dtype=torch.bool), labels)


def _search(misfit: Callable[[Tensor, float], Tensor], start: Tensor, loudest: float) -> tuple[float, Tensor]:
    """The least misfit found and where; the noise goes down from `loudest` times its size in equal ratios."""
    u = start.clone().requires_grad_()
    for stage in range(_STAGES):
        louder = loudest ** (1 - stage / (_STAGES - 1))
        optimizer = torch.optim.LBFGS([u], max_iter=_MOVES, history_size=20, line_search_fn="strong_wolfe")

        def again(louder: float = louder, optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = 0.5 * misfit(u, louder)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            optimizer.step(again)  # type: ignore[no-untyped-call]
    found = u.detach()
    least = float(misfit(found, 1.0).detach())
    return (least if math.isfinite(least) else math.inf), found.nan_to_num(0.0)


def defended_gradient(
    attacked: AttackedMessage, defenses: Sequence[Defense]
) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """What x (samples, *shape) with targets (samples, classes) would send, noise apart, by trained parameter."""
    effects = [defense.effect() for defense in defenses]
    each = min((effect.sample_clip for effect in effects if effect.sample_clip is not None), default=None)
    rate = 1.0 if attacked.lr is None else attacked.lr  # an update is that much of a step's gradient
    clips = [one for effect in effects for one in ((effect.step_clip, 1.0), (effect.update_clip, rate))]
    limits = [(clip, unit) for clip, unit in clips if clip is not None]
    model, names = attacked.model, [name for name, p in attacked.model.named_parameters() if p.requires_grad]
    whole = gradients_of(attacked.as_client_ran)

    def one(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return soft_cross_entropy(functional_call(model, parameters, (x[None],)), target[None])

    each_gradient = row_by_row(grad(one), in_dims=(None, 0, 0))

    def send(x: Tensor, targets: Tensor) -> list[Tensor]:
        if each is None:
            sent = [g[0] for g in whole(x[None], targets[None])]
        else:
            parameters = {name: model.get_parameter(name).detach() for name in names}
            singles = each_gradient(parameters, x, targets)
            norms = torch.stack([g.flatten(1).square().sum(1) for g in singles.values()]).sum(0).clamp_min(1e-24).sqrt()
            scale = (each / norms).clamp_max(1) / len(x)
            sent = [torch.einsum("n,n...->...", scale, singles[name]) for name in names]
        for clip, unit in limits:
            norm = unit * torch.stack([g.square().sum() for g in sent]).sum().clamp_min(1e-24).sqrt()
            sent = [g * (clip / norm).clamp_max(1) for g in sent]
        return sent

    return send
