"""Stacked training: all clients of a round as one model with a leading client dimension.

A client's loss depends on its own slice only, so the gradient of the summed losses is every client's own gradient, and
the optimizers here work element by element. For small models this removes nearly all overhead; for large ones memory
traffic decides and the plain loop wins. Measured (benchmarks/stacking.py): with 50 clients and batches of 10, dense
networks of 5 to 50 thousand parameters train 3 to 6 times faster stacked, of 160 thousand 1.3 times, of 400 thousand
slower. Convolutions gain with small batches (LeNet, batches of 10: 1.7 times) and lose up to three times with large
ones: never stacked. On a GPU they are replayed instead (benchmarks/gpu_rounds.py: LeNet-5 17 times as fast as a loop,
stacked 8 times); dense networks are stacked there by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedspill.dataset import Examples
from fedspill.federation.local import on_device
from fedspill.placement import sent_to
from fedspill.training import LocalTraining, Tensors, is_next_token, is_single, loss_of, trained

MOST_PARAMETERS = 160_000
_STEPS_AT_ONCE = 8  # steps whose samples are copied together; more would save little time and cost memory
_NOT_STACKABLE = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RNNBase)


def is_stackable(model: nn.Module, examples: Examples, training: LocalTraining) -> bool:
    """Whether stacking is faster and gives the same result: small models without convolutions."""
    small = sum(p.numel() for p in model.parameters()) <= MOST_PARAMETERS
    convolutions = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.modules())
    return small and not convolutions and why_not_stackable(model, examples, training) is None


def why_not_stackable(model: nn.Module, examples: Examples, training: LocalTraining) -> str | None:
    """What would make stacked training differ from the loop, or fail; None if nothing does.

    Leaves the model in training mode, and the global random state as it was.
    """
    if training.algorithm != "fedavg":
        return f"{training.algorithm} sends gradients"
    if type(training) is not LocalTraining:
        return "a defense changes the local steps"
    if list(model.buffers()) or any(isinstance(layer, _NOT_STACKABLE) for layer in model.modules()):
        return "the model has buffers, dropout or recurrent layers"
    if len(trained(model)) < len(list(model.named_parameters(remove_duplicate=False))):
        return "the model has frozen or shared parameters"
    model.train()
    try:
        with torch.random.fork_rng(devices=[]):
            logits = model(examples.x[:1])
            if is_next_token(logits):
                return "the model predicts every next token"
            loss = loss_of(logits, examples.y[:1])
        if any(g is None for g in torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)):
            return "the model has parameters that it does not use"
        twice = {name: torch.stack([p.detach(), p.detach()]) for name, p in model.named_parameters()}
        inputs = torch.stack([examples.x[:1], examples.x[:1]])
        vmap(lambda state, x: functional_call(model, state, (x,), tie_weights=False))(twice, inputs)
    except (RuntimeError, ValueError, TypeError) as error:
        # The model branches on values, draws random numbers, or uses an operator without a batching rule.
        return f"vmap cannot run it ({type(error).__name__})"
    return None


def train_stacked(
    model: nn.Module,
    start: Tensors,
    clients: Sequence[Examples],
    training: LocalTraining,
    rngs: Sequence[torch.Generator],
) -> list[Tensors]:
    """The change of every parameter for each client; the clients must have equally many steps."""
    batches = [training.batches(len(examples), rng) for examples, rng in zip(clients, rngs, strict=True)]
    model.train()
    stacked = {name: _copies(tensor, len(clients)) for name, tensor in start.items()}
    parameters = list(stacked.values())
    optimizer = training.optimizer_for(parameters)
    forward = vmap(lambda state, x: functional_call(model, state, (x,), tie_weights=False))
    for x, y, weight in _steps(clients, batches):
        loss = _loss(forward(stacked, x), y, weight)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
    changes = [stacked[name].detach().contiguous().sub_(tensor).unbind() for name, tensor in start.items()]
    return [dict(zip(start, of_one, strict=True)) for of_one in zip(*changes, strict=True)]


def _copies(tensor: Tensor, many: int) -> Tensor:
    """(many, ...). A matrix is laid out as the gradient of a linear layer comes, or the optimizer would step slowly."""
    turned = tensor.mT if tensor.ndim == 2 else tensor
    copies = turned.expand(many, *turned.shape).clone(memory_format=torch.contiguous_format)
    return (copies.mT if tensor.ndim == 2 else copies).requires_grad_()


def _steps(clients: Sequence[Examples], batches: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each step inputs (clients, b, ...), labels and weights (clients, b); short batches get padding of weight 0."""
    for first in range(0, len(batches[0]), _STEPS_AT_ONCE):
        block = [steps[first : first + _STEPS_AT_ONCE] for steps in batches]
        sizes = torch.tensor([[len(step) for step in steps] for steps in block])  # (clients, steps)
        longest = sizes.amax(0).tolist()
        indices = [torch.cat([_padded(step, b) for step, b in zip(steps, longest, strict=True)]) for steps in block]
        indices = on_device(indices, clients[0].x.device)
        x = torch.stack([examples.x[index] for examples, index in zip(clients, indices, strict=True)])
        y = torch.stack([examples.y[index] for examples, index in zip(clients, indices, strict=True)])
        weight = [(torch.arange(b) < size[:, None]) / size[:, None] for b, size in zip(longest, sizes.T, strict=True)]
        for inputs, labels, w in zip(torch.split(x, longest, 1), torch.split(y, longest, 1), weight, strict=True):
            yield inputs, labels, sent_to(w, x.device)  # in float32, also beside inputs of whole numbers


def _padded(step: Tensor, length: int) -> Tensor:
    return step if len(step) == length else nn.functional.pad(step, (0, length - len(step)))


def _loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Weighted sum of all cross-entropies; logits (clients, b, classes), labels and weight (clients, b)."""
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if is_single(logits):
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits.flatten(), labels.to(logits.dtype), reduction="none"
        )
    else:
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    return losses @ weight.flatten().to(losses.dtype)
