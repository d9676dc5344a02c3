"""The published way to malicious neurons: the first layer and the last neurons of the second, trained on a shadow set.

AAI (paper 004): regression to +400 for the target with the frequent value, -4 with the other one, -400 for all others.
AMI (Nguyen et al. 2023) and MIA2AIA (paper 004): cross-entropy over sigmoid outputs, one class per record to recognise.
Many attacks on one model are trained at once: they are independent, and a leading dimension runs them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.planting.dense_network import DenseNetwork, HiddenActivation
from fedspill.training import Tensors

TRAIN_SHARE = 0.8  # of the shadow set; the rest is the authors' validation set


@dataclass(frozen=True)
class AaiRecipe:
    """The authors' constants."""

    epochs: int = 1000
    lr: float = 0.01
    scale: float = 400.0
    small: float = -0.01  # of the scale: the code of the rarer value
    weight: float = 10_000.0  # of a target beside a shadow record


@dataclass(frozen=True)
class AmiRecipe:
    """The authors' constants for MIA2AIA; AMI's own are in `AMI`."""

    epochs: int = 1000
    lr: float = 5e-4
    shadow_weight: float = 0.1
    target_weight: float = 25_000.0  # shared by all records to recognise
    until_right: bool = False  # stop once every target fires and no shadow record kept aside does


AMI = AmiRecipe(epochs=20_000, lr=1e-4, shadow_weight=0.05, target_weight=1010.9, until_right=True)


@dataclass(frozen=True, eq=False)
class TrainedNeurons:
    """Trained weights of `runs` attacks: w1 (runs, columns, units), b1 (runs, 1, units), w2 (runs, units, k), b2."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor

    def install(self, dense: DenseNetwork, state: Tensors, run: int) -> Tensors:
        """The state with the whole first layer and the last k neurons of the second replaced."""
        planted = {name: tensor.clone() for name, tensor in state.items()}
        k = self.w2.shape[2]
        planted[dense.weight(0)] = self.w1[run].T.clone()
        planted[dense.bias(0)] = self.b1[run, 0].clone()
        planted[dense.weight(1)][-k:] = self.w2[run].T
        planted[dense.bias(1)][-k:] = self.b2[run, 0]
        return planted


def train_aai(
    dense: DenseNetwork, state: Tensors, up: Tensor, down: Tensor, shadow: Tensor, recipe: AaiRecipe
) -> TrainedNeurons:
    """AAI for targets (runs, k, columns) with the frequent value (`up`) and with the other (`down`)."""
    runs, k, _ = up.shape
    shadow = shadow[: int(TRAIN_SHARE * len(shadow))]
    x = _shadow_and_targets(shadow, torch.cat([up, down], 1))
    n = len(shadow)
    goal = torch.full((x.shape[1], k), -1.0, device=x.device)
    goal[n : n + k][torch.eye(k, dtype=torch.bool, device=x.device)] = 1.0
    goal[n + k :][torch.eye(k, dtype=torch.bool, device=x.device)] = recipe.small
    weight = torch.ones(x.shape[1], 1, device=x.device)
    weight[n:] = recipe.weight

    def loss(s: Tensor) -> Tensor:
        return ((s - recipe.scale * goal).square() * weight).sum() / x.shape[1]

    return _trained(_start(dense, state, runs, k), x, dense.activation, loss, recipe.lr, recipe.epochs)


def train_ami(dense: DenseNetwork, state: Tensors, wanted: Tensor, shadow: Tensor, recipe: AmiRecipe) -> TrainedNeurons:
    """AMI for records (runs, k, columns) to recognise: MIA2AIA with k = 2 is one target with either value."""
    runs, k, _ = wanted.shape
    n = int(TRAIN_SHARE * len(shadow))
    kept_aside = shadow[n:]
    x = _shadow_and_targets(shadow[:n], wanted)
    label = torch.cat([torch.zeros(n, dtype=torch.int64), torch.arange(1, k + 1)]).to(x.device)
    weight = torch.tensor([recipe.shadow_weight] + [recipe.target_weight / k] * k).to(x)[label]
    start = _start(dense, state, runs, k)
    scratch = TrainedNeurons(
        start.w1, start.b1, torch.cat([start.w2[:, :, -1:], start.w2], 2), torch.cat([start.b2[:, :, -1:], start.b2], 2)
    )

    def loss(s: Tensor) -> Tensor:
        chances = torch.log_softmax(torch.sigmoid(s), -1)  # (runs, n, k + 1)
        picked = chances.gather(-1, label.expand(runs, -1)[..., None])[..., 0]
        return -(picked * weight).sum() / weight.sum()

    def done(now: TrainedNeurons) -> bool:
        fires = [
            _forward(now, records, dense.activation)[..., 1:] > 0
            for records in (wanted, kept_aside.expand(runs, -1, -1))
        ]
        return bool(fires[0].diagonal(dim1=1, dim2=2).all()) and not bool(fires[1].any())

    made = _trained(scratch, x, dense.activation, loss, recipe.lr, recipe.epochs, done if recipe.until_right else None)
    return TrainedNeurons(made.w1, made.b1, made.w2[:, :, 1:], made.b2[:, :, 1:])


def align(dense: DenseNetwork, state: Tensors, row: int, label: int) -> None:
    """Signs of the output weights such that the target's residual is positive at its neuron (Appendix A). In place."""
    weight = state[dense.weight(dense.hidden)]
    weight[:, row] = weight[:, row].abs()
    if len(weight) == 1:
        weight[0, row] *= 1 if label == 0 else -1
    else:
        weight[label, row] *= -1


