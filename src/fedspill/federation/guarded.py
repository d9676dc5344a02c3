"""Local training in which defenses change the single steps: targets, features, sample gradients or their mean."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.hooks import RemovableHandle

from fedspill.dataset import Examples
from fedspill.errors import UsageError
from fedspill.federation.round_looks import RoundLook
from fedspill.training import LocalTraining, Release, Tensors, is_next_token, is_single, trained

ParameterHolder: TypeAlias = Callable[[str], int | None]  # who holds the parameter of that name
_Targets: TypeAlias = Callable[[Tensor, int], Tensor]  # labels and the number of classes to rows of probabilities


@final
@dataclass(frozen=True, eq=False)
class Blend:
    """Samples that are learned in pairs: each has a partner in its step, and a share of it."""

    partner: Tensor  # (clients, samples)
    share: Tensor  # (clients,)

    def of(self, values: Tensor) -> Tensor:
        """(clients, samples, ...) values, each with its share of the partner's."""
        others = values[torch.arange(len(values), device=values.device)[:, None], self.partner.to(values.device)]
        share = self.share.to(values).reshape(-1, *[1] * (values.ndim - 1))
        return values + share * (others - values)


class StepRule(ABC):  # noqa: B024
    """What one defense does to a local step; a frozen dataclass overrides the parts that it changes."""

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Puts hooks on the model; they are removed after the step."""
        return []

    def look(self, model: nn.Module) -> RoundLook | None:
        """What looks at a whole round, and changes what is sent."""
        return None

    def targets(self, targets: Tensor) -> Tensor:
        """What is learned instead of targets (samples, classes), whose rows are probabilities."""
        return targets

    def inputs(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """What is learned from instead of inputs (clients, samples, ...)."""
        return x

    def blend(self, clients: int, samples: int, rng: torch.Generator) -> Blend | None:
        """With whom each of so many samples is mixed; None where they are learned one by one."""
        return None

    def weighed(self, losses: Tensor, targets: Tensor) -> Tensor:
        """What is minimised instead of losses (clients, samples) with targets (clients, samples, classes)."""
        return losses

    def sample_clip(self) -> float | None:
        """The norm that every single sample's gradient is clipped to; None where no such clipping is asked for."""
        return None

    @property
    def part(self) -> float:
        """The share of a client's samples that a round trains on, drawn anew in every round."""
        return 1.0

    @property
    def draws_at_random(self) -> bool:
        """Whether every step takes each sample with the same chance (Poisson), instead of cutting up a shuffle."""
        return False

    def changed(self, gradients: Tensors, size: int, rng: torch.Generator) -> Tensors:
        """What the optimizer gets instead of the mean gradients over `size` samples."""
        return gradients


