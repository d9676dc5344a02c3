"""The client's guard: what comes in is inspected, what goes out is defended, what it knows survives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from inprocess import InProcess
from little import Little, all_nodes, node, same
from torch import Tensor, nn

from fedspill.defense import ACCEPT, ClientContext, Defense, Verdict
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.guard import Guard
from fedspill.errors import UsageError
from fedspill.flower import mod, record
from fedspill.messages import Message as TraceMessage
from fedspill.seeds import generator
from fedspill.trace_folder import FolderTrace
from fedspill.training import LocalTraining


@dataclass(frozen=True)
class NoJump(Defense):
    """Refuses by a rule that takes no training to try, so that the mod itself is seen at work."""

    name: ClassVar[str] = "no-jump"
    title: ClassVar[str] = "A guard for these tests"

    furthest: float = 0.6

    def incoming(self, message: TraceMessage, previous: TraceMessage | None, client: ClientContext) -> Verdict:
        if previous is None:
            return ACCEPT
        steps = {n: float((t - previous.tensors[n]).abs().max()) for n, t in message.tensors.items()}
        name, step = max(steps.items(), key=lambda item: item[1])
        if step <= self.furthest:
            return ACCEPT
        return Verdict("refuse", f"{name} jumped")


@dataclass(frozen=True)
class Nothing(Defense):
    name: ClassVar[str] = "nothing"
    title: ClassVar[str] = "Nothing at all"


@dataclass(frozen=True)
class OtherTraining(Defense):
    name: ClassVar[str] = "other-training"
    title: ClassVar[str] = "Trains otherwise"

    def local(self, training: LocalTraining) -> LocalTraining:
        return replace(training, lr=0.01)


class Planting(FedAvg):
    """A malicious server: from its second round on, one neuron fires for a single sample only and gives it away.

    The planted neuron reads a random direction above a threshold that few samples pass. Where exactly one passes, the
    change of the neuron's weights divided by the change of its bias is that sample.
    """

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        if server_round > 1:
            state = arrays.to_torch_state_dict()
            direction = torch.randn(6, generator=torch.Generator().manual_seed(1))
            state["0.weight"][0] = direction / direction.norm()
            state["0.bias"][0] = -2.0
            arrays = ArrayRecord(state)
        return super().configure_train(server_round, arrays, config, grid)


def leaked(trace: FolderTrace, little: Little) -> list[int]:
    """Clients of whom one sample was read off the planted neuron, to four digits."""
    found = []
    for update in trace.messages("update", round=1):
        index = int(update.sender.removeprefix("client:")) - node(0)
        weight, bias = update.tensors["0.weight"][0].double(), update.tensors["0.bias"][0].double()
        if float(bias.abs()) < 1e-7:
            continue
        distances = (little.data(index)[0].double() - weight / bias).abs().max(1).values
        if float(distances.min()) < 1e-3:
            found.append(index)
    return found


def planted(tmp_path: Path, mods: list[Any]) -> tuple[FolderTrace, Little]:
    little = Little(clients=12, samples=40, batch=40, mods=mods)
    little.run(record(Planting(fraction_evaluate=0.0), tmp_path / "trace"))
    return FolderTrace(tmp_path / "trace"), little


def test_unguarded_clients_leak_to_a_planted_neuron(tmp_path: Path) -> None:
    trace, little = planted(tmp_path, [])
    assert len(leaked(trace, little)) >= 3
    assert trace.events == []


def test_guarded_clients_refuse_a_planted_neuron_and_say_why(tmp_path: Path) -> None:
    trace, little = planted(tmp_path, [mod(Guard(on_alarm="refuse"))])
    assert leaked(trace, little) == []
    assert len(list(trace.messages("update", round=0))) == 12
    assert list(trace.messages("update", round=1)) == []
    assert len(trace.events) == 24  # twelve clients, two rounds
    assert all(event.what.startswith("failed: fedspill: guard refused the model: ") for event in trace.events)


def test_guarded_clients_repair_a_planted_neuron_and_train_on(tmp_path: Path) -> None:
    trace, little = planted(tmp_path, [mod(Guard())])
    assert leaked(trace, little) == []
    updates = list(trace.messages("update", round=1))
    assert len(updates) == 12
    # What leaves is the update of training on the repaired model, not the distance to it.
    assert max(float(tensor.abs().max()) for update in updates for tensor in update.tensors.values()) < 1
    assert all(float(update.tensors["2.bias"].abs().max()) > 1e-4 for update in updates)


def test_the_guard_does_not_change_honest_training() -> None:
    calm = {"clients": 12, "samples": 40, "batch": 40}
    assert same(Little(**calm, mods=[mod(Guard(on_alarm="refuse"))]).run(all_nodes()), Little(**calm).run(all_nodes()))


def test_a_model_for_evaluation_is_inspected_too() -> None:
    app = ClientApp(mods=[mod(NoJump())])
    evaluated = []

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return Message(msg.content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        evaluated.append(True)
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1})}), reply_to=msg)

    grid = InProcess(app, 1)

    def ask(kind: str, value: float) -> Message:
        content = RecordDict({"arrays": ArrayRecord([np.full(3, value)])})
        (reply,) = grid.send_and_receive([Message(content, node(0), kind)])
        return reply

    assert not ask("train", 0.0).has_error()
    assert ask("evaluate", 9.0).error.reason == "fedspill: no-jump refused the model: 0 jumped"
    assert not ask("evaluate", 0.5).has_error()
    assert len(evaluated) == 1


def test_a_defense_that_does_nothing_changes_no_bit() -> None:
    assert same(Little(mods=[mod(Nothing())]).run(all_nodes()), Little().run(all_nodes()))


def test_what_leaves_is_the_model_plus_the_defended_update(tmp_path: Path) -> None:
    """In the order of the defenses, with the noise that our own engine would draw."""
    defenses = (Compression(drop=0.5), ClipNoise(clip=0.1, sigma=0.01))
    traces = {}
    for name, mods in (("plain", []), ("defended", [mod(*defenses, seed=3)])):
        Little(rounds=1, mods=mods).run(record(all_nodes(), tmp_path / name))
        traces[name] = FolderTrace(tmp_path / name)
    assert len(list(traces["plain"].messages("update"))) == 4
    for plain, defended in zip(traces["plain"].messages("update"), traces["defended"].messages("update"), strict=True):
        expected = plain
        for defense in defenses:
            rng = generator(3, defense.name, 0, int(plain.sender.removeprefix("client:")) - node(0))
            expected = defense.outgoing(expected, rng)
        for tensor, right in zip(defended.tensors.values(), expected.tensors.values(), strict=True):
            assert torch.allclose(tensor, right, atol=1e-6)  # the sum with the model rounds


def test_noise_without_a_seed_never_repeats(tmp_path: Path) -> None:
    biases = []
    for name in ("one", "two"):
        Little(rounds=1, mods=[mod(ClipNoise())]).run(record(all_nodes(), tmp_path / name))
        biases.append([update.tensors["2.bias"] for update in FolderTrace(tmp_path / name).messages("update")])
    assert [len(of_one_run) for of_one_run in biases] == [4, 4]
    assert not any(torch.equal(one, two) for one, two in zip(*biases, strict=True))


def test_integer_state_is_returned_as_training_left_it() -> None:
    app = ClientApp(mods=[mod(Compression(drop=0.5))])

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        state = msg.content["arrays"].to_torch_state_dict()
        content = RecordDict({"arrays": ArrayRecord({"w": state["w"] + 1, "count": state["count"] + 1})})
        return Message(content, reply_to=msg)

    content = RecordDict({"arrays": ArrayRecord({"w": torch.zeros(4), "count": torch.tensor(7)})})
    (reply,) = InProcess(app, 1).send_and_receive([Message(content, node(0), "train")])
    state = reply.content["arrays"].to_torch_state_dict()
    assert int(state["count"]) == 8
    assert list(reply.content["arrays"]) == ["w", "count"]


def guarded_context(run_id: int = 1) -> Context:
    return Context(run_id, node(0), {"partition-id": 0}, RecordDict(), {})


def call(guard: Any, context: Context, value: float) -> Message:
    InProcess(ClientApp(), 1)
    message = Message(RecordDict({"arrays": ArrayRecord([np.full(3, value)])}), node(0), "train")
    message.metadata.__dict__["_message_id"] = "m"
    reply: Message = guard(message, context, lambda msg, _: Message(msg.content, reply_to=msg))
    return reply


def test_what_the_guard_knows_survives_the_end_of_a_process() -> None:
    """Flower hands the state to whichever process comes next, as bytes; a new guard object reads it."""
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

    context = guarded_context()
    assert not call(mod(NoJump()), context, 0.0).has_error()
    later = guarded_context()
    later.state = recorddict_from_proto(recorddict_to_proto(context.state))
    assert call(mod(NoJump()), later, 9.0).has_error()
    assert not call(mod(NoJump()), guarded_context(), 9.0).has_error()  # and without that state it would not know


def test_what_the_guard_knows_survives_a_new_supernode(tmp_path: Path) -> None:
    """A SuperNode that starts anew has an empty state, and another node id; its folder is still there."""
    assert not call(mod(NoJump(), memory=tmp_path / "memory"), guarded_context(), 0.0).has_error()
    restarted = Context(1, node(55), {"partition-id": 0}, RecordDict(), {})
    assert call(mod(NoJump(), memory=tmp_path / "memory"), restarted, 9.0).has_error()
    another_run = guarded_context(run_id=2)
    assert not call(mod(NoJump(), memory=tmp_path / "memory"), another_run, 9.0).has_error()
    assert all(path.stat().st_mode & 0o77 == 0 for path in (tmp_path / "memory").iterdir())


def test_rounds_are_the_servers_where_it_says_them() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Looks(Defense):
        name: ClassVar[str] = "looks"
        title: ClassVar[str] = "Looks at the round"

        def incoming(self, message: TraceMessage, previous: TraceMessage | None, client: ClientContext) -> Verdict:
            seen.append(message.round)
            return ACCEPT

    context, guard = guarded_context(), mod(Looks())
    for _ in range(2):
        call(guard, context, 0.0)
    InProcess(ClientApp(), 1)
    content = RecordDict({"arrays": ArrayRecord([np.zeros(3)]), "config": ConfigRecord({"server-round": 9})})
    message = Message(content, node(0), "train")
    message.metadata.__dict__["_message_id"] = "m"
    guard(message, context, lambda msg, _: Message(msg.content, reply_to=msg))
    assert seen == [0, 1, 8]


def test_an_update_that_does_not_fit_is_not_sent() -> None:
    context, guard = guarded_context(), mod(Compression())
    InProcess(ClientApp(), 1)
    message = Message(RecordDict({"arrays": ArrayRecord([np.zeros(3)])}), node(0), "train")
    message.metadata.__dict__["_message_id"] = "m"
    odd = RecordDict({"arrays": ArrayRecord([np.zeros(5)])})
    reply = guard(message, context, lambda msg, _: Message(odd, reply_to=msg))
    assert "does not fit the model at 0" in reply.error.reason


def test_several_models_in_one_message_are_not_guessed_at() -> None:
    InProcess(ClientApp(), 1)
    content = RecordDict({name: ArrayRecord([np.zeros(3)]) for name in ("a", "b")})
    message = Message(content, node(0), "train")
    message.metadata.__dict__["_message_id"] = "m"

    def keep(msg: Message, context: Context) -> Message:
        return Message(msg.content, reply_to=msg)

    assert "expected one ArrayRecord, got 2 (a, b)" in mod(Nothing())(message, guarded_context(), keep).error.reason
    assert not mod(Nothing(), arrays_key="a")(message, guarded_context(), keep).has_error()


def test_defenses_that_a_mod_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="other-training changes how a client trains"):
        mod(OtherTraining())
    with pytest.raises(UsageError, match="at least one"):
        mod()


def test_messages_without_a_model_are_passed_on() -> None:
    InProcess(ClientApp(), 1)
    message = Message(RecordDict({"config": ConfigRecord({"a": 1})}), node(0), "query")
    message.metadata.__dict__["_message_id"] = "m"
    reply = mod(NoJump())(message, guarded_context(), lambda msg, _: Message(msg.content, reply_to=msg))
    assert not reply.has_error()


def test_one_sample_above_the_threshold_is_the_quotient_of_the_neurons_gradients() -> None:
    """The arithmetic of the leak by itself: one sample above the threshold, and the quotient is that sample."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
        model[0].bias.fill_(-1.0)
    x: Tensor = torch.tensor([[2.0, 0.5], [0.1, 0.3], [-1.0, 4.0]])
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 1])).backward()
    assert torch.allclose(model[0].weight.grad[0] / model[0].bias.grad[0], x[0])