def _shadow_and_targets(shadow: Tensor, targets: Tensor) -> Tensor:
    """(runs, shadow + targets, columns)."""
    return torch.cat([shadow.expand(len(targets), -1, -1), targets], 1)


def _start(dense: DenseNetwork, state: Tensors, runs: int, k: int) -> TrainedNeurons:
    """The honest weights: the whole first layer and the last k neurons of the second."""
    if dense.hidden < 2:
        raise NotApplicable("The published attacks train two hidden layers; this network has one.")
    w2 = state[dense.weight(1)]
    if k > len(w2):
        raise NotApplicable(f"{k} neurons are needed in a second layer of {len(w2)}.")

    def copies(tensor: Tensor) -> Tensor:
        return tensor.expand(runs, *tensor.shape).clone()

    return TrainedNeurons(
        copies(state[dense.weight(0)].T),
        copies(state[dense.bias(0)][None]),
        copies(w2[-k:].T),
        copies(state[dense.bias(1)][-k:][None]),
    )


def _forward(neurons: TrainedNeurons, x: Tensor, activation: HiddenActivation) -> Tensor:
    """(runs, n, k) what enters the neurons' activation."""
    hidden = torch.baddbmm(neurons.b1, x, neurons.w1)
    hidden = nn.functional.elu(hidden, activation.alpha) if activation.elu else nn.functional.relu(hidden)
    return torch.baddbmm(neurons.b2, hidden, neurons.w2)


def _trained(
    start: TrainedNeurons,
    x: Tensor,
    activation: HiddenActivation,
    loss: Callable[[Tensor], Tensor],
    lr: float,
    epochs: int,
    done: Callable[[TrainedNeurons], bool] | None = None,
) -> TrainedNeurons:
    """Full-batch Adam, as published; with `done`, looked at every 100 epochs."""
    with torch.enable_grad():
        parameters = [tensor.detach().clone().requires_grad_() for tensor in (start.w1, start.b1, start.w2, start.b2)]
        optimizer = torch.optim.Adam(parameters, lr=lr)
        for epoch in range(epochs):
            gradients = torch.autograd.grad(loss(_forward(TrainedNeurons(*parameters), x, activation)), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            if done is not None and epoch % 100 == 99 and done(TrainedNeurons(*(p.detach() for p in parameters))):
                break
    return TrainedNeurons(*(parameter.detach() for parameter in parameters))
