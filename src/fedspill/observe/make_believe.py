"""Make-believe clients: what clients with made-up data would send, found by training on auxiliary samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_

from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.federation.guarded import GuardedTraining, step_losses
from fedspill.federation.local import freeze_batch_norm, seed_dropout, state_of, train
from fedspill.messages import SERVER, Kind, Message, client
from fedspill.observe.row_by_row import row_by_row
from fedspill.placement import CPU, moved
from fedspill.training import LocalTraining, Tensors, is_single

GROUP = 64  # trainings stacked at a time
GROUP_NUMBERS = 6_000_000  # parameters of a group, at most: beyond that memory traffic decides
GPU_HOLDS_MORE = 50  # times as many (convention)


@dataclass(frozen=True, eq=False)
class Workshop:
    """What is needed to do as the clients do: the model's code, their training, their defenses, samples like theirs."""

    model: nn.Module  # scratch space
    training: LocalTraining
    auxiliary: Examples
    defenses: tuple[Defense, ...] = ()
    device: str = CPU  # where make-believe clients train; what they send comes back to the CPU

    def send(self, start: Tensors, rows: Tensor, names: Sequence[str], rng: torch.Generator) -> Tensors:
        """What make-believe clients with auxiliary samples `rows` (clients, n) send after starting from `start`.

        Of each tensor in `names` the change, or the gradient under FedSGD: (clients, ...).
        """
        there, start = self._there, moved(start, self.device)
        groups = [there._sent(start, part, names, rng) for part in torch.split(rows, self._group())]
        return {name: torch.cat([group[name] for group in groups]).to(CPU) for name in names}

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
        there = self._there
        change = moved(train(there.model, moved(start, self.device), there.auxiliary, plain, _seeded(rng)), CPU)
        return {name: tensor + change[name] if name in change else tensor for name, tensor in start.items()}

    @cached_property
    def _there(self) -> Workshop:
        """The same with model and samples on the device."""
        if self.device == CPU:
            return self
        model, auxiliary = copy.deepcopy(self.model).to(self.device), self.auxiliary.to(self.device)
        return replace(self, model=model, auxiliary=auxiliary, device=CPU)  # there already: nothing more is moved

    @cached_property
    def is_stacked(self) -> bool:
        """Whether clients are trained together, and not one by one."""
        there = self._there
        start = {name: tensor.clone() for name, tensor in state_of(there.model).items()}
        return stacks(there.model, start, there.auxiliary, self.training)

    def _group(self) -> int:
        numbers = sum(p.numel() for p in self.model.parameters())
        if isinstance(self.training, GuardedTraining) and self.training.clip is not None:
            numbers *= self.training.batch_size  # every sample has a gradient of its own
        most = GROUP_NUMBERS if self.device == CPU else GPU_HOLDS_MORE * GROUP_NUMBERS
        return max(1, min(GROUP, most // numbers))

    def _sent(self, start: Tensors, rows: Tensor, names: Sequence[str], rng: torch.Generator) -> Tensors:
        if len(rows) > 1 and self.is_stacked:
            apart = all(defense.takes_tensors_apart for defense in self.defenses)
            wanted = names if apart else [name for name, tensor in start.items() if tensor.is_floating_point()]
            if not any(_changes_data(defense) for defense in self.defenses):
                together = train_stack(self.model, start, self.auxiliary, list(rows), self.training, wanted, rng)
            else:
                together = self._together(start, [self._examples(own, rng) for own in rows], wanted, rng)
            if not self.defenses:
                return together
            each = [{name: tensor[index] for name, tensor in together.items()} for index in range(len(rows))]
        else:
            each = [train(self.model, start, self._examples(own, rng), self.training, _seeded(rng)) for own in rows]
        sent = [self._defended(change, rows.shape[1], rng) for change in each]
        return {name: torch.stack([one[name] for one in sent]) for name in names}

    def _examples(self, own: Tensor, rng: torch.Generator) -> Examples:
        """What a client with auxiliary samples `own` trains on: a defense may have changed its data."""
        examples = self.auxiliary.take(own)
        for defense in self.defenses:
            examples = defense.data(examples, self.auxiliary, _seeded(rng))
        return examples

    def _together(
        self, start: Tensors, clients: Sequence[Examples], names: Sequence[str], rng: torch.Generator
    ) -> Tensors:
        """Clients with data of their own, as many at once as take equally many steps."""
        joined = Examples.join(clients)
        rows = torch.split(torch.arange(len(joined)), [len(own) for own in clients])
        steps = [self.training.schedule(len(own)).steps for own in clients]
        changes = {name: start[name].new_zeros(len(clients), *start[name].shape) for name in names}
        for count in sorted(set(steps)):
            where = [index for index, own in enumerate(steps) if own == count]
            part = [rows[index] for index in where]
            for name, change in train_stack(self.model, start, joined, part, self.training, names, rng).items():
                changes[name][where] = change
        return changes

    def _defended(self, change: Tensors, samples: int, rng: torch.Generator) -> Tensors:
        kind: Kind = "gradient" if self.training.algorithm == "fedsgd" else "update"
        message = Message(0, client(0), SERVER, kind, change, {"examples": samples})
        for defense in self.defenses:
            message = defense.outgoing(message, _seeded(rng))
        return dict(message.tensors)


def _changes_data(defense: Defense) -> bool:
    return type(defense).data is not Defense.data


def _seeded(rng: torch.Generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(torch.randint(1 << 62, (1,), generator=rng)))


def stacks(model: nn.Module, start: Tensors, auxiliary: Examples, training: LocalTraining) -> bool:
    """Whether many clients can be trained as one model with a leading dimension."""
    guarded = isinstance(training, GuardedTraining) and training.can_be_stacked
    if type(training) is not LocalTraining and not guarded:
        return False
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return False
    try:
        rows = [torch.arange(2).remainder(len(auxiliary))] * 2
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
    rows: Sequence[Tensor],
    training: LocalTraining,
    names: Iterable[str],
    rng: torch.Generator,
) -> Tensors:
    """The change (clients, ...) of each tensor in `names`, each client with the auxiliary samples of its `rows`.

    All of them must take equally many steps.

    Under FedSGD it is the gradient of one step instead, which is what such clients send.
    Batch norm takes each client's batch in training mode; its running statistics are nobody's feature and stay.
    """
    clients = len(rows)
    net = copy.deepcopy(model).train()
    if training.batch_norm == "eval":
        freeze_batch_norm(net)
    else:
        replace_all_batch_norm_modules_(net)
    learns = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    fixed = {name: start[name] for name in held if name in start and name not in learns}
    stacked = {name: start[name].expand(clients, *start[name].shape).clone().requires_grad_() for name in learns}
    optimizer = training.optimizer_for(stacked.values())
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        seed_dropout(int(torch.randint(1 << 62, (1,), generator=rng)), auxiliary.x.device)
        for step in _steps(rows, training, rng):
            gradients = _gradients(net, fixed, stacked, auxiliary, step, training, rng)
            if training.algorithm == "fedsgd":
                sent = {name: gradient for name, gradient in gradients.items() if gradient is not None}
                return {
                    name: sent[name] if name in sent else start[name].new_zeros(clients, *start[name].shape)
                    for name in names
                }
            for name, parameter in stacked.items():
                parameter.grad = gradients[name]
            optimizer.step()
    zeros = {name: start[name].new_zeros(clients, *start[name].shape) for name in names if name not in stacked}
    return {name: stacked[name].detach() - start[name] if name in stacked else zeros[name] for name in names}


@dataclass(frozen=True, eq=False)
class _Step:
    """One local step of all clients."""

    rows: Tensor  # (clients, b) auxiliary samples; where clients take fewer than b, the rest is filled up with others
    present: Tensor  # (clients, b) which of them are really taken


def _steps(rows: Sequence[Tensor], training: LocalTraining, rng: torch.Generator) -> Iterator[_Step]:
    """The local steps, each client's samples in an order of its own."""
    orders = [[own[batch] for batch in training.batches(len(own), rng)] for own in rows]
    for step in zip(*orders, strict=True):
        taken = nn.utils.rnn.pad_sequence(list(step), batch_first=True)
        sizes = torch.tensor([len(one) for one in step])
        yield _Step(taken, torch.arange(taken.shape[1]) < sizes[:, None])


def _gradients(
    net: nn.Module,
    fixed: Tensors,
    stacked: Tensors,
    auxiliary: Examples,
    step: _Step,
    training: LocalTraining,
    rng: torch.Generator,
) -> dict[str, Tensor | None]:
    """(clients, ...) what the optimizer of each client gets."""
    rules = training if isinstance(training, GuardedTraining) else None
    chosen = step.rows.to(auxiliary.x.device)
    x, y = auxiliary.x[chosen], auxiliary.y[chosen]
    sizes = [rules.size_of(taken) if rules else taken for taken in step.present.sum(1).tolist()]
    weights = step.present / torch.tensor(sizes)[:, None]
    blend = rules.blend(len(chosen), chosen.shape[1], rng) if rules else None
    if rules and rules.clip is not None:
        found = _clipped(net, fixed, stacked, x, y, weights, rules, rules.clip)
    else:
        forward = row_by_row(lambda state, x: functional_call(net, {**fixed, **state}, (x,)), in_dims=(0, 0))
        x = rules.inputs(x, rng) if rules else x
        logits = forward(stacked, x if blend is None else blend.of(x))
        losses = step_losses(logits, y, rules, blend) if rules else _losses(logits.flatten(0, 1), y.flatten())
        loss = losses.flatten() @ weights.flatten().to(losses)
        gradients = torch.autograd.grad(loss, list(stacked.values()), allow_unused=True)
        found = dict(zip(stacked, gradients, strict=True))
    if rules and rules.changes_gradients:
        known = {name: gradient for name, gradient in found.items() if gradient is not None}
        each = [
            rules.changed({name: gradient[index] for name, gradient in known.items()}, size, rng)
            for index, size in enumerate(sizes)
        ]
        found |= {name: torch.stack([one[name] for one in each]) for name in known}
    return found


def _clipped(
    net: nn.Module,
    fixed: Tensors,
    stacked: Tensors,
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    rules: GuardedTraining,
    limit: float,
) -> dict[str, Tensor | None]:
    """The samples' gradients of each client, each clipped to norm `limit`, summed with `weights` (clients, b)."""

    def loss(state: Tensors, one: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(net, {**fixed, **state}, (one[None],))
        return step_losses(logits[None], label[None, None], rules, None).sum()

    of_samples = row_by_row(grad(loss), in_dims=(None, 0, 0))
    state = {name: tensor.detach() for name, tensor in stacked.items()}
    each = row_by_row(of_samples, in_dims=(0, 0, 0))(state, x, y)
    norms = sum(part.flatten(2).square().sum(2) for part in each.values()).sqrt()
    scales = weights.to(norms) * (limit / norms.clamp_min(1e-12)).clamp_max(1)
    return {name: torch.einsum("cn,cn...->c...", scales, part) for name, part in each.items()}


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(samples,) of logits (samples, outputs) and labels (samples,)."""
    if is_single(logits):
        return nn.functional.binary_cross_entropy_with_logits(
            logits.flatten(), labels.to(logits.dtype), reduction="none"
        )
    return nn.functional.cross_entropy(logits, labels, reduction="none")