@final
@dataclass(frozen=True)
class GuardedTraining(LocalTraining):
    """Local training with rules, in the order in which the defenses are listed."""

    rules: tuple[StepRule, ...] = ()

    @contextmanager
    def looking(self, model: nn.Module) -> Iterator[Release]:
        looks = [] if self.clip is not None else [look for rule in self.rules if (look := rule.look(model)) is not None]

        def release(tensors: Tensors, batches: Sequence[Tensor]) -> Tensors:
            for look in looks:
                tensors = look.sent(tensors, batches)
            return tensors

        try:
            yield release
        finally:
            for look in looks:
                look.close()

    def fill_gradients(self, model: nn.Module, batch: Examples, rng: torch.Generator) -> None:
        if not any(_acts_in_steps(type(rule)) for rule in self.rules):
            super().fill_gradients(model, batch, rng)
            return
        gradients = self._step(model, batch, rng, lambda name: None)
        for name, parameter in trained(model).items():
            parameter.grad = gradients[name]

    def gradient_of(self, model: nn.Module, batch: Examples, rng: torch.Generator) -> Tensors:
        return self.gradient_by(model, batch, rng, lambda name: None)

    def gradient_by(self, model: nn.Module, batch: Examples, rng: torch.Generator, holder: ParameterHolder) -> Tensors:
        """As `gradient_of`, where several parties hold the parameters: each clips the gradients of its own part."""
        with self.looking(model) as release:
            gradients = self._step(model, batch, rng, holder)
        return release(gradients, [torch.arange(len(batch))])

    def _step(self, model: nn.Module, batch: Examples, rng: torch.Generator, holder: ParameterHolder) -> Tensors:
        size = self.size_of(len(batch))
        with _watched(model, self.rules):
            if self.clip is not None:
                gradients = clipped_mean(model, batch.x, self.targets_of, batch.y, self.clip, size, holder)
            else:
                gradients = _mean_gradient(model, batch, self, rng)
        return self.changed(gradients, size, rng)

    def inputs(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """(clients, samples, ...) the inputs of a step after all rules."""
        for rule in self.rules:
            x = rule.inputs(x, rng)
        return x

    def blend(self, clients: int, samples: int, rng: torch.Generator) -> Blend | None:
        """With whom the samples of a step of each client are mixed, by the first rule that mixes any."""
        if self.clip is not None:  # gradients of single samples are clipped, so that samples stay apart
            return None
        found = (rule.blend(clients, samples, rng) for rule in self.rules)
        return next((one for one in found if one is not None), None)

    def batches(self, samples: int, rng: torch.Generator) -> list[Tensor]:
        """As many steps as without any rule, on the part of the samples that the rules leave.

        What a guarantee is reckoned for, steps in which single samples are clipped, draws from all of them.
        """
        part = min((rule.part for rule in self.rules), default=1.0)
        if part == 1 or self.clip is not None:
            return self._batches(samples, rng)
        drawn = torch.randperm(samples, generator=rng)[: math.ceil(part * samples)]
        steps: list[Tensor] = []
        while len(steps) < self.schedule(samples).steps:
            steps += [drawn[batch] for batch in self._batches(len(drawn), rng)]
        return steps[: self.schedule(samples).steps]

    def _batches(self, samples: int, rng: torch.Generator) -> list[Tensor]:
        if not any(rule.draws_at_random for rule in self.rules):
            return super().batches(samples, rng)
        chance = min(1.0, self.batch_size / samples)
        steps = self.schedule(samples).steps
        return [(torch.rand(samples, generator=rng) < chance).nonzero().flatten() for _ in range(steps)]

    def weighed(self, losses: Tensor, targets: Tensor) -> Tensor:
        """(clients, samples) the losses of a step after all rules."""
        for rule in self.rules:
            losses = rule.weighed(losses, targets)
        return losses

    @property
    def can_be_stacked(self) -> bool:
        """Whether clients can take the step together: no rule hangs on the layers of one client's model."""
        kinds = [type(rule) for rule in self.rules]
        return all(kind.watch is StepRule.watch and kind.look is StepRule.look for kind in kinds)

    @property
    def changes_gradients(self) -> bool:
        return any(type(rule).changed is not StepRule.changed for rule in self.rules)

    @property
    def clip(self) -> float | None:
        """The norm that every sample's gradient is clipped to, if any rule asks for it."""
        return min((limit for rule in self.rules if (limit := rule.sample_clip()) is not None), default=None)

    def size_of(self, samples: int) -> int:
        """What a step's sum is divided by: its samples, or as many as expected where they are drawn at random."""
        return self.batch_size if any(rule.draws_at_random for rule in self.rules) else samples

    def changed(self, gradients: Tensors, size: int, rng: torch.Generator) -> Tensors:
        """The gradients of a step after all rules."""
        for rule in self.rules:
            gradients = rule.changed(gradients, size, rng)
        return gradients

    def targets_of(self, labels: Tensor, classes: int) -> Tensor:
        """(samples, classes) what is learned of samples with these labels (samples,)."""
        # one_hot would do the same, but it reads values and so cannot run under vmap.
        targets = (labels[:, None] == torch.arange(classes, device=labels.device)).to(torch.get_default_dtype())
        for rule in self.rules:
            targets = rule.targets(targets)
        return targets


def guarded(training: LocalTraining, rule: StepRule) -> LocalTraining:
    """The same training with one more rule."""
    if isinstance(training, GuardedTraining):
        return replace(training, rules=(*training.rules, rule))
    return GuardedTraining(**{item.name: getattr(training, item.name) for item in fields(training)}, rules=(rule,))


@cache
def _acts_in_steps(rule: type[StepRule]) -> bool:
    """Whether such a rule does anything to a step, beyond looking at a whole round or drawing its samples."""
    overridden = vars(rule).keys() & vars(StepRule).keys()
    return any(name not in ("look", "part") and not name.startswith("_") for name in overridden)


@contextmanager
def _watched(model: nn.Module, rules: tuple[StepRule, ...]) -> Iterator[None]:
    handles = [handle for rule in rules for handle in rule.watch(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mean_gradient(model: nn.Module, batch: Examples, rules: GuardedTraining, rng: torch.Generator) -> Tensors:
    names, parameters = zip(*trained(model).items(), strict=True)
    blend = rules.blend(1, len(batch), rng)
    x = rules.inputs(batch.x[None], rng)
    logits = model((x if blend is None else blend.of(x))[0])
    losses = step_losses(logits[None], batch.y[None], rules, blend)
    gradients = torch.autograd.grad(losses.mean(), parameters, materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


def step_losses(logits: Tensor, labels: Tensor, rules: GuardedTraining, blend: Blend | None) -> Tensor:
    """(clients, samples) what is minimised, of logits (clients, samples, ...) and labels (clients, samples)."""
    flat = logits.flatten(0, 1)
    _refuse_next_token(flat)
    single = is_single(flat)
    targets = rules.targets_of(labels.flatten().long(), 2 if single else flat.shape[1])
    targets = targets.reshape(*labels.shape, -1)
    targets = targets if blend is None else blend.of(targets)
    if single:
        wanted = targets[..., 1].flatten().to(flat.dtype)
        losses = nn.functional.binary_cross_entropy_with_logits(flat.flatten(), wanted, reduction="none")
    else:
        losses = nn.functional.cross_entropy(flat, targets.flatten(0, 1).to(flat.dtype), reduction="none")
    return rules.weighed(losses.reshape(labels.shape), targets)


def clipped_mean(
    model: nn.Module,
    x: Tensor,
    targets_of: _Targets,
    y: Tensor,
    limit: float,
    size: int,
    holder: ParameterHolder = lambda name: None,
) -> Tensors:
    """The samples' gradients, each clipped to norm `limit`, summed and divided by `size`, the samples of a step."""
    parameters = {name: parameter.detach() for name, parameter in trained(model).items()}
    if len(x) == 0:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}

    def loss(state: Tensors, one: Tensor, label: Tensor) -> Tensor:
        return _loss(functional_call(model, state, (one[None],)), label[None], targets_of)

    try:
        each, _ = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")(parameters, x, y)
    except RuntimeError as error:
        raise UsageError(
            f"The gradients of single samples cannot be had of this model: {type(error).__name__}.",
            remedy="Batch normalisation mixes samples: use batch_norm = 'eval' or a model without it.",
        ) from error
    squares: dict[int | None, Tensor] = {}
    for name, part in each.items():
        squares[holder(name)] = squares.get(holder(name), 0) + part.flatten(1).square().sum(1)
    scales = {who: (limit / square.sqrt().clamp_min(1e-12)).clamp_max(1) for who, square in squares.items()}
    return {name: torch.einsum("n,n...->...", scales[holder(name)], part) / size for name, part in each.items()}


def _loss(logits: Tensor, labels: Tensor, targets_of: _Targets) -> Tensor:
    _refuse_next_token(logits)
    if is_single(logits):
        two = targets_of(labels.long(), 2)
        return nn.functional.binary_cross_entropy_with_logits(logits.flatten(), two[:, 1])
    return nn.functional.cross_entropy(logits, targets_of(labels, logits.shape[1]))


def _refuse_next_token(logits: Tensor) -> None:
    if is_next_token(logits):
        raise UsageError(
            "A defense that changes single steps knows classifiers; this model predicts every next token.",
            remedy="Use a defense of what is sent, such as clip-noise.",
        )
