"""Make-believe clients: what clients with made-up data would send, found by training on auxiliary samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_, vmap

from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.federation.guarded import GuardedTraining
from fedspill.federation.local import freeze_batch_norm, state_of, train
from fedspill.messages import SERVER, Kind, Message, client
from fedspill.training import LocalTraining, Tensors, is_single

GROUP = 64  # trainings stacked at a time
GROUP_NUMBERS = 6_000_000  # parameters of a group, at most: beyond that memory traffic decides


@dataclass(frozen=True, eq=False)
class Workshop:
    """What is needed to do as the clients do: the model's code, their training, their defenses, samples like theirs."""

    model: nn.Module  # scratch space
    training: LocalTraining
    auxiliary: Examples
    defenses: tuple[Defense, ...] = ()

    def send(self, start: Tensors, rows: Tensor, names: Sequence[str], rng: torch.Generator) -> Tensors:
        """What make-believe clients with auxiliary samples `rows` (clients, n) send after starting from `start`.

        Of each tensor in `names` the change, or the gradient under FedSGD: (clients, ...).
        """
        groups = [self._sent(start, part, names, rng) for part in torch.split(rows, self._group())]
        return {name: torch.cat([group[name] for group in groups]) for name in names}

    def learnt(self, start: Tensors, steps: int, rng: torch.Generator) -> Tensors:
        """`start` after so many local steps on the auxiliary samples themselves, which it then knows as its own."""
        if steps == 0:
            return start
        plain = LocalTraining(
            optimizer=self.training.optimizer,
            lr=self.training.lr,
            momentum=self.training.momentum,
            batch_size=min(self.training.batch_size, len(self.auxiliary)),
            steps=steps,
            batch_norm=self.training.batch_norm,
        )  # without the clients' rules: it is the knowledge that counts, not the way to it
        moved = train(self.model, start, self.auxiliary, plain, _seeded(rng))
        return {name: tensor + moved[name] if name in moved else tensor for name, tensor in start.items()}

    @cached_property
    def is_stacked(self) -> bool:
        """Whether clients are trained together, and not one by one."""
        start = {name: tensor.clone() for name, tensor in state_of(self.model).items()}
        return stacks(self.model, start, self.auxiliary, self.training)

    def _group(self) -> int:
        return max(1, min(GROUP, GROUP_NUMBERS // sum(p.numel() for p in self.model.parameters())))

    def _sent(self, start: Tensors, rows: Tensor, names: Sequence[str], rng: torch.Generator) -> Tensors:
        alike = not any(type(defense).data is not Defense.data for defense in self.defenses)
        if alike and len(rows) > 1 and self.is_stacked:
            wanted = [name for name, tensor in start.items() if tensor.is_floating_point()] if self.defenses else names
            together = train_stack(self.model, start, self.auxiliary, rows, self.training, wanted, rng)
            if not self.defenses:
                return together
            each = [{name: tensor[index] for name, tensor in together.items()} for index in range(len(rows))]
        else:
            each = [self._alone(start, own, rng) for own in rows]
        sent = [self._defended(moved, rows.shape[1], rng) for moved in each]
        return {name: torch.stack([one[name] for one in sent]) for name in names}

    def _alone(self, start: Tensors, own: Tensor, rng: torch.Generator) -> Tensors:
        examples = self.auxiliary.take(own)
        for defense in self.defenses:
            examples = defense.data(examples, self.auxiliary, _seeded(rng))
        return train(self.model, start, examples, self.training, _seeded(rng))

    def _defended(self, moved: Tensors, samples: int, rng: torch.Generator) -> Tensors:
        kind: Kind = "gradient" if self.training.algorithm == "fedsgd" else "update"
        message = Message(0, client(0), SERVER, kind, moved, {"examples": samples})
        for defense in self.defenses:
            message = defense.outgoing(message, _seeded(rng))
        return dict(message.tensors)


def _seeded(rng: torch.Generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(torch.randint(1 << 62, (1,), generator=rng)))


def stacks(model: nn.Module, start: Tensors, auxiliary: Examples, training: LocalTraining) -> bool:
    """Whether many clients can be trained as one model with a leading dimension."""
    guarded = isinstance(training, GuardedTraining) and training.changes_targets_alone
    if type(training) is not LocalTraining and not guarded:
        return False
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return False
    try:
        rows = torch.arange(2).remainder(len(auxiliary)).expand(2, 2)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")
            train_stack(model, start, auxiliary, rows, training, [], torch.Generator().manual_seed(0))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, UserWarning):
        return False  # control flow on values, or an operator without a batching rule
    return True


def train_stack(
    model: nn.Module,
    start: Tensors,
    auxiliary: Examples,
    rows: Tensor,
    training: LocalTraining,
    names: Iterable[str],
    rng: torch.Generator,
) -> Tensors:
    """The change (clients, ...) of each tensor in `names`, clients with auxiliary samples `rows` (clients, n).

    Under FedSGD it is the gradient of one step instead, which is what such clients send.
    Batch norm takes each client's batch in training mode; its running statistics are nobody's feature and stay.
    """
    clients = len(rows)
    net = copy.deepcopy(model).train()
    if training.batch_norm == "eval":
        freeze_batch_norm(net)
    else:
        replace_all_batch_norm_modules_(net)
    learns = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    fixed = {name: start[name] for name in held if name in start and name not in learns}
    stacked = {name: start[name].expand(clients, *start[name].shape).clone().requires_grad_() for name in learns}
    parameters = list(stacked.values())
    optimizer = training.optimizer_for(parameters)
    forward = vmap(lambda state, x: functional_call(net, {**fixed, **state}, (x,)), randomness="different")
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.default_generator.manual_seed(int(torch.randint(1 << 62, (1,), generator=rng)))
        for step in _steps(rows, training, rng):
            loss = _loss(forward(stacked, auxiliary.x[step]), auxiliary.y[step], training)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            if training.algorithm == "fedsgd":
                sent = {
                    name: gradient for name, gradient in zip(stacked, gradients, strict=True) if gradient is not None
                }
                return {
                    name: sent[name] if name in sent else torch.zeros(clients, *start[name].shape) for name in names
                }
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return {
        name: stacked[name].detach() - start[name] if name in stacked else torch.zeros(clients, *start[name].shape)
        for name in names
    }


def _steps(rows: Tensor, training: LocalTraining, rng: torch.Generator) -> Iterator[Tensor]:
    """Of each local step the auxiliary samples (clients, b) of all clients, each in an order of its own."""
    orders = [training.batches(rows.shape[1], rng) for _ in rows]
    for step in zip(*orders, strict=True):
        yield rows.gather(1, torch.stack(step))


def _loss(logits: Tensor, labels: Tensor, training: LocalTraining) -> Tensor:
    """The clients' mean losses, summed; logits (clients, b, outputs), labels (clients, b)."""
    flat, size, single = logits.flatten(0, 1), labels.shape[1], is_single(logits.flatten(0, 1))
    wanted = labels.flatten()
    if isinstance(training, GuardedTraining):
        wanted = training.targets_of(wanted.long(), 2 if single else flat.shape[1])
        wanted = wanted[:, 1] if single else wanted
    if single:
        wanted = wanted.to(flat.dtype)
        return nn.functional.binary_cross_entropy_with_logits(flat.flatten(), wanted, reduction="sum") / size
    return nn.functional.cross_entropy(flat, wanted, reduction="sum") / size
