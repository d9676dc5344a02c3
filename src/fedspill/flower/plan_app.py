"""A plan's federation as a Flower app: the same clients, the same selection, the same sums, sent by Flower."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MessageType, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import FedspillError, UsageError
from fedspill.federation.horizontal import facts_of_round, select
from fedspill.federation.local import load, state_of, train
from fedspill.federation.trainers import training_rng
from fedspill.federation.weighted_sum import weighted_sum
from fedspill.flower.arrays import array_record, single_array_record, tensors_of
from fedspill.flower.mods import DefenseMod
from fedspill.flower.round_messages import reply_of
from fedspill.messages import client
from fedspill.trace import Origin
from fedspill.training import LocalTraining

TIMEOUT = 300.0  # seconds to wait for all nodes to appear, and for the replies of a round


@dataclass(frozen=True, eq=False)
class PlannedFederation:
    """A deployment, with what both the server and the clients of the Flower app derive from it."""

    deployment: Deployment

    @property
    def seed(self) -> int:
        return self.deployment.plan.seed

    @cached_property
    def training(self) -> LocalTraining:
        training = self.deployment.settings.training
        for defense in self.deployment.settings.defenses:
            training = defense.local(training)
        return training

    def selected(self, number: int) -> tuple[list[int], list[int]]:
        return select(self.deployment.settings, len(self.deployment.shares.clients), self.seed, number)

    def truth(self, number: int, summed: Sequence[str]) -> Mapping[tuple[Origin, str], Tensor]:
        """What really happened in a round, as our own engine notes it."""
        indices = [int(address.partition(":")[2]) for address in summed]
        clients, classes = self.deployment.shares.clients, len(self.deployment.dataset.classes)
        facts = facts_of_round(number, clients, self.training, self.seed, classes, indices, indices)
        return facts | self.deployment.asked_truth(number)

    @cached_property
    def summed_names(self) -> list[str]:
        """Names of the tensors that are sent under secure aggregation: those that can be summed."""
        return [name for name, tensor in state_of(self.deployment.build_model()).items() if tensor.is_floating_point()]


@lru_cache(maxsize=2)
def planned_federation(plan: str, data_dir: str) -> PlannedFederation:
    """The federation of a plan given as JSON; cached, because every message to a client asks for it."""
    checked = check_plan(json.loads(plan), "the plan")
    if checked.training.algorithm != "fedavg":
        raise UsageError(
            f"Under Flower clients send models, so {checked.training.algorithm} cannot be run.",
            remedy='Use algorithm = "fedavg" with steps = 1, or the engine "own".',
        )
    return PlannedFederation(Deployment.of(checked, Path(data_dir) if data_dir else None))


def client_app(plan_of: Callable[[Context], PlannedFederation]) -> ClientApp:
    """The client side: local training, with the plan's defenses on the wire."""

    def defend(msg: FlowerMessage, context: Context, call_next: ClientAppCallable) -> FlowerMessage:
        settings, seed = plan_of(context).deployment.settings, plan_of(context).seed

        def with_defenses(msg: FlowerMessage, context: Context) -> FlowerMessage:
            return DefenseMod(settings.defenses, seed, None, None)(msg, context, call_next)

        inner = with_defenses if settings.defenses else call_next
        return secaggplus_mod(msg, context, inner) if settings.secure_aggregation else inner(msg, context)

    app = ClientApp(mods=[defend])

    @app.query()
    def tell_partition(msg: FlowerMessage, context: Context) -> FlowerMessage:
        return FlowerMessage(RecordDict({"who": MetricRecord({"partition-id": _partition_of(context)})}), reply_to=msg)

    @app.train()
    def train_locally(msg: FlowerMessage, context: Context) -> FlowerMessage:
        torch.set_num_threads(1)
        plan, index = plan_of(context), _partition_of(context)
        configs = {key: value for config in msg.content.config_records.values() for key, value in config.items()}
        number = int(str(configs["server-round"])) - 1
        if index in plan.selected(number)[1]:
            raise FedspillError("dropped out of this round, as the plan says")
        key, record = single_array_record(msg.content)
        model = plan.deployment.build_model()
        start = state_of(model) | dict(zip(_sent_names(plan, record), tensors_of(record).values(), strict=True))
        examples = plan.deployment.shares.clients[index]
        train(model, start, examples, plan.training, training_rng(plan.seed, number, index))
        after = {name: state_of(model)[name] for name in _sent_names(plan, record)}
        return FlowerMessage(_reply_content(after, plan.training.schedule(len(examples)).samples, key), reply_to=msg)

    return app


