"""A vertical federation as it is deployed: towers and head stay with their owners, embeddings go up, gradients back.

The server is the active party: it holds the labels and the head. Of two or more towers the last is its own, so that a
bank with labels and a shop are two towers. One tower and a server is split learning. After training, the joint model is
asked about samples, and stands still meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.errors import NotApplicable, UsageError
from fedspill.federation.batches import Batching, plan_batches
from fedspill.federation.hijack import Hijack, embedding_kind
from fedspill.federation.horizontal import RoundResult
from fedspill.federation.malicious_step import MaliciousStep
from fedspill.federation.vertical import party, refuse_batch
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Kind, Message
from fedspill.models.vertical import VerticalNet, owner, vertical_net
from fedspill.seeds import generator
from fedspill.trace import NoRecorder, Origin, Recorder
from fedspill.training import LocalTraining, loss_of, trained


@dataclass(frozen=True)
class PrivateTowerSettings:
    """The protocol; batch size, and the optimizer of whoever has none of its own, are those of `training`."""

    rounds: int = 60
    batches: Batching = "epochs"
    training: LocalTraining = field(default_factory=lambda: LocalTraining(batch_size=32))
    optimizers: tuple[LocalTraining, ...] = ()  # of each party, then of the head; none: all as `training` says
    predictions: int = 0  # samples that the joint model is asked about after training
    # Whether embeddings meet in a protocol that shows nobody any of them. A party then gets the gradient of its weights
    # and nothing that is of one sample.
    secure_sum: bool = False
    hand_over: bool = False  # whether the parties give their trained towers to the active party, which serves the model
    defenses: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.predictions < 0:
            raise UsageError(f"Expected rounds from 1 and predictions from 0, got {self.rounds}, {self.predictions}.")
        for defense in self.defenses:
            kind = type(defense)
            if kind.local is not Defense.local or kind.data is not Defense.data or kind.sums_only:
                raise UsageError(
                    f"{defense.name} changes how clients train or sum; parties with towers of their own do neither.",
                    remedy="Use a defense of embeddings or of returned gradients: docs/vertical.md lists them.",
                )


@dataclass(eq=False)
class PrivateTowers:
    """A federation that runs: `federation.run()`; what it serves afterwards is `federation.model`."""

    net: nn.Module
    examples: Examples  # whole samples; each tower gets its party's part
    settings: PrivateTowerSettings
    seed: int
    recorder: Recorder = field(default_factory=NoRecorder)
    device: str = "cpu"
    malicious: bool = False  # whether party 0 trains so as to be relied on
    hijacked_with: Tensor | None = (
        None  # inputs of a server that sends party 0 gradients of its own making; None: honest
    )

    def __post_init__(self) -> None:
        self._net = vertical_net(copy.deepcopy(self.net).to(self.device))
        self.examples = self.examples.to(self.device)
        settings, training = self.settings, self.settings.training
        if settings.optimizers and len(settings.optimizers) != self._net.parties + 1:
            raise UsageError(
                f"Expected optimizers for none, or for {self._net.parties} parties and the head, "
                f"got {len(settings.optimizers)}."
            )
        self._labels = self.examples.y
        for defense in settings.defenses:
            drawn = defense.labels(self._labels.cpu(), self._net.head.out_features, generator(self.seed, defense.name))
            self._labels = drawn.to(self.device)
        self.batches = plan_batches(
            settings.batches, len(self.examples), training.batch_size, settings.rounds, generator(self.seed, "batches")
        )
        for number, batch in enumerate(self.batches):
            refuse_batch(number, batch, len(self.examples))
        if settings.predictions > len(self.examples):
            raise UsageError(f"{settings.predictions} predictions were asked for, there are {len(self.examples)} rows.")
        self._make_optimizers()
        self.model = ServedModel(self._net, settings.defenses, foreign_towers(self._net.parties), self.seed)

    def _make_optimizers(self) -> None:
        parties, chosen = self._net.parties, self.settings.optimizers
        self._parameters: dict[int, list[nn.Parameter]] = {holder: [] for holder in range(parties + 1)}
        for name, parameter in trained(self._net).items():
            holder = owner(name)
            self._parameters[parties if holder is None else holder].append(parameter)
        self._optimizers = {
            holder: (chosen[holder] if chosen else self.settings.training).optimizer_for(parameters)
            for holder, parameters in self._parameters.items()
            if parameters  # a head that only adds up has none
        }
        self._hurried = MaliciousStep(self._parameters[0]) if self.malicious else None
        self.hijack: Hijack | None = None
        if self.hijacked_with is not None:
            if parties > 1:
                raise NotApplicable("A server hijacks the one client of split learning; here are several parties.")
            inputs, rounds = self.hijacked_with.to(self.device), self.settings.rounds
            self.hijack = Hijack(embedding_kind(self._net), inputs, rounds, generator(self.seed, "hijack"))

    def run(self) -> list[RoundResult]:
        """All rounds, and the predictions after them; the recording is finished after the last."""
        rounds = [self.round(number) for number in range(len(self.batches))]
        asked = torch.split(torch.arange(self.settings.predictions), self.settings.training.batch_size)
        last = len(self.batches) if self.settings.predictions else len(self.batches) - 1
        self._say_models(last)
        for place, batch in enumerate(asked if self.settings.predictions else ()):
            rounds.append(self._predict(len(self.batches) + place, batch))
        if not self.settings.predictions:
            self.recorder.end_round(last)
        self.recorder.finish()
        return rounds

    def close(self) -> None:
        """Nothing is held beyond memory."""

    def round(self, number: int) -> RoundResult:
        """One round: the server names the samples, embeddings go up, gradients come back, everybody steps."""
        batch = self.batches[number]
        self.recorder.say(Message(number, SERVER, EVERYONE, "batch", {"indices": batch}))
        own = self.examples.take(batch.to(self.examples.y.device))
        labels = self._labels[batch.to(self._labels.device)]
        net = self._net
        net.train()
        outputs = [tower(part) for tower, part in zip(net.towers, net.parts.split(own.x), strict=True)]
        received = [part.requires_grad_() for part in self._embeddings(number, outputs)]
        head = self._parameters[net.parties]
        loss = loss_of(net.top(received), labels)
        gradients = torch.autograd.grad(loss, [*received, *head], materialize_grads=True)
        own_making = gradients[: net.parties] if self.hijack is None else [self.hijack.gradient(received[0])]
        returned = self._returned(number, own_making, labels)
        for parameter, gradient in zip(head, gradients[net.parties :], strict=True):
            parameter.grad = gradient
        for index, (output, back) in enumerate(zip(outputs, returned, strict=True)):
            parameters = self._parameters[index]
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(output, parameters, back, materialize_grads=True), strict=True
            ):
                parameter.grad = gradient
        for holder, optimizer in self._optimizers.items():
            if holder == 0 and self._hurried is not None:
                self._hurried.step(optimizer)
            else:
                optimizer.step()
        self._note_truth(number, batch)
        if number < len(self.batches) - 1 or self.settings.predictions:
            self.recorder.end_round(number)  # the last one may still hold the models that everybody ends up with
        return RoundResult(number, tuple(range(net.parties)), ())

    def _predict(self, number: int, batch: Tensor) -> RoundResult:
        """The joint model, which stands still now, is asked about samples; everybody learns which."""
        self.recorder.say(Message(number, SERVER, EVERYONE, "batch", {"indices": batch}))
        self._net.eval()
        with torch.no_grad():
            parts = self._net.parts.split(self.examples.x[batch.to(self.examples.x.device)])
            received = self._embeddings(number, [t(part) for t, part in zip(self._net.towers, parts, strict=True)])
            said = self._net.top(received).softmax(1)
        message = Message(number, AGGREGATOR, SERVER, "prediction", {"probabilities": said}, {"examples": len(batch)})
        self.recorder.say(through(message, self.settings.defenses, self.seed, 0))
        self._note_truth(number, batch)
        self.recorder.end_round(number)
        return RoundResult(number, tuple(range(self._net.parties)), ())

    def _embeddings(self, number: int, outputs: Sequence[Tensor]) -> list[Tensor]:
        """What the head is given: the outputs of others as they were sent, and its owner's as they are."""
        received, foreign = [], foreign_towers(self._net.parties)
        receiver = AGGREGATOR if self.settings.secure_sum else SERVER
        for index, output in enumerate(outputs):
            if index not in foreign:
                received.append(output.detach().clone())
                continue
            info = {"examples": len(output)}
            message = Message(number, party(index), receiver, "embedding", {"output": output.detach()}, info)
            sent = through(message, () if self.settings.secure_sum else self.settings.defenses, self.seed, index)
            if not self.settings.secure_sum:
                self.recorder.say(sent)
            received.append(sent.tensors["output"].detach().clone().to(output))
        return received

    def _returned(self, number: int, gradients: Sequence[Tensor], labels: Tensor) -> list[Tensor]:
        """What each party backpropagates."""
        found = list(gradients)
        if self.settings.secure_sum:
            return found
        for index in foreign_towers(self._net.parties):
            info = {"examples": len(labels)}
            message = Message(number, SERVER, party(index), "returned", {"gradient": gradients[index]}, info)
            for defense in self.settings.defenses:
                rng = generator(self.seed, defense.name, "returned", number, index)
                message = defense.returned(_on_cpu(message), labels.cpu(), rng)
            self.recorder.say(message)
            found[index] = message.tensors["gradient"].to(gradients[index])
        return found

    def _say_models(self, number: int) -> None:
        """What everybody ends up with: the head stays with the server, a tower with its party, or is handed over."""
        state = {name: tensor.detach().clone() for name, tensor in self._net.state_dict().items()}
        head = {name: tensor for name, tensor in state.items() if owner(name) is None}
        made = {} if self.hijack is None else self.hijack.state()
        self.recorder.say(Message(number, SERVER, SERVER, "model", {**head, **made}))
        foreign = foreign_towers(self._net.parties)
        for index in range(self._net.parties):
            tower = {name: tensor for name, tensor in state.items() if owner(name) == index}
            if index not in foreign:
                self.recorder.say(Message(number, SERVER, SERVER, "model", tower))
                continue
            self.recorder.say(Message(number, party(index), party(index), "model", tower))
            if self.settings.hand_over:
                self.recorder.say(Message(number, party(index), SERVER, "model", tower))

    def _note_truth(self, number: int, samples: Tensor) -> None:
        """The samples of a round, in the order of the batch; client 0 is the one set that all parties hold parts of."""
        places = torch.stack([torch.zeros_like(samples), samples], 1)
        self.recorder.note_truth(Origin(number, SERVER), "used_samples", places)


