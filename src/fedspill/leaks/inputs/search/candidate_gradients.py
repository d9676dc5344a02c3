"""What a candidate batch would have sent: gradients as a differentiable function of inputs and label targets.

Every part of the engine carries a leading axis of restarts R, so that restarts and group members run as one batch:
inputs x (R, B, *shape), targets (R, B, classes) as probabilities, gradients one tensor (R, *parameter) for each
observed one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedspill.leaks.inputs.search.stacked_batch_norm import with_explicit_batch_norm
from fedspill.observe.row_by_row import row_by_row

# Candidate inputs (R, B, *shape) and targets (R, B, classes) to the gradients they would give, differentiably.
GradientFunction: TypeAlias = Callable[[Tensor, Tensor], list[Tensor]]


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, classes) with target probabilities; of one logit (B, 1), the binary one."""
    if logits.shape[-1] == 1:
        positive = targets[..., -1:]
        return nn.functional.binary_cross_entropy_with_logits(logits, positive)
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


def gradients_of(model: nn.Module) -> GradientFunction:
    """The mean gradient over the batch (FedSGD) of every trained parameter, in the order of `named_parameters`.

    One restart goes through plain autograd, which costs a third less than vmap.
    """
    names, parameters = _trained(model)
    written = with_explicit_batch_norm(model)
    each = row_by_row(grad(_loss(written)), in_dims=(None, 0, 0))

    def by_vmap(x: Tensor, targets: Tensor) -> list[Tensor]:
        found = each(dict(zip(names, parameters, strict=True)), x, targets)
        return [found[name] for name in names]

    def by_autograd(x: Tensor, targets: Tensor) -> list[Tensor]:
        loss = soft_cross_entropy(_logits(written(x[0])), targets[0])
        return [g[None] for g in torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)]

    return lambda x, targets: by_autograd(x, targets) if len(x) == 1 else by_vmap(x, targets)


def local_steps_of(model: nn.Module, steps: Sequence[slice], lr: float, momentum: float = 0.0) -> GradientFunction:
    """The sum of step gradients of local SGD (FedAvg), which is minus the update over lr; `steps` cut the batch.

    The steps are unrolled, so that each is taken at the weights that the candidate's own earlier steps lead to. Several
    epochs are the same slices again.
    """
    names, parameters = _trained(model)
    loss = _loss(with_explicit_batch_norm(model))

    def one(start: dict[str, Tensor], x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        now, velocity = dict(start), dict[str, Tensor]()
        for part in steps:
            step = grad(loss)(now, x[part], targets[part])
            if momentum:
                step = {name: step[name] + momentum * velocity[name] for name in names} if velocity else step
                velocity = step
            now = {name: now[name] - lr * step[name] for name in names}
        return {name: (start[name] - now[name]) / lr for name in names}

    each = row_by_row(one, in_dims=(None, 0, 0))

    def by_vmap(x: Tensor, targets: Tensor) -> list[Tensor]:
        found = each(dict(zip(names, parameters, strict=True)), x, targets)
        return [found[name] for name in names]

    return by_vmap


def _trained(model: nn.Module) -> tuple[list[str], list[Tensor]]:
    """Names and values of what is trained. The model's own tensors: autograd must find them in its graph."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return list(trained), list(trained.values())


def _loss(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}

    def loss(parameters: dict[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        return soft_cross_entropy(_logits(functional_call(model, (parameters, buffers), (x,))), targets)

    return loss


def _logits(output: Tensor) -> Tensor:
    return output if output.ndim > 1 else output[:, None]
