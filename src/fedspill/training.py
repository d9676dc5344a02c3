"""LocalTraining: how a client trains, how it cuts its samples into steps, and the gradient of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import UnknownName, UsageError

Tensors: TypeAlias = dict[str, Tensor]
Algorithm: TypeAlias = Literal["fedavg", "fedsgd"]
Optimizer: TypeAlias = Literal["sgd", "adam", "adadelta"]
BatchNorm: TypeAlias = Literal["train", "eval"]
Release: TypeAlias = Callable[[Tensors, Sequence[Tensor]], Tensors]  # what is sent, after steps on these samples


@dataclass(frozen=True, slots=True)
class Schedule:
    """`epochs` passes over `samples` samples in steps of `batch_size`; the last step of a pass may be short."""

    samples: int
    batch_size: int
    epochs: int = 1

    def __post_init__(self) -> None:
        if min(self.samples, self.batch_size, self.epochs) < 1:
            raise UsageError(f"Samples, batch size and epochs must be at least 1, got {self}.")

    @property
    def full_steps(self) -> int:
        """Full steps in one pass."""
        return self.samples // self.batch_size

    @property
    def last(self) -> int:
        """Samples in the short last step of a pass; 0 if there is none."""
        return self.samples % self.batch_size

    @property
    def steps(self) -> int:
        return self.epochs * (self.full_steps + (self.last > 0))

    @property
    def per_step(self) -> int:
        """Samples in an ordinary step."""
        return min(self.batch_size, self.samples)

    def sizes(self) -> list[int]:
        """Samples of each step of one pass."""
        return [self.batch_size] * self.full_steps + ([self.last] if self.last else [])


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
        """Puts the gradient of one local step into the parameters; federation/guarded.py changes it first."""
        batch_loss(model, batch).backward()  # type: ignore[no-untyped-call]

    def looking(self, model: nn.Module) -> AbstractContextManager[Release]:
        """Around all steps of a round: what its outcome is changed to in the end."""
        return nullcontext(_as_it_is)

    def gradient_of(self, model: nn.Module, batch: Examples, rng: torch.Generator) -> Tensors:
        """What a client sends under FedSGD."""
        return gradient(model, batch)

    def _order(self, samples: int, rng: torch.Generator) -> Tensor:
        return torch.randperm(samples, generator=rng) if self.shuffle else torch.arange(samples)


def _as_it_is(tensors: Tensors, batches: Sequence[Tensor]) -> Tensors:
    return tensors


def gradient(model: nn.Module, examples: Examples) -> Tensors:
    """The mean gradient of the loss over `examples`, for every parameter that is trained."""
    loss = batch_loss(model, examples)
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


def batch_loss(model: nn.Module, batch: Examples) -> Tensor:
    """The mean loss over a batch: of its labels, or of every next token where the model predicts these."""
    logits = _forward(model, batch.x)
    if not is_next_token(logits):
        return loss_of(logits, batch.y)
    predicted, targets = next_tokens(logits, batch)
    return nn.functional.cross_entropy(predicted, targets)


def is_next_token(logits: Tensor) -> bool:
    """Whether there is a row of logits for every place of a text, (n, length, tokens)."""
    return logits.ndim == 3


def next_tokens(logits: Tensor, batch: Examples) -> tuple[Tensor, Tensor]:
    """Logits (m, tokens) and the token (m,) that follows, of every place that has one; padding follows nothing."""
    targets = batch.x[:, 1:]
    padding = None if batch.vocabulary is None else batch.vocabulary.padding
    real = torch.ones_like(targets, dtype=torch.bool) if padding is None else targets != padding
    return logits[:, :-1][real], targets[real]


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; for a single logit the binary one."""
    if is_single(logits):
        return nn.functional.binary_cross_entropy_with_logits(logits.flatten(), labels.to(logits.dtype))
    return nn.functional.cross_entropy(logits, labels)


def is_single(logits: Tensor) -> bool:
    """Whether there is one logit per sample, (n,) or (n, 1), as of a sigmoid head."""
    return logits.ndim == 1 or logits.shape[1] == 1
