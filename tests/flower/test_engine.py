"""The same plan under Flower and under our own engine: the same trace, the same model, the same guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.compat.common.parameter import bytes_to_ndarray
from flwr.serverapp import ServerApp
from inprocess import InProcess, run

from fedspill.attack import Attack
from fedspill.audit.engines import federation_of
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.errors import FedspillError, Unfit, UsageError
from fedspill.federation.horizontal import Horizontal
from fedspill.federation.local import state_of
from fedspill.flower.engine import FlowerFederation
from fedspill.flower.plan_app import partitions_of_nodes
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.llbg import LLBG
from fedspill.messages import AGGREGATOR
from fedspill.threat import adversary, needs
from fedspill.trace import MemoryTrace, Origin
from fedspill.trace_folder import FolderRecorder, FolderTrace


def here(server: ServerApp, clients: ClientApp, nodes: int) -> None:
    run(server, InProcess(clients, nodes))


def deployment(**federation: Any) -> Deployment:
    settings = {"clients": 5, "rounds": 3, **federation}
    plan = {"seed": 11, "federation": settings, "training": {"lr": 0.1, "batch_size": 16}}
    return Deployment.of(check_plan(plan, "test"))


def both(made: Deployment) -> tuple[MemoryTrace, MemoryTrace, FlowerFederation, Any]:
    """Our own engine's trace and Flower's."""
    own, theirs = MemoryTrace(made.protocol()), MemoryTrace(made.protocol())
    federation = made.federation(own, engine="loop")
    federation.run()
    flower = FlowerFederation(made, theirs, runner=here)
    flower.run()
    return own, theirs, flower, federation


@pytest.mark.parametrize(
    "federation",
    [{}, {"clients_per_round": 3, "server_lr": 0.5}, {"weighting": "uniform"}],
    ids=["all", "some a round", "uniform"],
)
def test_the_trace_is_the_same_bit_for_bit(federation: dict[str, Any]) -> None:
    own, theirs, flower, horizontal = both(deployment(**federation))
    one, other = list(own.messages()), list(theirs.messages())
    assert [(m.round, m.sender, m.receiver, m.kind) for m in one] == [
        (m.round, m.sender, m.receiver, m.kind) for m in other
    ]
    for ours, flowers in zip(one, other, strict=True):
        assert dict(ours.info) == dict(flowers.info)
        assert all(torch.equal(ours.tensors[name], flowers.tensors[name]) for name in ours.tensors)
    for name, tensor in state_of(horizontal.model).items():
        assert torch.equal(tensor, state_of(flower.model)[name])


@pytest.mark.slow
def test_the_label_attacks_count_the_same_as_on_our_own_engine(tmp_path: Path) -> None:
    made = deployment(clients=8)
    own = MemoryTrace(made.protocol())
    made.federation(own).run()  # as an audit runs it: stacked
    FlowerFederation(made, FolderRecorder(tmp_path / "trace", made.protocol()), runner=here).run()
    theirs = FolderTrace(tmp_path / "trace")
    for attack in (Labels(), LLBG()):
        ours, flowers = (attack(trace.view(adversary("curious-server")), seed=0) for trace in (own, theirs))
        assert ours.of == flowers.of
        assert len(ours.of) == 24
        assert torch.equal(ours.counts, flowers.counts)  # type: ignore[attr-defined]
    facts = own.truth().facts
    assert theirs.truth().facts.keys() == facts.keys()
    assert all(torch.equal(value, theirs.truth().facts[key]) for key, value in facts.items())


def test_drop_outs_and_defenses_are_those_of_our_own_engine() -> None:
    plan = {
        "seed": 3,
        "federation": {"clients": 6, "rounds": 3, "drop_out": 0.4},
        "defenses": [{"name": "compression", "drop": 0.8}, {"name": "clip-noise", "clip": 0.5, "sigma": 0.001}],
    }
    own, theirs, _, _ = both(Deployment.of(check_plan(plan, "test")))
    assert [(e.round, e.party) for e in own.events] == [(e.round, e.party) for e in theirs.events]
    assert own.events
    assert all(event.what.startswith("failed") for event in theirs.events), "a client's own words are not recorded"
    for ours, flowers in zip(own.messages("update"), theirs.messages("update"), strict=True):
        assert ours.sender == flowers.sender
        for name in ours.tensors:  # defended updates are added to the model before they leave, which rounds
            assert torch.allclose(ours.tensors[name], flowers.tensors[name], atol=1e-5)


def test_a_defense_that_an_audit_adds_acts_on_updates() -> None:
    from fedspill.defenses.clip_noise import ClipNoise

    made = deployment(rounds=1).with_defenses(ClipNoise(clip=0.01, sigma=0.0))
    trace = MemoryTrace(made.protocol())
    FlowerFederation(made, trace, runner=here).run()
    for update in trace.messages("update"):
        norm = torch.cat([tensor.flatten() for tensor in update.tensors.values()]).norm()
        assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_what_flower_cannot_run_is_refused_early() -> None:
    made = Deployment.of(check_plan({"training": {"algorithm": "fedsgd"}}, "test"))
    with pytest.raises(UsageError, match="fedsgd"):
        FlowerFederation(made, MemoryTrace())


def test_nodes_that_share_a_partition_are_refused() -> None:
    app = ClientApp()

    @app.query()
    def who(msg: Any, context: Context) -> Any:
        from flwr.app import Message, MetricRecord

        return Message(RecordDict({"who": MetricRecord({"partition-id": 0})}), reply_to=msg)

    with pytest.raises(FedspillError, match="one node for each of the partitions 0 to 2"):
        partitions_of_nodes(InProcess(app, 3), 3)


class Watching(InProcess):
    """Keeps every vector of the model's first layer that reaches the server, in whatever wrapping."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.vectors: dict[int, list[np.ndarray[Any, Any]]] = {}

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            node, content = reply.metadata.src_node_id, reply.content
            found = [array.numpy() for record in content.array_records.values() for array in record.values()]
            masked = [config.get("masked_params", []) for config in content.config_records.values()]
            found += [bytes_to_ndarray(data) for datas in masked for data in datas]
            self.vectors.setdefault(node, []).extend(a.ravel() for a in found if a.size == 64 * 64)
        return replies


