"""Twin: the recorded federation once more, with clients whose labels are known.

Same model, as it was handed out, same rounds, clients a round, samples, steps and learning rate; the samples are drawn
from proxy data. How unlike each other the clients are is not recorded: of a few Dirichlet mixes the one is taken whose
updates are as long, and agree with each other as much, as the recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fedspill.dataset import Dataset
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan
from fedspill.deployment.quantities import quantities_of
from fedspill.deployment.recorded_federation import RecordedFederation, recorded_federation
from fedspill.errors import NoTwin
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import load, state_of
from fedspill.messages import Message
from fedspill.partitions.shares import Shares
from fedspill.registry import make
from fedspill.seeds import generator, seed_of
from fedspill.trace import Event, MemoryTrace, Origin, Recorder, Trace

MIXES = (0.1, 0.2, 0.5, 1.0, 3.0, 100.0)  # concentrations of the Dirichlet law, from one class a client to all alike
USUAL = 0.5  # where only sums were recorded, and nothing shows how unlike clients are
TRIED_ROUNDS = 4  # of the federation, for each mix
LEAST_SAMPLES = 2  # of a class among the proxy data, one for the adversary and one for clients


@final
@dataclass(frozen=True, eq=False)
class Twin:
    """A recorded federation that can be run again with other data of the kind."""

    recorded: RecordedFederation
    plan: Plan
    dataset: Dataset
    architecture: Callable[[], nn.Module]
    protocol: Mapping[str, Any]
    mix: float = USUAL

    @staticmethod
    def of(trace: Trace, plan: Plan, data_dir: Path | None = None, dataset: Dataset | None = None) -> Twin:
        """Of the plan's data, or these; raises NoTwin with the reason where there can be none."""
        recorded = recorded_federation(trace)
        if dataset is None:
            dataset = make("datasets", plan.data.name, plan.data.options).load(data_dir)
        assert dataset is not None
        classes = trace.protocol.get("classes")
        if isinstance(classes, int) and classes != len(dataset.classes):
            raise NoTwin(f"The proxy data have {len(dataset.classes)} classes, the recorded model tells {classes}.")
        spec = make("models", plan.model.name, plan.model.options)
        architecture = partial(spec.build, dataset.shape, len(dataset.classes), seed=seed_of(plan.seed, "model"))
        _refuse_another_model(architecture(), recorded)
        twin = Twin(recorded, plan, dataset, architecture, dict(trace.protocol))
        if recorded.secure_aggregation:
            return twin
        tried = recorded.numbers[:TRIED_ROUNDS]
        wanted = quantities_of(trace, tried).numbers
        return min((replace(twin, mix=mix) for mix in MIXES), key=lambda one: one._distance(wanted, tried))

    @property
    def chains_rounds(self) -> bool:
        """Whether a round's model comes out of the round before: not where the server has an optimizer of its own."""
        return self.recorded.server is None or self.recorded.server.averages

    def run(self, recorder: Recorder, seed: int, most_rounds: int | None = None) -> Deployment:
        """Runs and records the twin of this seed; what adversaries know of it is in the deployment."""
        deployment = self.deployment(seed)
        for (origin, name), fact in deployment.asked_truth(0).items():
            recorder.note_truth(Origin(self.recorded.blocks[0][0], origin.sender), name, fact)
        left = most_rounds or self.recorded.rounds
        for first, length in self._blocks():
            if left > 0:
                settings = replace(deployment.settings, rounds=min(length, left))
                Horizontal(
                    self._model_of(first),
                    list(deployment.shares.clients),
                    settings,
                    seed=seed_of(seed, "block", first),
                    classes=len(self.dataset.classes),
                    recorder=_Later(recorder, first),
                    engine="auto",
                ).run()
                left -= length
        recorder.finish()
        return deployment

    def deployment(self, seed: int) -> Deployment:
        """Clients drawn anew; the plan's own shares of the data are not used."""
        recorded = self.recorded
        server = recorded.server
        settings = Settings(
            rounds=recorded.rounds,
            clients_per_round=min(recorded.per_round, len(recorded.samples)),
            weighting=recorded.weighting,
            server_lr=server.rate if server is not None and server.averages else 1.0,
            secure_aggregation=recorded.secure_aggregation,
            training=recorded.training,
            defenses=self.plan.settings().defenses,
        )
        plan = self.plan.model_copy(update={"seed": seed, "repeats": 1})
        return Deployment(plan, self.dataset, self._shares(seed), settings, self.architecture)

    def _blocks(self) -> list[tuple[int, int]]:
        if self.chains_rounds:
            return list(self.recorded.blocks)
        return [(number, 1) for number in self.recorded.numbers]

    def _model_of(self, number: int) -> nn.Module:
        model = self.architecture()
        handed_out = self.recorded.models[number]
        load(model, {name: handed_out.get(name, tensor) for name, tensor in state_of(model).items()})
        return model

    def _distance(self, wanted: Mapping[str, float], rounds: Sequence[int]) -> float:
        """How far the lengths and angles of this mix's updates are from the recorded ones."""
        heard = MemoryTrace(self.protocol)
        self.run(heard, seed_of(self.plan.seed, "mix"), len(rounds))
        own = quantities_of(heard, rounds).numbers
        return sum(abs(own[name] - wanted[name]) for name in wanted if name in own)

    def _shares(self, seed: int) -> Shares:
        """Each client has as many samples as recorded, of classes mixed by a Dirichlet law around the proxy data's own.

        Clients may hold the same proxy sample, and one may hold it twice where proxy data are few.
        """
        rng = generator(seed, "twin")
        train = self.dataset.train
        by_class = [(train.y == label).nonzero().flatten() for label in range(len(self.dataset.classes))]
        if min(map(len, by_class)) < LEAST_SAMPLES:
            raise NoTwin(f"The proxy data have fewer than {LEAST_SAMPLES} samples of some class.")
        by_class = [rows[torch.randperm(len(rows), generator=rng)] for rows in by_class]
        most = self.plan.adversary_data.per_class
        kept = [min(most, len(rows) // 2) for rows in by_class]
        aside = torch.cat([rows[:own] for rows, own in zip(by_class, kept, strict=True)])
        pools = [rows[own:] for rows, own in zip(by_class, kept, strict=True)]
        prior = torch.tensor([float(len(rows)) for rows in pools])
        indices = tuple(self._drawn(pools, prior / prior.sum(), samples, rng) for samples in self.recorded.samples)
        nothing = torch.zeros(0, dtype=torch.int64)
        return Shares(
            clients=tuple(train.take(rows) for rows in indices),
            auxiliary=train.take(aside),
            shadow=train.take(nothing),
            test=self.dataset.test,
            client_indices=indices,
            auxiliary_indices=aside,
            shadow_indices=nothing,
            source="train",
        )

    def _drawn(self, pools: list[Tensor], prior: Tensor, samples: int, rng: torch.Generator) -> Tensor:
        weight = torch._standard_gamma(self.mix * len(prior) * prior, generator=rng).clamp_min(1e-12)
        labels = torch.multinomial(weight / weight.sum(), samples, replacement=True, generator=rng)
        rows = []
        for label, many in enumerate(torch.bincount(labels, minlength=len(prior)).tolist()):
            pool = pools[label]
            rounds = [torch.randperm(len(pool), generator=rng) for _ in range(math.ceil(many / len(pool)))]
            rows.append(pool[torch.cat(rounds)[:many]] if rounds else pool[:0])
        drawn = torch.cat(rows)
        return drawn[torch.randperm(len(drawn), generator=rng)]


def _refuse_another_model(model: nn.Module, recorded: RecordedFederation) -> None:
    """A model of other tensors is another model; of equal ones the likeness test must tell."""
    handed_out = next(iter(recorded.models.values()))
    for name, parameter in model.named_parameters():
        if name not in handed_out:
            raise NoTwin(f"The plan's model has a tensor {name!r}, and no such tensor was recorded.")
        if handed_out[name].shape != parameter.shape:
            said, seen = tuple(parameter.shape), tuple(handed_out[name].shape)
            raise NoTwin(f"The plan's model has {name!r} of shape {said}, recorded was {seen}.")


@final
class _Later(Recorder):
    """Hands everything on under later round numbers, and lets nobody finish too early."""

    def __init__(self, recorder: Recorder, by: int) -> None:
        self._recorder, self._by = recorder, by

    def say(self, message: Message) -> None:
        self._recorder.say(replace(message, round=message.round + self._by))

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None:
        self._recorder.note_truth(Origin(origin.round + self._by, origin.sender), name, value)

    def note_event(self, event: Event) -> None:
        self._recorder.note_event(replace(event, round=event.round + self._by))

    def end_round(self, number: int) -> None:
        self._recorder.end_round(number + self._by)

    def finish(self) -> None:
        pass
