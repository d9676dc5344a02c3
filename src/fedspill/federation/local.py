"""Local training: what one client does with the model it received, as a plain loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from fedspill.data.base import Examples
from fedspill.errors import UnknownName, UsageError
from fedspill.federation.schedule import Schedule

Tensors: TypeAlias = dict[str, Tensor]
Algorithm: TypeAlias = Literal["fedavg", "fedsgd"]
Optimizer: TypeAlias = Literal["sgd", "adam", "adadelta"]
BatchNorm: TypeAlias = Literal["train", "eval"]


@dataclass(frozen=True)
class LocalTraining:
    """How clients train: passes over their data (`epochs`), or a fixed number of `steps` that wraps around."""

    __pydantic_config__: ClassVar[dict[str, str]] = {
        "extra": "forbid"
    }  # a misspelt option in a plan is an error, not a default

    algorithm: Algorithm = "fedavg"
    optimizer: Optimizer = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 16
    epochs: int = 1
    steps: int | None = None
    shuffle: bool = True
    batch_norm: BatchNorm = "train"

    def __post_init__(self) -> None:
        for option, chosen, known in (
            ("algorithm", self.algorithm, Algorithm),
            ("optimizer", self.optimizer, Optimizer),
            ("batch_norm", self.batch_norm, BatchNorm),
        ):
            if chosen not in get_args(known):
                raise UnknownName(f"{option} of local training", str(chosen), get_args(known))
        finite = math.isfinite(self.lr) and math.isfinite(self.weight_decay)
        if not finite or self.lr <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise UsageError(
                f"Expected lr > 0, 0 <= momentum < 1 and weight_decay >= 0, "
                f"got {self.lr}, {self.momentum} and {self.weight_decay}."
            )
        if self.momentum and self.optimizer != "sgd":
            raise UsageError(f"Momentum is an option of sgd, not of {self.optimizer}.")
        if min(self.batch_size, self.epochs, 1 if self.steps is None else self.steps) < 1:
            raise UsageError("batch_size, epochs and steps must be at least 1.")

    def optimizer_for(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        if self.optimizer == "adadelta":
            return torch.optim.Adadelta(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def schedule(self, samples: int) -> Schedule:
        """How a client with that many samples cuts them into steps."""
        if self.algorithm == "fedsgd":
            return Schedule(min(samples, self.batch_size), min(samples, self.batch_size))
        if self.steps is not None:
            return Schedule(self.steps * self.batch_size, self.batch_size)
        return Schedule(samples, self.batch_size, self.epochs)

    def batches(self, samples: int, rng: torch.Generator) -> list[Tensor]:
        """The indices of each local step, in order."""
        schedule = self.schedule(samples)
        if self.algorithm == "fedavg" and self.steps is not None:
            passes = -(-schedule.samples // samples)
            stream = torch.cat([self._order(samples, rng) for _ in range(passes)])[: schedule.samples]
            return list(torch.split(stream, self.batch_size))
        steps: list[Tensor] = []
        for _ in range(schedule.epochs):
            steps += torch.split(self._order(samples, rng)[: schedule.samples], schedule.batch_size)
        return steps

    def used(self, samples: int, rng: torch.Generator) -> Tensor:
        """The indices that one pass trains on: what an attack on the round can hope to count."""
        steps = self.batches(samples, rng)
        return torch.cat(steps[: len(steps) // self.schedule(samples).epochs])

    def fill_gradients(self, model: nn.Module, batch: Examples, rng: torch.Generator) -> None:
        """Puts the gradient of one local step into the parameters; guarded training (guarded.py) changes it first."""
        loss_of(_forward(model, batch.x), batch.y).backward()  # type: ignore[no-untyped-call]

    def gradient_of(self, model: nn.Module, batch: Examples, rng: torch.Generator) -> Tensors:
        """What a client sends under FedSGD."""
        return gradient(model, batch)

    def _order(self, samples: int, rng: torch.Generator) -> Tensor:
        return torch.randperm(samples, generator=rng) if self.shuffle else torch.arange(samples)


def train(
    model: nn.Module, start: Tensors, examples: Examples, training: LocalTraining, rng: torch.Generator
) -> Tensors:
    """Trains `model` in place from `start`; returns the change of every float tensor, or the gradient under FedSGD."""
    load(model, start)
    model.train()
    if training.batch_norm == "eval":
        freeze_batch_norm(model)
    batches = training.batches(len(examples), rng)
    with torch.random.fork_rng(devices=[]):
        _seed_dropout(rng.initial_seed(), examples.x.device)
        if training.algorithm == "fedsgd":
            return training.gradient_of(model, examples.take(batches[0]), rng)
        optimizer = training.optimizer_for(model.parameters())
        for batch in batches:
            optimizer.zero_grad()
            training.fill_gradients(model, examples.take(batch), rng)
            optimizer.step()
    return change(model, start)


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Dropout draws from the global generator. torch.manual_seed costs more than training a small model."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def gradient(model: nn.Module, examples: Examples) -> Tensors:
    """The mean gradient of the loss over `examples`, for every parameter that is trained."""
    loss = loss_of(_forward(model, examples.x), examples.y)
    names, parameters = zip(*trained(model).items(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, materialize_grads=True), strict=True))


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    try:
        logits: Tensor = model(x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UsageError(
            f"Batch normalisation cannot train on a step of {len(x)} sample.",
            remedy="Choose a batch size that leaves no such step, or batch_norm = 'eval'.",
        ) from None
    return logits


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; for a single logit the binary one."""
    if is_single(logits):
        return nn.functional.binary_cross_entropy_with_logits(logits.flatten(), labels.to(logits.dtype))
    return nn.functional.cross_entropy(logits, labels)


def is_single(logits: Tensor) -> bool:
    """Whether there is one logit per sample, (n,) or (n, 1), as of a sigmoid head."""
    return logits.ndim == 1 or logits.shape[1] == 1


@torch.no_grad()
def load(model: nn.Module, state: Tensors) -> None:
    """Copies `state` into the model's own storage; faster than load_state_dict, and as strict."""
    own = state_of(model)
    assert own.keys() == state.keys()
    torch._foreach_copy_(list(own.values()), [state[name] for name in own])


@torch.no_grad()
def change(model: nn.Module, start: Tensors) -> Tensors:
    """What the model's float tensors are now minus what they were."""
    now = {name: tensor for name, tensor in state_of(model).items() if tensor.is_floating_point()}
    return dict(zip(now, torch._foreach_sub(list(now.values()), [start[name] for name in now]), strict=True))


def state_of(model: nn.Module) -> Tensors:
    """Parameters and buffers by name, not copied; without buffers that a checkpoint would not hold either."""
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())
    if buffers:
        stored = model.state_dict(keep_vars=True)
        state |= {name: buffer for name, buffer in buffers.items() if name in stored}
    return state


def freeze_batch_norm(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


@torch.no_grad()
def accuracy(model: nn.Module, examples: Examples, batch: int = 512) -> float:
    """Share of examples classified right, in evaluation mode."""
    model.eval()
    right = 0
    for x, y in zip(torch.split(examples.x, batch), torch.split(examples.y, batch), strict=True):
        logits = model(x)
        guess = (logits.flatten() > 0).long() if is_single(logits) else logits.argmax(1)
        right += int((guess == y).sum())
    return right / max(len(examples), 1)
