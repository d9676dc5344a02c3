"""Local training: what one client does with the model it received, as a plain loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedspill.data.base import Examples
from fedspill.errors import UsageError
from fedspill.federation.schedule import Schedule

Tensors: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class LocalTraining:
    """How clients train: passes over their data (`epochs`), or a fixed number of `steps` that wraps around."""

    __pydantic_config__: ClassVar[dict[str, str]] = {
        "extra": "forbid"
    }  # a misspelt option in a plan is an error, not a default

    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    optimizer: Literal["sgd", "adam", "adadelta"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 16
    epochs: int = 1
    steps: int | None = None
    shuffle: bool = True
    batch_norm: Literal["train", "eval"] = "train"

    def __post_init__(self) -> None:
        if self.lr <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise UsageError(
                f"Expected lr > 0, 0 <= momentum < 1 and weight_decay >= 0, "
                f"got {self.lr}, {self.momentum} and {self.weight_decay}."
            )
        if self.momentum and self.optimizer != "sgd":
            raise UsageError(f"Momentum is an option of sgd, not of {self.optimizer}.")
        if min(self.batch_size, self.epochs, self.steps or 1) < 1:
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
        torch.manual_seed(rng.initial_seed())  # dropout draws from the global generator
        if training.algorithm == "fedsgd":
            return gradient(model, examples.take(batches[0]))
        optimizer = training.optimizer_for(model.parameters())
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model(examples.x[batch]), examples.y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return change(model, start)


def gradient(model: nn.Module, examples: Examples) -> Tensors:
    """The mean gradient of the loss over `examples`."""
    loss = loss_of(model(examples.x), examples.y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; for a single logit the binary one."""
    if logits.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(1), labels.to(logits.dtype))
    return nn.functional.cross_entropy(logits, labels)


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
    """Parameters and buffers by name, not copied."""
    return {**{n: p.detach() for n, p in model.named_parameters()}, **dict(model.named_buffers())}


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
        guess = logits.argmax(1) if logits.shape[1] > 1 else (logits.squeeze(1) > 0).long()
        right += int((guess == y).sum())
    return right / max(len(examples), 1)
