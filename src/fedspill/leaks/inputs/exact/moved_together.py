"""All samples of several epochs, moved together until training on them sends what the client sent.

What the first linear layer was fed lies in the row space of its change, so that each sample has as many unknowns as
there are samples. All of them begin near their mean, which the change shows at once: the layer's weights move by
signals times inputs, and its bias by the signals alone. What tells samples apart there is their labels, which the last
layer's change counts. From the mean Gauss-Newton leads through the simulated training to the samples. A rectifier that
is on for a sample and off for its candidate changes all that its unit learns, and there are few such units near the
end: so misses count by their size, unit by unit, and not by their squares.

Behind convolutions the layer is fed something else at every step, since they learn too. How that drifts is told by
training on the images that are found so far, in turns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.explained_update import room_for_rounding
from fedspill.leaks.inputs.exact.front import Front
from fedspill.leaks.inputs.exact.gradient_rank import leading_directions
from fedspill.leaks.inputs.exact.leading_layers import module_chain
from fedspill.leaks.inputs.exact.mean_weights import (
    Explanation,
    mean_share,
    one_step_after,
    one_step_at,
    trained_on,
)
from fedspill.leaks.inputs.exact.slopes import slopes
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, local_steps_of
from fedspill.leaks.inputs.search.search import one_hot

# Conventions but for `TURNS` and `MIXTURES`, which did on development seeds 600 to 629 (papers/003/log_inversion.md).
STARTS = 4  # descents from the mean, each from other noise
FARTHEST = 0.3  # how far starts lie from the mean at most, as a share of it
TURNS = 7  # of going on from what was found, with the drift that follows from it
MIXTURES = 1  # descents of a turn from between two that ended, sample by sample, since each has other samples right
MOVES = 20  # of a descent
SETTLED = 1e-3  # relative gain of a move at which a descent is over
EXACT = 1e-3  # of a unit's usual change: misses below count as nothing


def moved_together(
    attacked: AttackedMessage,
    shape: tuple[int, ...],
    classes: int,
    rng: torch.Generator,
    read: Tensor,
) -> Explanation:
    """As many samples as the client has, as near as they come; raises CannotRecover as Front.of does.

    `read` (k, *shape) are samples that were found one by one. Some of them are right and some are none, which is told
    here: a right one is near one that was moved.
    """
    size, enough = attacked.samples, room_for_rounding(attacked) / 2
    middle = one_step_at(attacked, mean_share(attacked))
    front = front_of(middle, shape)
    first, mean = front.pair.first.weight_name, mean_fed(middle, front)
    labels = counted_labels(middle, front, mean, classes)
    basis = leading_directions(middle.gradients[first], size, rng).right
    drift, held, x = mean.new_zeros(attacked.steps, size, len(mean)), mean, None
    drifts, far = front.below is not None, FARTHEST * float(mean.norm()) or front.usual_norm(rng)
    found, best = list[Descent](), Explanation(torch.zeros(0, *shape), labels, math.inf)
    for turn in range(TURNS + 1):
        training = TrainingAbove.of(attacked, front, basis, drift, labels, classes)
        if turn == 0:
            noise = torch.randn(STARTS, size, size, generator=rng, dtype=mean.dtype) / math.sqrt(size)
            starts = [mean + far * (place + 1) / STARTS * one @ basis.T for place, one in enumerate(noise)]
        else:
            starts = [found[0].fed] if drifts else []
            if len(read):
                starts.append(_with_nearest(found[0].fed, front.features(read)))
            starts.append(torch.stack([one.fed for one in found]).mean(0))  # each ended off in its own direction
            starts += [_between(found, basis, rng) for _ in range(MIXTURES)]
        ended = [] if drifts else found  # under another drift they missed something else
        for start in starts:
            ended = sorted([*ended, training.descend(start, enough)], key=lambda one: one.cost)
            if ended[0].missed < enough:
                break
        found = [*ended, *(found if drifts else [])][:STARTS]
        target = found[0].fed if x is None or not drifts else front.features(x) + found[0].fed - held
        x = front.samples(target, x)
        middle, missed = one_step_after(attacked, x, labels, classes)
        if missed < best.missed or not drifts:
            best = Explanation(x, labels, missed)
        if missed < enough or turn == TURNS:
            break
        if drifts:
            front, model, fed = front_of(middle, shape), copy.deepcopy(attacked.model), list[Tensor]()
            for _ in trained_on(attacked, model, x, one_hot(labels, classes).double()):
                fed.append(Front.of(model, shape, mixing=bool(attacked.norms.by_batch)).features(x))
            held = torch.stack(fed).mean(0)
            basis, drift = leading_directions(middle.gradients[first], size, rng).right, torch.stack(fed) - held
    return best


def front_of(message: AttackedMessage, shape: tuple[int, ...]) -> Front:
    return Front.of(message.model, shape, mixing=bool(message.norms.by_batch))


def _between(found: Sequence[Descent], basis: Tensor, rng: torch.Generator) -> Tensor:
    """(B, f) each sample somewhere between where two descents left it, and off by as much as the best one misses."""
    one, other = (int(place) for place in torch.randint(len(found), (2,), generator=rng))
    share = torch.rand(len(found[0].fed), 1, generator=rng, dtype=basis.dtype)
    fed: Tensor = share * found[one].fed + (1 - share) * found[other].fed
    noise = torch.randn(len(fed), basis.shape[1], generator=rng, dtype=basis.dtype) / math.sqrt(basis.shape[1])
    far: Tensor = found[0].missed * (fed - fed.mean(0)).norm(dim=1).mean() * (noise @ basis.T)
    return fed + far


def _with_nearest(fed: Tensor, others: Tensor) -> Tensor:
    """(B, f) the samples, those half of them that have one of the `others` (k, f) nearest with that in their place."""
    apart, nearest = torch.cdist(fed, others).min(1)
    near: Tensor = torch.where((apart <= apart.median())[:, None], others[nearest], fed)
    return near


def mean_fed(message: AttackedMessage, front: Front) -> Tensor:
    """(f,) the mean of what the first linear layer was fed, weighted by signals; nothing where it has no bias."""
    layer = front.pair.first
    if layer.bias_name is None:
        return layer.weight.new_zeros(layer.weight.shape[1])
    signals = message.gradients[layer.bias_name].double()
    return signals @ message.gradients[layer.weight_name].double() / signals.square().sum().clamp_min(1e-300)


def counted_labels(message: AttackedMessage, front: Front, mean: Tensor, classes: int) -> Tensor:
    """(B,) the labels of a step's samples, in order, as if each were answered like their mean (f,).

    What the last layer's outputs are told is how likely each label is, less how often it is there.
    """
    chain = module_chain(message.model)
    first = [name for name, _ in chain].index(front.pair.first.weight_name.rpartition(".")[0])
    last = max(place for place, (_, module) in enumerate(chain) if isinstance(module, nn.Linear))
    name, head = chain[last]
    with torch.no_grad():
        features = nn.Sequential(*(module for _, module in chain[first:last]))(mean[None])
        logits = head(features)[0]
    if f"{name}.bias" in message.gradients:
        told = message.gradients[f"{name}.bias"].double()
    else:
        told = message.gradients[f"{name}.weight"].double() @ features[0] / features.square().sum().clamp_min(1e-300)
    size, labels = message.samples, list[int]()
    if len(logits) == 1:
        positive = round(size * float(logits.sigmoid() - told))
        return torch.tensor([int(place < positive) for place in range(size)])
    left = size * (logits.softmax(0) - told)
    for _ in range(size):
        labels.append(int(left.argmax()))
        left[labels[-1]] -= 1
    return torch.tensor(sorted(labels))


@dataclass(frozen=True, eq=False)
class Descent:
    """Where one ended: what samples feed the first linear layer, and what they miss, unit by unit and of the whole."""

    fed: Tensor  # (B, f)
    cost: float
    missed: float


@dataclass(frozen=True, eq=False)
class TrainingAbove:
    """What training sends of the layers from the first linear one on, by what that is fed at every step.

    All that it is ever fed lies in few directions, so that a layer of as many inputs trains as the client's did.
    """

    trained: GradientFunction
    targets: Tensor  # (T B, classes)
    basis: Tensor  # (f, r) that samples lie in
    along: Tensor  # (r, R) the samples' coordinates in those directions
    drift: Tensor  # (T, B, R) what is added to them at every step
    seen: Tensor  # (values,)
    unit: Tensor  # (values,) to which unit each belongs
    exact: float

    @staticmethod
    def of(
        attacked: AttackedMessage, front: Front, basis: Tensor, drift: Tensor, labels: Tensor, classes: int
    ) -> TrainingAbove:
        """For samples in the span of `basis` (f, r), fed with a `drift` (T, B, f)."""
        assert attacked.lr is not None
        steps, size, _ = drift.shape
        within = torch.linalg.qr(torch.cat([basis, drift.flatten(0, 1).T], 1))[0] if bool(drift.any()) else basis
        chain = module_chain(attacked.as_client_ran)
        start = [name for name, _ in chain].index(front.pair.first.weight_name.rpartition(".")[0])
        own = nn.Sequential(*(copy.deepcopy(module) for _, module in chain[start:]))
        layer = own[0]
        assert isinstance(layer, nn.Linear)
        layer.weight = nn.Parameter(layer.weight.detach() @ within, requires_grad=layer.weight.requires_grad)
        layer.in_features = within.shape[1]
        trained = [(int(name.split(".")[0]), name) for name, p in own.named_parameters() if p.requires_grad]
        names = [f"{chain[start + place][0]}.{name.partition('.')[2]}" for place, name in trained]
        sent = [attacked.gradients[name].double() for name in names]
        sent = [g @ within if name == front.pair.first.weight_name else g for name, g in zip(names, sent, strict=True)]
        units, unit = 0, []
        for g in sent:
            unit.append((units + torch.arange(len(g))).repeat_interleave(g[0].numel()))
            units += len(g)
        every = [slice(step * size, (step + 1) * size) for step in range(steps)]
        made = TrainingAbove(
            local_steps_of(own, every, attacked.lr, attacked.momentum),
            one_hot(labels, classes).double().repeat(steps, 1),
            basis,
            basis.T @ within,
            drift @ within,
            torch.cat([g.flatten() for g in sent]),
            torch.cat(unit),
            0.0,
        )
        usual = made.by_unit(made.seen)
        return TrainingAbove(**{**made.__dict__, "exact": EXACT * float(usual[usual > 0].median())})

    def missed(self, q: Tensor) -> Tensor:
        """(values,) what training on samples q (B, r) sends beyond what was sent."""
        fed = (q @ self.along + self.drift).flatten(0, 1)
        return torch.cat([g.flatten() for g in self.trained(fed[None], self.targets[None])]) - self.seen

    def by_unit(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(int(self.unit[-1]) + 1).index_add_(0, self.unit, values.square())
        return sums.sqrt() + self.exact

    def descend(self, fed: Tensor, enough: float) -> Descent:
        """Levenberg-Marquardt from samples that feed `fed` (B, f), by squares that are weighted to count as sizes."""
        q, damping = fed @ self.basis, 1e-3
        rest = self.missed(q).detach()
        cost = float(self.by_unit(rest).sum())
        for _ in range(MOVES):
            if not math.isfinite(cost) or float(rest.norm() / self.seen.norm()) < enough:
                break
            slope, weight, before = slopes(self.missed, q), 1 / self.by_unit(rest)[self.unit], cost
            curvature, downhill = slope.T @ (weight[:, None] * slope), slope.T @ (weight * rest)
            while damping < 1e8:
                ridge = torch.diag(damping * curvature.diagonal().clamp_min(1e-300))
                tried = q - torch.linalg.solve_ex(curvature + ridge, downhill)[0].reshape(q.shape)
                new = self.missed(tried).detach()
                if float(self.by_unit(new).sum()) < cost:
                    q, rest, cost, damping = tried, new, float(self.by_unit(new).sum()), damping * 0.1
                    break
                damping *= 5
            if not cost < before * (1 - SETTLED):
                break
        missed = float(rest.norm() / self.seen.norm())
        whole = (cost, missed) if math.isfinite(cost) else (math.inf, math.inf)
        return Descent(q @ self.basis.T, *whole)
