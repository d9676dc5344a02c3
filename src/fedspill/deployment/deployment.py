"""Deployment: a plan made real: data loaded and shared out, model built, federation ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.dataset import Dataset, Examples
from fedspill.deployment import vertical_deployment as vertical
from fedspill.deployment.asked_records import DrawnRecords, draw_asked_records
from fedspill.deployment.plan import Plan
from fedspill.deployment.read_tensors import tensors_read
from fedspill.deployment.targets import attribute_columns, draw_targets
from fedspill.errors import UsageError
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import state_of
from fedspill.federation.private_towers import PrivateTowers
from fedspill.federation.trainers import Engine
from fedspill.federation.vertical import Vertical
from fedspill.messages import SERVER, Kind
from fedspill.model_spec import ModelSpec
from fedspill.models.class_rows import any_head
from fedspill.models.vertical import vertical_net
from fedspill.partitions.shares import Shares, share_out
from fedspill.registry import make
from fedspill.seeds import generator, seed_of
from fedspill.trace import Keep, NoRecorder, Origin, Recorder

# Knowledge that a deployment hands to adversaries who may have it, in protocol() or knowledge(). An attack that needs
# more is skipped with the reason.
OFFERED = frozenset(
    {
        "architecture",
        "asked_records",
        "aux_data",
        "batch_size",
        "client_count",
        "defense",
        "labels_per_client",
        "local_epochs",
        "local_lr",
        "optimizer",
        "own_data",
        "shadow_data",
        "table_schema",
        "targets",
        "unlabelled_aux",
        # Of vertical federations with private towers.
        "active_features",
        "class_prior",
        "feature_ranges",
        "few_labels",
        "paired_aux",
        "party_features",
    }
)


@dataclass(frozen=True, eq=False)
class Deployment:
    """What a plan describes. Nothing has been sent yet."""

    plan: Plan
    dataset: Dataset
    shares: Shares
    settings: Settings
    build_model: Callable[[], nn.Module]
    data_dir: Path | None = None  # where the data came from, for those who must load them again

    @staticmethod
    def of(plan: Plan, data_dir: Path | None = None) -> Deployment:
        dataset: Dataset = make("datasets", plan.data.name, plan.data.options).load(data_dir)
        attribute_columns(plan.targets.attribute, dataset)  # refuses an attribute that is not there
        if plan.federation.kind == "vertical":
            return Deployment._vertical(plan, dataset.as_numbers(), data_dir)
        spec: ModelSpec = make("models", plan.model.name, plan.model.options).fitted_to(dataset)
        dataset = readable_by(spec, dataset)
        shares = share_out(
            dataset,
            make("partitions", plan.partition.name, plan.partition.options),
            plan.federation.clients,
            auxiliary=plan.adversary_data.per_class,
            shadow=plan.adversary_data.shadow,
            rng=generator(plan.seed, "shares"),
        )
        build = partial(spec.build, dataset.shape, len(dataset.classes), seed=seed_of(plan.seed, "model"))
        return Deployment(plan, dataset, shares, plan.settings(), build, data_dir)

    @staticmethod
    def _vertical(plan: Plan, dataset: Dataset, data_dir: Path | None) -> Deployment:
        spec, shares = vertical.spec_of(plan, dataset), vertical.shares_of(plan, dataset)
        build = partial(spec.build, dataset.shape, len(dataset.classes), seed=seed_of(plan.seed, "model"))
        vertical_net(build())  # refuses a model without towers
        return Deployment(plan, dataset, shares, plan.settings(), build, data_dir)

    @property
    def is_vertical(self) -> bool:
        return self.plan.federation.kind == "vertical"

    def describe(self) -> str:
        """One line for people."""
        if self.is_vertical:
            return vertical.describe(self.plan, self.settings, self.build_model(), self.dataset, self.shares.clients[0])
        settings, training = self.settings, self.settings.training
        parameters = sum(p.numel() for p in self.build_model().parameters())
        taking_part = settings.clients_per_round or len(self.shares.clients)
        wire = "secure aggregation" if settings.secure_aggregation else "plain aggregation"
        guards = "".join(f", {defense.name}" for defense in settings.defenses)
        return (
            f"{self._data_called()}, {len(self.shares.clients)} clients ({taking_part} a round), "
            f"{settings.rounds} round{'s' * (settings.rounds != 1)}, "
            f"{self.plan.model.called} with {parameters:,} parameters, {training.algorithm} with {training.optimizer}, "
            f"{wire}{guards}"
        )

    def _data_called(self) -> str:
        return self.plan.data.called if self.dataset.name == self.plan.data.name else self.dataset.name

    def protocol(self) -> dict[str, Any]:
        """What is written into the trace: public facts, what participants know, and the plan for provenance."""
        if self.is_vertical:
            return vertical.protocol_of(self.plan, self.settings, self.build_model(), self.dataset)
        model = self.build_model()
        head = any_head(model, self.shares.clients[0].x[:2])
        training = self.settings.training
        for defense in self.settings.defenses:
            training = defense.local(training)  # how clients really train is part of the protocol
        steps = training.algorithm == "fedsgd" or training.steps is not None
        return {
            "classes": len(self.dataset.classes),
            "head_weight": head.weight if head else None,
            "head_bias": head.bias if head else None,
            "head_is_plain": head.plain if head else None,
            "algorithm": training.algorithm,
            "weighting": self.settings.weighting,
            "secure_aggregation": self.settings.secure_aggregation,
            "batch_size": training.batch_size,
            "local_lr": training.lr,
            "local_epochs": 1 if steps else training.epochs,
            "optimizer": {
                "name": training.optimizer,
                "momentum": training.momentum,
                "weight_decay": training.weight_decay,
            },
            "client_count": self.settings.clients_per_round or len(self.shares.clients),
            "plan": self.plan.essence(),
        }

    def knowledge(self) -> dict[str, Any]:
        """What the adversaries that may know such things are given, beside the protocol."""
        auxiliary, shadow = self.shares.auxiliary, self.shares.shadow
        known: dict[str, Any] = {
            "architecture": self.build_model,
            "labels_per_client": labels_per_client(self.shares.clients),
        }
        if len(auxiliary):
            known |= {"aux_data": auxiliary, "unlabelled_aux": auxiliary.x}
        if len(shadow):
            known["shadow_data"] = shadow
        if self.dataset.train.schema is not None:
            known["table_schema"] = self.dataset.train.schema
        if self.settings.defenses:
            known["defense"] = self.settings.defenses
        if self.plan.federation.has_private_towers:
            known |= vertical.knowledge_of(self.plan, self.build_model(), self.shares.clients[0])
        elif self.plan.targets.members + self.plan.targets.others:
            known["targets"] = draw_targets(self.plan, self.dataset, self.shares.clients).targets
        asked = self._asked()
        if asked is not None:
            known["asked_records"] = asked.records
            # The curious client is the first one; what it trained on itself is of use to it here alone.
            known["own_data"] = Examples(self.shares.clients[0].x, self.shares.clients[0].y)
        return known

    def _asked(self) -> DrawnRecords | None:
        """The records that passive adversaries ask about; none in a vertical federation, or where none are wanted."""
        if self.is_vertical or not (self.plan.membership.members and self.plan.membership.others):
            return None
        return draw_asked_records(self.plan, self.dataset, self.shares)

    def federation(
        self,
        recorder: Recorder | None = None,
        *,
        device: str = "cpu",
        workers: int = 1,
        engine: Engine = "auto",
        altering: frozenset[str] = frozenset(),
    ) -> Horizontal | Vertical | PrivateTowers:
        """Ready to run by our own engine; `audit.engines.federation_of` runs it by the one that the plan names.

        `altering` is what of threat.ALTERING a malicious participant of private towers does.
        """
        if self.is_vertical:
            if self.plan.federation.has_private_towers:
                return vertical.private_federation_of(
                    self.plan,
                    self.settings,
                    self.build_model(),
                    self.shares,
                    recorder or NoRecorder(),
                    device,
                    altering,
                )
            (stock,) = self.shares.clients
            return vertical.federation_of(
                self.plan, self.settings, self.build_model(), stock, recorder or NoRecorder(), device
            )
        if recorder is not None:
            for (origin, name), fact in self.asked_truth(self._first_recorded).items():
                recorder.note_truth(origin, name, fact)
        return Horizontal(
            self.build_model(),
            list(self.shares.clients),
            self.settings,
            seed=self.plan.seed,
            classes=len(self.dataset.classes),
            recorder=recorder or NoRecorder(),
            device=device,
            workers=workers,
            engine=engine,
            public=self.shares.auxiliary if len(self.shares.auxiliary) else None,
        )

    def asked_truth(self, number: int) -> dict[tuple[Origin, str], Tensor]:
        """Where the records asked about come from: a fact of the first round that is recorded, of no other."""
        asked = self._asked() if number == self._first_recorded else None
        return {} if asked is None else {(Origin(number, SERVER), "asked_places"): asked.places}

    @property
    def _first_recorded(self) -> int:
        return min(self.plan.record.rounds or (0,))

    def recording_bytes(self, keep: Keep) -> int:
        """How large a recording will be, known before it starts."""
        if self.is_vertical:
            return vertical.recording_bytes(self.plan, self.build_model(), keep)
        state = state_of(self.build_model())
        rounds = [number for number in range(self.settings.rounds) if keep.wants_round(number)]
        per_round = self.settings.clients_per_round or len(self.shares.clients)
        if keep.clients is not None:
            per_round = min(per_round, len(keep.clients))
        messages: dict[Kind, int] = {"model": 1, "update": per_round, "aggregate": 1}
        return len(rounds) * sum(many * _kept_bytes(state, keep, kind) for kind, many in messages.items())

    def keep(self) -> Keep:
        """What is recorded, as the plan says: everything, or what attacks on certain leaks read.

        Behind a defense it is everything: attacks then look at other layers too, and what they are not shown they would
        not find.
        """
        keep = self.plan.record.keep()
        if self.plan.record.leaks is None or self.is_vertical or self.settings.defenses:
            return keep
        protocol = self.protocol()
        return replace(keep, tensors_of=tensors_read(self.plan, protocol["head_weight"], protocol["head_bias"]))

    def with_defenses(self, *defenses: Any) -> Deployment:
        """The same deployment with these defenses on the wire, behind those in place."""
        return replace(self, settings=replace(self.settings, defenses=(*self.settings.defenses, *defenses)))


def _kept_bytes(state: Mapping[str, Tensor], keep: Keep, kind: Kind) -> int:
    """Of one message of that kind."""
    if not keep.wants_kind(kind):
        return 0
    return sum(t.numel() * t.element_size() for name, t in state.items() if keep.wants_tensor(name, kind))


def readable_by(spec: ModelSpec, dataset: Dataset) -> Dataset:
    """The data as the model reads them; whole numbers that are no text may be measured values to it."""
    reads_text = spec.takes_text(dataset.shape, len(dataset.classes))
    if reads_text and not dataset.is_text:
        raise UsageError(
            f"The model {spec.name!r} reads text, and {dataset.name} is none.",
            remedy="Choose another model, or a data set of text such as 'made-up-sentences'.",
        )
    if not reads_text and dataset.is_text:
        if dataset.train.vocabulary is not None:
            raise UsageError(
                f"{dataset.name} is text, and the model {spec.name!r} reads measured values.",
                remedy="Choose a model of text: 'gpt', 'bert', 'recurrent' or 'mean-embedding'.",
            )
        return dataset.as_numbers()
    return dataset


def labels_per_client(clients: Sequence[Examples]) -> tuple[int, int]:
    """The fewest and the most labels that a client mainly holds: at least half as often as its commonest one."""
    counts = [torch.bincount(own.y) for own in clients if len(own)]
    held = [int((2 * count >= count.max()).sum()) for count in counts]
    return (min(held), max(held)) if held else (1, 1)
