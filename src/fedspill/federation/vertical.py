"""Vertical federation: parties hold different features of the same samples (paper 001, CAFE, section 3.1).

Each round the server names the samples, the parties run their towers, what the towers put out meets in the head, and
every party uploads the mean gradient of its own tower. Whoever holds the labels runs the head: the server, or a party
without features, whose upload is the head's gradient. Models stand still, or every party's upload moves them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.errors import UsageError
from fedspill.federation.batches import Batching, plan_batches
from fedspill.federation.guarded import GuardedTraining
from fedspill.federation.horizontal import RoundResult
from fedspill.federation.local import state_of
from fedspill.federation.update_checks import envelope_fault, is_recordable, update_fault
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.models.vertical import VerticalNet, owner, vertical_net
from fedspill.seeds import generator
from fedspill.trace import Event, NoRecorder, Origin, Recorder
from fedspill.training import LocalTraining, Tensors, loss_of, trained


@dataclass(frozen=True)
class VerticalSettings:
    """The protocol of a vertical federation; optimizer, learning rate and batch size are those of `training`."""

    rounds: int = 60
    batches: Batching = "random"
    static: bool = False  # whether the model is never updated: the easiest case for an attack, and the paper's main one
    labels: Literal["server", "party"] = "server"
    embeddings: bool = False  # whether what the towers put out passes through the server
    training: LocalTraining = field(default_factory=lambda: LocalTraining(batch_size=40))
    defenses: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, got {self.rounds}.")


def party(index: int) -> str:
    """The address of party `index`; the one behind the last tower holds the labels."""
    return f"party:{index}"


@dataclass(eq=False)
class Vertical:
    """A federation that runs: `federation.run()`; the joint model is `federation.model`."""

    model: nn.Module
    examples: Examples  # whole samples; each tower gets its party's part
    settings: VerticalSettings
    seed: int
    recorder: Recorder = field(default_factory=NoRecorder)
    device: str = "cpu"
    # The indices of each round instead of those that the settings name, for a server that plans by hand.
    batches: Sequence[Tensor] = ()
    # Changes what a party sends, to try faulty and malicious parties; None in an honest federation.
    tamper: Callable[[int, Message], Message] | None = None

    def __post_init__(self) -> None:
        self.model = self._net = vertical_net(copy.deepcopy(self.model).to(self.device))
        self.examples = self.examples.to(self.device)
        self._training = self.settings.training
        for defense in self.settings.defenses:
            self._training = defense.local(self._training)
        self.batches = self.batches or plan_batches(
            self.settings.batches,
            len(self.examples),
            self._training.batch_size,
            self.settings.rounds,
            generator(self.seed, "batches"),
        )
        for number, batch in enumerate(self.batches):
            refuse_batch(number, batch, len(self.examples))
        self._optimizer = self._training.optimizer_for(self._net.parameters())
        self._used = torch.zeros(len(self.examples), dtype=torch.bool)

    @property
    def net(self) -> VerticalNet:
        return self._net

    def run(self) -> list[RoundResult]:
        """All rounds; the recording is finished after the last."""
        rounds = [self.round(number) for number in range(len(self.batches))]
        self.recorder.finish()
        return rounds

    def close(self) -> None:
        """Nothing is held beyond memory."""

    def round(self, number: int) -> RoundResult:
        """One round: send the model where it is new and the indices, collect gradients, step."""
        if number == 0 or not self.settings.static:
            state = {name: tensor.clone() for name, tensor in state_of(self._net).items()}
            self.recorder.say(Message(number, SERVER, EVERYONE, "model", state))
        batch = self.batches[number]
        self.recorder.say(Message(number, SERVER, EVERYONE, "batch", {"indices": batch}))
        events: list[Event] = []
        sound: dict[int, Message] = {}
        for message, expected in self._uploads(number, batch):
            index = int(message.sender.partition(":")[2])
            sent = self._outgoing(index, message)
            problem = envelope_fault(sent, message)
            if problem is None and is_recordable(sent.tensors):
                self.recorder.say(sent)
            problem = problem or update_fault(sent.tensors, expected)
            if problem is None:
                sound[index] = sent
            else:
                events.append(Event(number, party(index), f"left out: its gradient {problem}"))
        if not self.settings.static:
            self._step(sound)
        self._note_truth(number, batch)
        for event in events:
            self.recorder.note_event(event)
        self.recorder.end_round(number)
        return RoundResult(number, tuple(sorted(sound)), tuple(events))

    def _uploads(self, number: int, batch: Tensor) -> Iterator[tuple[Message, Tensors]]:
        """Each party's honest gradient, and what a sound one looks like."""
        net = self._net
        net.train()
        own = self.examples.take(batch.to(self.examples.y.device))
        outputs = [tower(part) for tower, part in zip(net.towers, net.parts.split(own.x), strict=True)]
        info = {"examples": len(batch)}
        if self.settings.embeddings:
            for index, output in enumerate(outputs):
                self.recorder.say(Message(number, party(index), SERVER, "embedding", {"output": output.detach()}, info))
        if isinstance(self._training, GuardedTraining):
            gradients = self._defended_gradients(self._training, own, generator(self.seed, "steps", number))
        else:
            names, parameters = zip(*trained(net).items(), strict=True)
            loss = loss_of(net.top(outputs), own.y)
            gradients = dict(zip(names, torch.autograd.grad(loss, parameters, materialize_grads=True), strict=True))
        self._head = {name: gradient for name, gradient in gradients.items() if owner(name) is None}
        holders: dict[int, Tensors] = {index: {} for index in range(net.parties)}
        if self.settings.labels == "party":
            holders[net.parties] = self._head
        for name, gradient in gradients.items():
            holder = owner(name)
            if holder is not None:
                holders[holder][name] = gradient
        for index, tensors in holders.items():
            yield Message(number, party(index), SERVER, "gradient", tensors, info), tensors

    def _defended_gradients(self, training: GuardedTraining, batch: Examples, rng: torch.Generator) -> Tensors:
        """The gradients of a step that defenses change; every party clips what a sample does to its own tower."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.initial_seed())  # dropout draws from it
            return training.gradient_by(self._net, batch, rng, owner)

    def _outgoing(self, index: int, message: Message) -> Message:
        for defense in self.settings.defenses:
            # Defenses work on the CPU, where their generators are.
            message = replace(message, tensors={name: tensor.cpu() for name, tensor in message.tensors.items()})
            message = defense.outgoing(message, generator(self.seed, defense.name, message.round, index))
        return self.tamper(index, message) if self.tamper else message

    def _step(self, sound: dict[int, Message]) -> None:
        """Moves the model by the gradients that arrived; the tower of a party whose gradient was left out stays."""
        arrived = dict(self._head) if self.settings.labels == "server" else {}
        for message in sound.values():
            arrived |= message.tensors
        for name, parameter in trained(self._net).items():
            parameter.grad = arrived[name].to(parameter) if name in arrived else None
        self._optimizer.step()

    def _note_truth(self, number: int, batch: Tensor) -> None:
        """A sample belongs to the first round that used it: its origin is what the server asked for in that round."""
        new = torch.unique(batch[~self._used[batch]])
        self._used[new] = True
        if len(new):
            places = torch.stack(
                [torch.zeros_like(new), new], 1
            )  # client 0 stands for the one set of samples that all parties hold parts of
            self.recorder.note_truth(Origin(number, SERVER), "used_samples", places)


def refuse_batch(number: int, batch: Tensor, samples: int) -> None:
    """A batch is a set of samples that exist."""
    if batch.ndim != 1 or batch.dtype != torch.int64 or len(batch) == 0:
        raise UsageError(f"Round {number}: expected a list of whole sample indices, got shape {tuple(batch.shape)}.")
    if int(batch.min()) < 0 or int(batch.max()) >= samples:
        raise UsageError(f"Round {number} asks for samples {int(batch.min())} to {int(batch.max())} of {samples}.")
    repeated = len(batch) - len(torch.unique(batch))
    if repeated:
        raise UsageError(
            f"Round {number} asks for a sample more than once: {repeated} indices repeat.",
            remedy="A batch is drawn without replacement.",
        )
