"""Horizontal federation: clients hold different samples of the same features; FedAvg and FedSGD."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import ClientContext, Defense
from fedspill.errors import UnknownName, UsageError
from fedspill.federation.local import load, state_of
from fedspill.federation.trainers import Engine, InProcess, InWorkers, Trainer, training_rng
from fedspill.federation.update_checks import envelope_fault, is_recordable, update_faults
from fedspill.federation.weighted_sum import RunningMean
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message, client
from fedspill.placement import CPU, in_one_piece
from fedspill.seeds import generator
from fedspill.tensor_file import is_large
from fedspill.trace import Event, NoRecorder, Origin, Recorder
from fedspill.training import LocalTraining, Tensors, trained

Weighting: TypeAlias = Literal["examples", "uniform"]
_MOST_AT_ONCE, _BYTES_AT_ONCE = 32, 256 << 20  # updates on a GPU that wait to be looked at (conventions)


@dataclass(frozen=True)
class Settings:
    """The protocol of a horizontal federation."""

    rounds: int = 5
    clients_per_round: int | None = None  # None: all
    weighting: Weighting = "examples"
    drop_out: float = 0.0  # chance that a selected client does not answer
    server_lr: float = 1.0
    secure_aggregation: bool = False
    training: LocalTraining = field(default_factory=LocalTraining)
    defenses: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds < 1 or (self.clients_per_round is not None and self.clients_per_round < 1):
            raise UsageError("rounds and clients_per_round must be at least 1.")
        if not 0 <= self.drop_out < 1:
            raise UsageError(f"drop_out is a chance in [0, 1), got {self.drop_out}.")
        if not (self.server_lr > 0 and math.isfinite(self.server_lr)):
            raise UsageError(f"server_lr must be positive, got {self.server_lr}.")
        if self.weighting not in get_args(Weighting):
            raise UnknownName("weighting", str(self.weighting), get_args(Weighting))
        if any(defense.sums_only for defense in self.defenses):
            object.__setattr__(self, "secure_aggregation", True)


def select(settings: Settings, clients: int, seed: int, number: int) -> tuple[list[int], list[int]]:
    """The clients of a round: those that will answer, and those that were selected but will not."""
    rng = generator(seed, "selection", number)
    wanted = settings.clients_per_round or clients
    chosen = torch.randperm(clients, generator=rng)[:wanted].sort().values
    silent = torch.rand(wanted, generator=rng) < settings.drop_out
    return chosen[~silent].tolist(), chosen[silent].tolist()


@dataclass(frozen=True)
class RoundResult:
    """Who was in the sum of a round, and what went wrong."""

    number: int
    clients: tuple[int, ...]  # in the sum
    events: tuple[Event, ...]


@dataclass(eq=False)
class Horizontal:
    """A federation that runs: `for done in federation.run(): ...`; the global model is `federation.model`."""

    model: nn.Module
    clients: Sequence[Examples]
    settings: Settings
    seed: int
    classes: int
    recorder: Recorder = field(default_factory=NoRecorder)
    device: str = "cpu"
    workers: int = 1
    engine: Engine = "auto"
    public: Examples | None = None  # samples that everybody has, for defenses that mix them in
    # Changes what a client sends, to try faulty and malicious clients; None in an honest federation.
    tamper: Callable[[int, Message], Message] | None = None
    # What a malicious server hands out instead of its model. After the round it goes on from its own model.
    plant: Callable[[Message], Message] | None = None
    # Whether it is asked for each client's model by itself, addressed to that client.
    plant_for_each: bool = False

    def __post_init__(self) -> None:
        wanted = self.settings.clients_per_round
        if not self.clients:
            raise UsageError("A federation needs at least one client.")
        if wanted is not None and wanted > len(self.clients):
            raise UsageError(f"{wanted} clients per round were asked for, there are {len(self.clients)}.")
        if self.workers > 1 and self.device != "cpu":
            raise UsageError(f"Worker processes train on the CPU, not on {self.device}.", remedy="Use one worker.")
        self.model = copy.deepcopy(self.model).to(self.device)
        self.clients = [examples.to(self.device) for examples in self.clients]
        self._training = self.settings.training
        # Each client's own samples; a defense may append others.
        self._own_samples = [len(examples) for examples in self.clients]
        for defense in self.settings.defenses:
            self._training = defense.local(self._training)
            self.clients = [self._with_data(defense, index, own) for index, own in enumerate(self.clients)]
        self._trainer = self._make_trainer()
        # Facts are counted on the CPU: labels that lie on a GPU would be waited for, client by client.
        self._facts_of = [examples if self.device == CPU else _labels_alone(examples) for examples in self.clients]
        self._looked_at_together = 1 if self.device == CPU else _at_once(self.model)
        self._accepted: dict[int, Message] = {}  # the model each client last trained on
        self._memories: dict[tuple[int, int], Mapping[str, Tensor]] = {}  # what each client's guards remember

    def run(self) -> list[RoundResult]:
        """All rounds; the recording is finished after the last, the workers are stopped in any case."""
        try:
            rounds = [self.round(number) for number in range(self.settings.rounds)]
            self.recorder.finish()  # only here: a recording that was cut short must not be marked as finished
            return rounds
        finally:
            self.close()

    def close(self) -> None:
        self._trainer.close()

    def round(self, number: int) -> RoundResult:
        """One round: send the model, train, collect, leave out faulty updates, add up, move the model."""
        start = {name: tensor.clone() for name, tensor in state_of(self.model).items()}
        own = Message(number, SERVER, EVERYONE, "model", start)
        selected, events = self._select(number)
        handed_out = self._hand_out(own, selected)
        expected = self._expected(start)
        replies: dict[int, int] = {}  # of whom, and how many examples it says that it has
        mean = RunningMean(sum(self._share(self._examples(index)) for index in selected))
        coming = self._replies(number, handed_out, selected, events)
        while group := list(islice(coming, self._looked_at_together)):
            honest = [self._honest_envelope(number, index) for index, _ in group]
            unbelieved = [envelope_fault(message, true) for (_, message), true in zip(group, honest, strict=True)]
            self._record([message for (_, message), why in zip(group, unbelieved, strict=True) if why is None])
            faults = update_faults([message.tensors for _, message in group], expected)
            for (index, message), *problems, true in zip(group, unbelieved, faults, honest, strict=True):
                problem = next(filter(None, problems), None)
                if problem is None:
                    replies[index] = int(message.info["examples"])
                    mean.add(message.tensors, self._share(replies[index]), self._share(self._examples(index)))
                else:
                    events.append(Event(number, client(index), f"left out: its {true.kind} {problem}"))
        self._step(number, mean, list(replies.values()), events)
        if any(model is not own for model in handed_out.values()):
            load(self.model, start)  # the updates are changes of the planted model, not of the server's own
        self._note_truth(number, selected, list(replies))
        for event in events:
            self.recorder.note_event(event)
        self.recorder.end_round(number)
        return RoundResult(number, tuple(replies), tuple(events))

    def _record(self, messages: Sequence[Message]) -> None:
        """What clients sent, as far as a recording can hold it; small messages are brought from a GPU in one piece."""
        sound = [message for message in messages if is_recordable(message.tensors)]
        small = not any(is_large(message.tensors) for message in sound)
        if len(sound) > 1 and small and not isinstance(self.recorder, NoRecorder):
            both = {
                f"{place}/{name}": tensor
                for place, message in enumerate(sound)
                for name, tensor in message.tensors.items()
            }
            here = in_one_piece(both, CPU)
            sound = [
                replace(message, tensors={name: here[f"{place}/{name}"] for name in message.tensors})
                for place, message in enumerate(sound)
            ]
        for message in sound:
            self.recorder.say(message)

    def _hand_out(self, own: Message, selected: Sequence[int]) -> dict[int, Message]:
        """The model that each client gets: one for all, unless a malicious server makes one for each."""
        if self.plant is not None and self.plant_for_each:
            made = {index: self.plant(replace(own, receiver=client(index))) for index in selected}
            if any(message.tensors is not own.tensors for message in made.values()):
                for message in made.values():
                    self.recorder.say(message)
                return made
        sent = own if self.plant is None or self.plant_for_each else self.plant(own)
        self.recorder.say(sent)
        return dict.fromkeys(selected, sent)

    def _with_data(self, defense: Defense, index: int, own: Examples) -> Examples:
        public = None if self.public is None else self.public.to(self.device)
        return defense.data(own, public, generator(self.seed, defense.name, "data", index))

    def _select(self, number: int) -> tuple[list[int], list[Event]]:
        """Who takes part, and who was selected but does not answer."""
        present, silent = select(self.settings, len(self.clients), self.seed, number)
        return present, [Event(number, client(index), "did not answer") for index in silent]

    def _replies(
        self, number: int, handed_out: Mapping[int, Message], selected: list[int], events: list[Event]
    ) -> Iterator[tuple[int, Message]]:
        """What each client sends after its guards, its training and its defenses, one after the other."""
        trained_on = handed_out if not self.settings.defenses else self._after_defenses(number, handed_out, events)
        together: dict[int, tuple[Message, list[int]]] = {}  # clients that train on the same model, by its identity
        for index in selected:
            if index in trained_on:
                model = trained_on[index]
                together.setdefault(id(model), (model, []))[1].append(index)
        for model, members in together.values():
            for index, tensors in self._trainer.train(dict(model.tensors), number, members):
                yield index, self._outgoing(number, index, tensors)

    def _after_defenses(
        self, number: int, handed_out: Mapping[int, Message], events: list[Event]
    ) -> dict[int, Message]:
        """The model that each client trains on after its defenses accepted or repaired it; none where one refused."""
        trained_on: dict[int, Message] = {}
        for index, sent in handed_out.items():
            model, refused = sent, False
            for place, defense in enumerate(self.settings.defenses):
                verdict = defense.incoming(model, self._accepted.get(index), self._site(index, place))
                if verdict.memory is not None:
                    self._memories[index, place] = verdict.memory
                if verdict.action == "accept":
                    continue
                what = f"{defense.name}: {verdict.action}, {verdict.why}"
                events.append(Event(number, client(index), what, defense.name, verdict.action))
                refused = refused or verdict.action == "refuse"
                model = verdict.model or model
            if not refused:
                self._accepted[index] = trained_on[index] = model
        return trained_on

    def _site(self, index: int, place: int) -> ClientContext:
        return ClientContext(
            self._memories.get((index, place), {}), lambda: copy.deepcopy(self.model), self.clients[index]
        )

    def _honest_envelope(self, number: int, index: int) -> Message:
        """An honest client's message, still without tensors."""
        kind: Literal["update", "gradient"] = "gradient" if self._training.algorithm == "fedsgd" else "update"
        receiver = AGGREGATOR if self.settings.secure_aggregation else SERVER
        return Message(number, client(index), receiver, kind, {}, {"examples": self._examples(index)})

    def _examples(self, index: int) -> int:
        """How many an honest client says that it trained on."""
        return self._training.schedule(self._own_samples[index]).samples

    def _share(self, examples: int) -> int:
        """What a client counts for in the sum."""
        return examples if self.settings.weighting == "examples" else 1

    def _outgoing(self, number: int, index: int, tensors: Tensors) -> Message:
        message = replace(self._honest_envelope(number, index), tensors=tensors)
        for defense in self.settings.defenses:
            message = defense.outgoing(message, generator(self.seed, defense.name, number, index))
        return self.tamper(index, message) if self.tamper else message

    def _expected(self, start: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Names and shapes of a sound update: every float tensor, or the trained parameters for a gradient."""
        if self._training.algorithm == "fedsgd":
            return dict(trained(self.model))
        return {name: tensor for name, tensor in start.items() if tensor.is_floating_point()}

    def _step(self, number: int, mean: RunningMean, examples: Sequence[int], events: list[Event]) -> None:
        if not examples:
            events.append(Event(number, SERVER, "no sound update arrived; the model stays as it is"))
            return
        total = mean.mean()
        gradients = self._training.algorithm == "fedsgd"
        self.recorder.say(
            Message(
                number,
                AGGREGATOR,
                SERVER,
                "aggregate",
                total,
                {"clients": len(examples), "examples": sum(examples), "of": "gradient" if gradients else "update"},
            )
        )
        rate = -self._training.lr * self.settings.server_lr if gradients else self.settings.server_lr
        state = state_of(self.model)
        moved = {name: state[name] + rate * tensor for name, tensor in total.items()}
        if bool(torch.stack([torch.isfinite(tensor).all() for tensor in moved.values()]).all()):
            load(self.model, {**state, **moved})
        else:
            events.append(Event(number, SERVER, "the sum of sound updates overflows; the model stays as it is"))

    def _note_truth(self, number: int, selected: Sequence[int], summed: Sequence[int]) -> None:
        if isinstance(self.recorder, NoRecorder):
            return
        facts = facts_of_round(
            number, self._facts_of, self._training, self.seed, self.classes, selected, summed, self._own_samples
        )
        for (origin, name), value in facts.items():
            self.recorder.note_truth(origin, name, value)

    def _make_trainer(self) -> Trainer:
        if self.workers > 1:
            return InWorkers(self.model, self.clients, self._training, self.seed, self.workers, self.engine)
        return InProcess(self.model, self.clients, self._training, self.seed, self.engine)


def _at_once(model: nn.Module) -> int:
    """How many updates on a GPU are looked at together: each look waits until the GPU is done with them."""
    return max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1, sum(p.nbytes for p in model.parameters()))))


def _labels_alone(examples: Examples) -> Examples:
    """On the CPU, without the inputs."""
    labels = examples.y.cpu()
    return Examples(labels.new_empty(len(labels), 0), labels)


def facts_of_round(
    number: int,
    clients: Sequence[Examples],
    training: LocalTraining,
    seed: int,
    classes: int,
    selected: Sequence[int],
    summed: Sequence[int],
    own: Sequence[int] | None = None,
) -> dict[tuple[Origin, str], Tensor]:
    """The labels and samples each client trained on, those behind the sum, whose they are, and all there are.

    own: how many samples of each client are its own, the first ones. Those that a defense appended are public.
    """
    facts: dict[tuple[Origin, str], Tensor] = {}
    trained_on: dict[int, Tensor] = {}
    for index in selected:
        labels = clients[index].y
        used = training.used(len(labels), training_rng(seed, number, index))
        used = used if own is None else used[used < own[index]]
        trained_on[index] = torch.bincount(labels[used], minlength=classes)
        facts[Origin(number, client(index)), "label_counts"] = trained_on[index]
        facts[Origin(number, client(index)), "used_samples"] = torch.stack([torch.full_like(used, index), used], 1)
    mine = [len(held) for held in clients] if own is None else own
    totals = torch.stack(
        [torch.bincount(c.y[:many], minlength=classes) for c, many in zip(clients, mine, strict=True)]
    ).sum(0)
    facts[Origin(number, SERVER), "label_totals"] = totals
    if summed:
        behind = torch.stack([trained_on[index] for index in summed])  # (clients in the sum, classes)
        facts[Origin(number, AGGREGATOR), "label_counts"] = behind.sum(0)
        facts[Origin(number, AGGREGATOR), "label_counts_by_client"] = behind
        facts[Origin(number, AGGREGATOR), "clients"] = torch.tensor(summed)
        places = [facts[Origin(number, client(index)), "used_samples"] for index in summed]
        facts[Origin(number, AGGREGATOR), "used_samples"] = torch.cat(places)
    return facts
