"""Local training: what one client does with the model it received, as a plain loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.placement import CPU, sent_to
from fedspill.training import LocalTraining, Tensors, is_next_token, is_single, next_tokens


def train(
    model: nn.Module, start: Tensors, examples: Examples, training: LocalTraining, rng: torch.Generator
) -> Tensors:
    """Trains `model` in place from `start`; returns the change of every float tensor, or the gradient under FedSGD."""
    load(model, start)
    prepare(model, training)
    batches = on_device(training.batches(len(examples), rng), examples.x.device)
    with torch.random.fork_rng(devices=[]):
        seed_dropout(rng.initial_seed(), examples.x.device)
        if training.algorithm == "fedsgd":
            return training.gradient_of(model, examples.take(batches[0]), rng)
        optimizer = training.optimizer_for(model.parameters())
        with training.looking(model) as release:
            for batch in batches:
                optimizer.zero_grad()
                training.fill_gradients(model, examples.take(batch), rng)
                optimizer.step()
    return release(change(model, start), batches)


def prepare(model: nn.Module, training: LocalTraining) -> None:
    """Training mode, but for what the clients keep frozen."""
    model.train()
    if training.batch_norm == "eval":
        freeze_batch_norm(model)


def on_device(batches: list[Tensor], device: torch.device) -> list[Tensor]:
    """Where the samples are; indices that are not there are brought over, and waited for, at every step."""
    if device.type == CPU:
        return batches
    return list(torch.split(sent_to(torch.cat(batches), device), [len(batch) for batch in batches]))


def seed_dropout(seed: int, device: torch.device) -> None:
    """Dropout draws from the global generator. torch.manual_seed would cost more than training a small model."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


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
    """Share of examples classified right, or of next tokens predicted right, in evaluation mode."""
    model.eval()
    right = asked = 0
    for indices in torch.split(torch.arange(len(examples), device=examples.y.device), batch):
        part = examples.take(indices)
        logits, targets = model(part.x), part.y
        if is_next_token(logits):
            logits, targets = next_tokens(logits, part)
        guess = (logits.flatten() > 0).long() if is_single(logits) else logits.argmax(1)
        right += int((guess == targets).sum())
        asked += len(targets)
    return right / max(asked, 1)