def test_no_vector_that_reaches_the_server_resembles_a_client_s_model() -> None:
    """Every byte counts, not only what is recorded: masked vectors look like noise. Without masks they do not."""
    closest = {}
    for secure in (True, False):
        made = deployment(secure_aggregation=secure, rounds=1)
        grids: list[Watching] = []

        def watched(server: ServerApp, clients: ClientApp, nodes: int, grids: list[Watching] = grids) -> None:
            grids.append(Watching(clients, nodes))
            run(server, grids[0])

        own = MemoryTrace(made.protocol())
        made.federation(own, engine="loop").run()
        FlowerFederation(made, MemoryTrace(made.protocol()), runner=watched).run()
        (model,) = own.messages("model")
        likeness = []
        for update in own.messages("update"):
            index = int(update.sender.removeprefix("client:"))
            mine = (model.tensors["fc1.weight"] + update.tensors["fc1.weight"]).numpy().ravel()
            vectors = grids[0].vectors[1000 + index]
            assert len(vectors) == 1
            likeness += [abs(float(np.corrcoef(mine, vector)[0, 1])) for vector in vectors]
        closest[secure] = likeness
    assert max(closest[True]) < 0.08  # five standard deviations of chance at 4,096 numbers
    assert min(closest[False]) > 0.999


def test_secure_aggregation_shows_the_sum_and_nothing_else() -> None:
    made = deployment(secure_aggregation=True, rounds=2)
    own = MemoryTrace(made.protocol())
    made.federation(own, engine="loop").run()
    trace = MemoryTrace(made.protocol())
    FlowerFederation(made, trace, runner=here).run()
    assert {message.kind for message in trace.messages()} == {"model", "aggregate"}
    assert {message.sender for message in trace.messages()} == {"server", AGGREGATOR}
    assert trace.events == []
    # It is the sum: that of the same clients' updates, as our own engine has them, up to SecAgg+'s quantization.
    ours, flowers = next(own.messages("aggregate")), next(trace.messages("aggregate"))
    assert dict(ours.info) == dict(flowers.info)
    for name, tensor in ours.tensors.items():
        assert torch.allclose(tensor, flowers.tensors[name], atol=1e-4)
    # And it is none of them.
    for update in own.messages("update", round=0):
        distance = max(float((update.tensors[n] - t).abs().max()) for n, t in flowers.tensors.items())
        assert distance > 1e-2


class Single(Attack):
    name, title, paper, guesses = "single", "Reads one update", "none", LabelCounts
    needs = needs(sees=["update"])

    def run(self, view: Any, rng: torch.Generator) -> Any:
        raise AssertionError


def test_attacks_on_the_sum_run_and_attacks_on_single_updates_are_refused() -> None:
    made = deployment(secure_aggregation=True)
    trace = MemoryTrace(made.protocol())
    FlowerFederation(made, trace, runner=here).run()
    view = trace.view(adversary("curious-server-secagg"))
    guess = LLBG()(view, seed=0)
    assert [origin.sender for origin in guess.of] == 3 * [AGGREGATOR]
    real = torch.stack([trace.truth().get(Origin(number, AGGREGATOR), "label_counts") for number in range(3)])
    assert torch.equal(guess.counts.sum(1), real.sum(1))
    assert float(torch.minimum(guess.counts, real).sum() / real.sum()) > 0.8
    with pytest.raises(Unfit, match="to see update messages"):
        Single()(view, seed=0)


def test_flower_does_not_refuse_the_default_plan() -> None:
    assert FlowerFederation(Deployment.of(Plan()), MemoryTrace()).deployment.plan == Plan()


def test_secure_aggregation_with_clients_that_drop_out() -> None:
    made = deployment(secure_aggregation=True, clients=7, rounds=3, drop_out=0.25)
    trace = MemoryTrace(made.protocol())
    FlowerFederation(made, trace, runner=here).run()
    gone = [event for event in trace.events if event.what == "not in the sum"]
    assert gone
    totals = list(trace.messages("aggregate"))
    assert totals
    for total in totals:
        assert total.info["clients"] == 7 - sum(event.round == total.round for event in gone)


def test_a_plan_says_which_engine_runs_it() -> None:
    made = deployment(engine="flower", rounds=2)
    federation = federation_of(made, MemoryTrace(made.protocol()))
    assert isinstance(federation, FlowerFederation)
    federation.runner = here
    rounds = federation.run()
    assert [done.number for done in rounds] == [0, 1]
    assert [done.clients for done in rounds] == 2 * [(0, 1, 2, 3, 4)]
    assert deployment().protocol().keys() == made.protocol().keys()
    with pytest.raises(UsageError, match="CPU"):
        federation_of(made, device="cuda")
    assert isinstance(federation_of(deployment()), Horizontal)