def _partition_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def _sent_names(plan: PlannedFederation, record: ArrayRecord) -> list[str]:
    """Names of the arrays in a message; SecAgg+ sends a bare list of the tensors that can be summed."""
    return plan.summed_names if plan.deployment.settings.secure_aggregation else list(record)


def _reply_content(after: dict[str, Tensor], examples: int, key: str) -> RecordDict:
    """The reply in the form of Flower's message API, or in the older form that SecAgg+ reads."""
    if key != "fitins.parameters":
        metrics = MetricRecord({"num-examples": examples})
        return RecordDict({"arrays": array_record(after), "metrics": metrics})
    arrays = array_record({str(number): tensor for number, tensor in enumerate(after.values())})
    return RecordDict(
        {
            "fitres.parameters": arrays,
            "fitres.num_examples": MetricRecord({"num_examples": examples}),
            "fitres.metrics": ConfigRecord({}),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )


def partitions_of_nodes(grid: Grid, wanted: int) -> dict[int, int]:
    """{node: partition} of all nodes; waits until there are as many as `wanted`."""
    until = time.monotonic() + TIMEOUT
    while len(nodes := list(grid.get_node_ids())) < wanted:
        if time.monotonic() > until:
            raise FedspillError(
                f"{wanted} nodes are needed, {len(nodes)} came within {TIMEOUT:.0f} s.",
                remedy="Start one SuperNode per client, with partition-id 0, 1, ... in its --node-config.",
            )
        time.sleep(0.5)
    asked = [FlowerMessage(RecordDict({"who": ConfigRecord({})}), node, MessageType.QUERY) for node in nodes]
    answers = [reply for reply in grid.send_and_receive(asked, timeout=TIMEOUT) if not reply.has_error()]
    found = {a.metadata.src_node_id: int(a.content.metric_records["who"]["partition-id"]) for a in answers}  # type: ignore[arg-type]
    if sorted(found.values()) != list(range(wanted)):
        raise FedspillError(
            f"Expected one node for each of the partitions 0 to {wanted - 1}, got {sorted(found.values())}.",
            remedy="Give each SuperNode its own partition-id in its --node-config.",
        )
    return found


@dataclass(eq=False)
class PlannedStrategy(Strategy):
    """Selects clients, checks updates and moves the model as our own engine does, over Flower's messages."""

    plan: PlannedFederation
    nodes: dict[int, int]  # node: partition
    _start: dict[str, Tensor] = field(default_factory=dict)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        self._start = tensors_of(arrays)
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        present, silent = self.plan.selected(server_round - 1)
        chosen = sorted(present + silent)
        by_partition = {partition: node for node, partition in self.nodes.items()}
        return [FlowerMessage(content, by_partition[index], MessageType.TRAIN) for index in chosen]

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        settings = self.plan.deployment.settings
        received = [reply_of(reply, None, "num-examples") for reply in replies]
        received.sort(key=lambda reply: self.nodes[reply.node])  # a sum in another order would round otherwise
        updates = [(reply, reply.update_to(self._start)) for reply in received if not reply.error]
        sound = [(reply, update.update) for reply, update in updates if update.is_sound]
        if not sound:
            return None, None
        shares = [(reply.examples or 0) if settings.weighting == "examples" else 1 for reply, _ in sound]
        total = weighted_sum([update for _, update in sound], [share / sum(shares) for share in shares])
        moved = {name: self._start[name] + settings.server_lr * step for name, step in total.items()}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in moved.values()):
            return None, None
        return array_record(self._start | moved), None

    def configure_evaluate(self, *_: Any) -> Iterable[FlowerMessage]:
        return []

    def aggregate_evaluate(self, *_: Any) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        pass


def model_with_state(plan: PlannedFederation, state: dict[str, Tensor]) -> nn.Module:
    model = plan.deployment.build_model()
    load(model, state_of(model) | state)
    return model


def address_of_node(nodes: dict[int, int]) -> Callable[[int], str]:
    return lambda node: client(nodes[node]) if node in nodes else client(node)