class ServedModel(nn.Module):
    """The joint model as it is served: what the defenses do to embeddings is done here too."""

    def __init__(self, net: VerticalNet, defenses: Sequence[Defense], foreign: range, seed: int) -> None:
        super().__init__()
        self.net, self._defenses, self._foreign, self._seed = net, tuple(defenses), foreign, seed
        self._asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self._asked += 1  # other noise for every batch
        outputs: list[Tensor] = []
        for index, (tower, part) in enumerate(zip(self.net.towers, self.net.parts.split(x), strict=True)):
            output: Tensor = tower(part)
            if index in self._foreign:
                message = Message(-self._asked, party(index), SERVER, "embedding", {"output": output.detach()})
                output = through(message, self._defenses, self._seed, index).tensors["output"].to(output)
            outputs.append(output)
        return self.net.top(outputs)


def foreign_towers(parties: int) -> range:
    """The parties that the active party is not: all but the last, or the only one."""
    return range(max(parties - 1, 1))


def through(message: Message, defenses: Sequence[Defense], seed: int, index: int) -> Message:
    """The message behind all defenses, which work on the CPU, where their generators are."""
    kind: Kind = message.kind
    for defense in defenses:
        rng = generator(seed, defense.name, kind, abs(message.round), int(message.round < 0), index)
        message = defense.outgoing(_on_cpu(message), rng)
    return message


def _on_cpu(message: Message) -> Message:
    return replace(message, tensors={name: tensor.detach().cpu() for name, tensor in message.tensors.items()})
