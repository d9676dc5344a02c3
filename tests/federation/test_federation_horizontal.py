"""Horizontal federation: who takes part, what is added up, what is left out, and what is known of it afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import pytest
import torch
from spine import CLASSES, blobs, federation, network, ragged_clients, recorded
from torch import Tensor, nn

from fedspill.defense import ACCEPT, ClientContext, Defense, Verdict
from fedspill.errors import NotVisible, UnknownName, UsageError
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import state_of, train
from fedspill.federation.trainers import training_rng
from fedspill.messages import Message
from fedspill.threat import CURIOUS_SERVER, CURIOUS_SERVER_SECAGG, EAVESDROPPER
from fedspill.trace import Event, Keep, MemoryTrace, Origin, Recorder
from fedspill.training import LocalTraining

SIZES = (7, 13, 16, 9)
TRAINING = LocalTraining(batch_size=4)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state_of(model).items()}


def is_finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in state_of(model).values())


def hand_made_average(weights: list[float], training: LocalTraining = TRAINING) -> dict[str, Tensor]:
    """One round of FedAvg written down: the start plus the weighted mean of the clients' changes."""
    start, total = state(network()), dict.fromkeys(state(network()), torch.tensor(0.0))
    for index, examples in enumerate(ragged_clients(SIZES)):
        sent = train(network(), start, examples, training, training_rng(3, 0, index))
        total = {name: total[name] + weights[index] / sum(weights) * sent[name] for name in total}
    return {name: start[name] + total[name] for name in start}


@pytest.mark.parametrize(
    ("weighting", "training", "weights"),
    [
        ("examples", TRAINING, SIZES),
        ("uniform", TRAINING, (1, 1, 1, 1)),
        ("examples", LocalTraining(batch_size=4, epochs=3), SIZES),
        ("examples", LocalTraining(batch_size=4, steps=2), (8, 8, 8, 8)),
    ],
)
def test_the_global_model_is_the_weighted_average(
    weighting: Any, training: LocalTraining, weights: tuple[int, ...]
) -> None:
    made = federation(ragged_clients(SIZES), training=training, weighting=weighting, rounds=1, engine="loop")
    made.run()
    for name, tensor in hand_made_average(list(weights), training).items():
        torch.testing.assert_close(state_of(made.model)[name], tensor)


def test_the_server_s_learning_rate_scales_the_step() -> None:
    start = state(network())
    whole, half = (federation(rounds=1, server_lr=rate) for rate in (1.0, 0.5))
    whole.run(), half.run()
    for name, tensor in start.items():
        torch.testing.assert_close(state_of(half.model)[name] - tensor, 0.5 * (state_of(whole.model)[name] - tensor))


def test_fedsgd_steps_down_the_mean_gradient_of_all_samples() -> None:
    clients = ragged_clients(SIZES)
    training = LocalTraining(algorithm="fedsgd", batch_size=100, lr=0.3)
    trace, _ = recorded(clients, training=training, rounds=1)
    made = federation(clients, training=training, rounds=1)
    made.run()
    reference = network()
    x, y = torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients])
    nn.functional.cross_entropy(reference(x), y).backward()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(state_of(made.model)[name], parameter.detach() - 0.3 * parameter.grad)
    assert [message.kind for message in trace.messages()] == ["model", *["gradient"] * 4, "aggregate"]
    assert next(trace.messages("aggregate")).info == {"clients": 4, "examples": sum(SIZES), "of": "gradient"}


def test_the_given_model_and_clients_are_left_alone() -> None:
    model, clients = network(), ragged_clients()
    before, inputs = state(model), [c.x.clone() for c in clients]
    federation(clients, model=model).run()
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(model).items())
    assert all(torch.equal(a, c.x) for a, c in zip(inputs, clients, strict=True))


def test_the_same_seed_gives_the_same_federation_and_another_one_another() -> None:
    def flat(seed: int) -> list[Any]:
        return [
            (m.sender, m.kind, {n: t.tolist() for n, t in m.tensors.items()}) for m in recorded(seed=seed)[0].messages()
        ]

    first = flat(3)
    torch.rand(5)
    assert flat(3) == first
    assert flat(4) != first
    assert flat(4)[0] == first[0], "the first model is the one that was given"


def test_a_round_does_not_depend_on_the_rounds_before_it_but_through_the_model() -> None:
    trace, _ = recorded(rounds=2)
    model = network()
    model.load_state_dict(next(trace.messages("model", round=1)).tensors)
    again = MemoryTrace()
    made = federation(model=model, recorder=again)
    made.round(1)
    for one, other in zip(trace.messages("update", round=1), again.messages("update"), strict=True):
        assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


# Nine kinds of bad update, and more.


def on(name: str, change: Callable[[Tensor], Any]) -> Callable[[dict[str, Tensor]], dict[str, Any]]:
    return lambda tensors: {**tensors, name: change(tensors[name])}


def poke(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[1] = value
        return tensor

    return change


BAD: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Any]], str]] = {
    "nan": (on("head.bias", poke(torch.nan)), "has NaN at 'head.bias'"),
    "infinity": (on("fc1.weight", poke(torch.inf)), "has an infinite value at 'fc1.weight'"),
    "minus infinity": (on("fc1.weight", poke(-torch.inf)), "has an infinite value at 'fc1.weight'"),
    "overflow": (on("head.weight", poke(3e38)), "overflows at 'head.weight'"),
    "all zero": (lambda ts: {name: torch.zeros_like(t) for name, t in ts.items()}, "is all zero"),
    "empty": (lambda ts: {}, "is empty"),
    "wrong type": (on("head.bias", lambda t: t.double()), "has type torch.float64 at 'head.bias'"),
    "(1,) for (n,)": (on("head.bias", lambda t: t[:1]), "has shape (1,) at 'head.bias', expected (5,)"),
    "transposed": (on("head.weight", lambda t: t.T), "has shape (8, 5) at 'head.weight', expected (5, 8)"),
    "missing tensor": (lambda ts: {n: t for n, t in ts.items() if n != "fc1.bias"}, "lacks tensor 'fc1.bias'"),
    "extra tensor": (lambda ts: {**ts, "extra": torch.ones(1)}, "has an unknown tensor 'extra'"),
    "renamed tensor": (lambda ts: {f"_{n}": t for n, t in ts.items()}, "lacks tensor 'fc1.weight'"),
    "whole numbers": (on("head.bias", lambda t: t.to(torch.int8)), "has type torch.int8 at 'head.bias'"),
    "sparse": (on("head.bias", lambda t: t.to_sparse()), "other than a plain tensor at 'head.bias'"),
    "a list": (on("head.bias", lambda t: t.tolist()), "other than a plain tensor at 'head.bias'"),
    "nothing": (on("head.bias", lambda t: None), "other than a plain tensor at 'head.bias'"),
}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_is_left_out_and_the_round_goes_on_without_it(what: str, algorithm: Any) -> None:
    change, says = BAD[what]
    training = LocalTraining(batch_size=4, algorithm=algorithm)

    def tamper(index: int, message: Message) -> Message:
        return replace(message, tensors=change(dict(message.tensors))) if index == 1 else message

    trace = MemoryTrace()
    made = federation(training=training, tamper=tamper, recorder=trace)
    rounds = made.run()
    kind = "update" if algorithm == "fedavg" else "gradient"
    assert [done.clients for done in rounds] == [(0, 2, 3)] * 2
    for done in rounds:
        (event,) = done.events
        assert (event.round, event.party) == (done.number, "client:1")
        assert event.what.startswith(f"left out: its {kind} ")
        assert says in event.what
    assert trace.events == [event for done in rounds for event in done.events]
    assert is_finite(made.model)
    # The others are added up as if the bad client had not been selected.
    for done in trace.messages("aggregate"):
        total = sum(int(m.info["examples"]) for m in trace.messages(kind, round=done.round) if m.sender != "client:1")
        assert done.info["clients"] == 3
        assert done.info["examples"] == total
        for name, tensor in done.tensors.items():
            others = [m for m in trace.messages(kind, round=done.round) if m.sender != "client:1"]
            mean = sum(int(m.info["examples"]) / total * m.tensors[name] for m in others)
            torch.testing.assert_close(tensor, mean)


ENVELOPES: dict[str, dict[str, Any]] = {
    "another's name": {"sender": "client:0"},
    "the server's name": {"sender": "server"},
    "a path for a name": {"sender": "../../client"},
    "another kind": {"kind": "model"},
    "another round": {"round": 7},
    "another receiver": {"receiver": "all"},
    "no examples": {"info": {}},
    "zero examples": {"info": {"examples": 0}},
    "negative examples": {"info": {"examples": -13}},
    "examples without end": {"info": {"examples": float("inf")}},
    "no number": {"info": {"examples": float("nan")}},
    "words": {"info": {"examples": "thirteen"}},
}


@pytest.mark.parametrize("what", ENVELOPES)
def test_an_update_that_lies_about_itself_is_left_out(what: str) -> None:
    def tamper(index: int, message: Message) -> Message:
        return replace(message, **ENVELOPES[what]) if index == 1 else message

    trace, rounds = recorded(tamper=tamper)
    assert [done.clients for done in rounds] == [(0, 2, 3)] * 2
    assert {event.party for event in trace.events} == {"client:1"}
    assert [m.sender for m in trace.messages("update", round=0)] == ["client:0", "client:2", "client:3"]
    assert [m.sender for m in trace.messages("model")] == ["server", "server"]


def test_updates_that_are_sound_alone_and_overflow_together_leave_the_model_as_it_is() -> None:
    def tamper(index: int, message: Message) -> Message:
        return replace(message, tensors={name: torch.full_like(t, 1e18) for name, t in message.tensors.items()})

    start = state(network())
    made = federation(tamper=tamper, server_lr=1e25, rounds=1)
    (done,) = made.run()
    assert done.events[-1] == Event(0, "server", "the sum of sound updates overflows; the model stays as it is")
    assert all(torch.equal(start[name], tensor) for name, tensor in state_of(made.model).items())


def test_when_all_updates_are_bad_the_model_stays_as_it_is() -> None:
    def tamper(index: int, message: Message) -> Message:
        return replace(message, tensors={name: t * torch.nan for name, t in message.tensors.items()})

    start = state(network())
    trace = MemoryTrace()
    made = federation(tamper=tamper, recorder=trace)
    rounds = made.run()
    assert [done.clients for done in rounds] == [(), ()]
    assert [event.what for event in rounds[0].events].count("left out: its update has NaN at 'fc1.weight'") == 4
    assert rounds[0].events[-1] == Event(0, "server", "no sound update arrived; the model stays as it is")
    assert all(torch.equal(start[name], tensor) for name, tensor in state_of(made.model).items())
    assert list(trace.messages("aggregate")) == []
    assert not trace.truth().has(Origin(0, "aggregator"), "label_counts")


# Who takes part.


def test_clients_are_sampled_evenly_and_never_twice_a_round() -> None:
    clients = [blobs(4, seed) for seed in range(10)]
    rounds = federation(clients, clients_per_round=3, rounds=200).run()
    assert all(len(set(done.clients)) == 3 and list(done.clients) == sorted(done.clients) for done in rounds)
    times = torch.bincount(torch.tensor([index for done in rounds for index in done.clients]), minlength=10)
    # 600 places over 10 clients: 60 each, standard deviation 6.5; all ten within 4.5 but for one run in 15,000.
    assert int(times.min()) > 30
    assert int(times.max()) < 90
    assert len({done.clients for done in rounds}) > 60


def test_drop_outs_happen_as_often_as_asked_and_are_events() -> None:
    clients = [blobs(4, seed) for seed in range(10)]
    rounds = federation(clients, drop_out=0.3, rounds=100).run()
    silent = [event for done in rounds for event in done.events if event.what == "did not answer"]
    assert 230 < len(silent) < 370  # 300 expected, standard deviation 14.5
    for done in rounds:
        named = {event.party for event in done.events if event.what == "did not answer"}
        assert named == {f"client:{index}" for index in range(10) if index not in done.clients}
    assert len({len(done.clients) for done in rounds}) > 3


def test_a_client_that_does_not_answer_sends_nothing_and_weighs_nothing() -> None:
    trace, rounds = recorded(drop_out=0.5, rounds=6)
    for done in rounds:
        assert [m.sender for m in trace.messages("update", round=done.number)] == [f"client:{i}" for i in done.clients]
        for message in trace.messages("aggregate", round=done.number):
            assert message.info["examples"] == sum(SIZES[index] for index in done.clients)


def test_a_round_in_which_nobody_answers_leaves_the_model_as_it_is() -> None:
    trace, rounds = recorded(drop_out=0.999999, rounds=2)
    assert [done.clients for done in rounds] == [(), ()]
    assert [m.kind for m in trace.messages()] == ["model", "model"]
    assert rounds[0].events[-1].what == "no sound update arrived; the model stays as it is"
    first, second = trace.messages("model")
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


# Secure aggregation.


def test_under_secure_aggregation_nobody_sees_a_single_update_and_the_sum_is_the_sum() -> None:
    plain, _ = recorded()
    secure, _ = recorded(secure_aggregation=True)
    with pytest.raises(NotVisible):
        secure.view(CURIOUS_SERVER_SECAGG).get("update")
    for threat in (CURIOUS_SERVER, EAVESDROPPER):
        assert secure.view(threat).get("update") == []
        assert len(plain.view(threat).get("update")) == 8
    sums = secure.view(CURIOUS_SERVER_SECAGG).get("aggregate")
    assert len(sums) == 2
    for message in sums:
        updates = list(plain.messages("update", round=message.round))
        total = sum(int(update.info["examples"]) for update in updates)
        assert message.info == {"clients": 4, "examples": total, "of": "update"}
        for name, tensor in message.tensors.items():
            mean = sum(int(update.info["examples"]) / total * update.tensors[name] for update in updates)
            torch.testing.assert_close(tensor, mean)


def test_secure_aggregation_changes_who_sees_and_not_what_is_learnt() -> None:
    plain, secure = federation(), federation(secure_aggregation=True)
    plain.run(), secure.run()
    for name, tensor in state_of(plain.model).items():
        assert torch.equal(tensor, state_of(secure.model)[name])


# The truth.


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (LocalTraining(batch_size=4), "all"),
        (LocalTraining(batch_size=4, epochs=3), "all"),
        (LocalTraining(batch_size=4, steps=2), 8),
        (LocalTraining(batch_size=10, steps=3), 30),
        (LocalTraining(batch_size=6, algorithm="fedsgd"), 6),
    ],
)
def test_the_truth_is_the_labels_that_one_pass_trained_on(training: LocalTraining, expected: Any) -> None:
    clients = ragged_clients(SIZES)
    trace, _ = recorded(clients, training=training)
    truth = trace.truth()
    for number in (0, 1):
        total = torch.zeros(CLASSES, dtype=torch.int64)
        for index, examples in enumerate(clients):
            counts = truth.get(Origin(number, f"client:{index}"), "label_counts")
            used = training.used(len(examples), training_rng(3, number, index))
            assert counts.tolist() == torch.bincount(examples.y[used], minlength=CLASSES).tolist()
            assert int(counts.sum()) == (len(examples) if expected == "all" else expected)
            total += counts
        assert truth.get(Origin(number, "aggregator"), "label_counts").tolist() == total.tolist()


def test_the_truth_of_the_sum_leaves_out_who_was_left_out() -> None:
    def tamper(index: int, message: Message) -> Message:
        return replace(message, tensors={}) if index == 1 else message

    trace, _ = recorded(tamper=tamper)
    truth = trace.truth()
    others = sum(truth.get(Origin(0, f"client:{index}"), "label_counts") for index in (0, 2, 3))
    assert isinstance(others, Tensor)
    assert truth.get(Origin(0, "aggregator"), "label_counts").tolist() == others.tolist()
    assert truth.has(Origin(0, "client:1"), "label_counts"), "what it sent can still be attacked"


def test_the_samples_a_message_announces_are_those_of_the_truth() -> None:
    for training in (TRAINING, LocalTraining(batch_size=4, steps=3), LocalTraining(batch_size=6, algorithm="fedsgd")):
        trace, _ = recorded(training=training)
        for message in trace.messages():
            if message.kind != "model":
                counts = trace.truth().get(Origin(message.round, message.sender), "label_counts")
                assert message.info["examples"] == int(counts.sum())


# Recording.


def test_recording_changes_no_training_and_holds_what_keep_names() -> None:
    keep = Keep(
        kinds=frozenset({"update"}), rounds=frozenset({1}), clients=frozenset({"client:2"}), tensors=("head.*",)
    )
    trace = MemoryTrace(keep=keep)
    with_it, without = federation(recorder=trace), federation()
    with_it.run(), without.run()
    for name, tensor in state_of(with_it.model).items():
        assert torch.equal(tensor, state_of(without.model)[name])
    (message,) = trace.messages()
    assert (message.round, message.sender, set(message.tensors)) == (1, "client:2", {"head.weight", "head.bias"})


def test_the_model_of_a_round_is_recorded_before_it_changes() -> None:
    trace, _ = recorded(rounds=2)
    first, second = trace.messages("model")
    (step, _) = trace.messages("aggregate")
    for name in first.tensors:
        torch.testing.assert_close(first.tensors[name] + step.tensors[name], second.tensors[name])


# Defenses on the wire.


@final
@dataclass(frozen=True)
class ScriptedDefense(Defense):
    """Refuses, repairs or accepts; halves what is sent; trains with another learning rate."""

    name: ClassVar[str] = "guard"
    title: ClassVar[str] = "For tests"
    action: str = "accept"

    def incoming(self, message: Message, previous: Message | None, client: ClientContext) -> Verdict:
        if self.action == "refuse later":
            return ACCEPT if previous is None else Verdict("refuse", "seen before")
        if self.action == "repair":
            return Verdict("repair", "zeroed", replace(message, tensors={n: t * 0 for n, t in message.tensors.items()}))
        return Verdict("refuse", "no trust") if self.action == "refuse" else ACCEPT

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        return replace(message, tensors={name: tensor / 2 for name, tensor in message.tensors.items()})

    def local(self, training: LocalTraining) -> LocalTraining:
        return replace(training, lr=2 * training.lr) if self.action == "faster" else training


def test_a_defense_changes_what_leaves_the_client() -> None:
    plain, _ = recorded(rounds=1)
    halved, _ = recorded(rounds=1, defenses=(ScriptedDefense(),))
    for one, other in zip(plain.messages("update"), halved.messages("update"), strict=True):
        assert all(torch.equal(one.tensors[name] / 2, other.tensors[name]) for name in one.tensors)


def test_a_defense_changes_the_training() -> None:
    training = LocalTraining(batch_size=100)  # one step: twice the rate is twice the update
    plain, _ = recorded(rounds=1, training=training)
    faster, _ = recorded(rounds=1, training=training, defenses=(ScriptedDefense("faster"),))
    for one, other in zip(plain.messages("update"), faster.messages("update"), strict=True):
        assert all(torch.allclose(one.tensors[n], other.tensors[n], atol=1e-6) for n in one.tensors)


def test_a_defense_that_refuses_keeps_its_client_out() -> None:
    trace, rounds = recorded(defenses=(ScriptedDefense("refuse"),))
    assert [done.clients for done in rounds] == [(), ()]
    assert [event.what for event in rounds[0].events[:4]] == ["guard: refuse, no trust"] * 4
    assert {(event.defense, event.action) for event in rounds[0].events[:4]} == {("guard", "refuse")}
    assert list(trace.messages("update")) == []


def test_a_defense_sees_the_model_it_accepted_before() -> None:
    _, rounds = recorded(defenses=(ScriptedDefense("refuse later"),))
    assert [done.clients for done in rounds] == [(0, 1, 2, 3), ()]


def test_a_defense_that_repairs_has_its_client_train_on_what_it_made() -> None:
    trace, rounds = recorded(rounds=1, defenses=(ScriptedDefense("repair"),))
    assert rounds[0].clients == (0, 1, 2, 3)
    assert [event.what for event in rounds[0].events] == ["guard: repair, zeroed"] * 4
    # A network of zeros moves nothing but its last bias.
    for message in trace.messages("update"):
        assert not bool(message.tensors["fc1.weight"].any())
        assert bool(message.tensors["head.bias"].any())


# Settings.


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0},
        {"clients_per_round": 0},
        {"drop_out": 1.0},
        {"drop_out": -0.1},
        {"drop_out": float("nan")},
        {"server_lr": 0.0},
        {"server_lr": float("nan")},
        {"server_lr": float("inf")},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Settings(**options)


def test_a_misspelt_weighting_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'uniform'"):
        Settings(weighting="unifrom")  # type: ignore[arg-type]


def test_too_few_clients_and_negative_seeds_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one client"):
        federation([])
    with pytest.raises(UsageError, match="9 clients per round were asked for, there are 4"):
        federation(clients_per_round=9)
    with pytest.raises(UsageError, match="seed"):
        federation(seed=-1).run()


class Closing(Recorder):
    """Notes whether it was finished, and nothing else."""

    def __init__(self) -> None:
        self.finished = False

    def say(self, message: Message) -> None: ...

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None: ...

    def note_event(self, event: Event) -> None: ...

    def end_round(self, number: int) -> None: ...

    def finish(self) -> None:
        self.finished = True


def test_only_a_federation_that_came_to_its_end_finishes_its_recording() -> None:
    recorder = Closing()
    Horizontal(network(), ragged_clients(), Settings(rounds=1), 3, CLASSES, recorder).run()
    assert recorder.finished

    def tamper(index: int, message: Message) -> Message:
        raise RuntimeError("out of memory")

    recorder = Closing()
    with pytest.raises(RuntimeError, match="out of memory"):
        federation(recorder=recorder, tamper=tamper).run()
    assert not recorder.finished


def test_updates_looked_at_together_are_judged_and_recorded_as_one_by_one() -> None:
    """As on a GPU, where each look would wait for it."""

    def tamper(index: int, message: Message) -> Message:
        if index == 1:
            return replace(message, tensors={name: t * torch.nan for name, t in message.tensors.items()})
        if index == 2:
            return replace(message, sender="client:0")
        return replace(message, tensors={"other": torch.zeros(2)}) if index == 3 else message

    traces, results = [], []
    for together in (1, 3):
        trace = MemoryTrace()
        made = federation(ragged_clients((7, 13, 16, 9, 8)), tamper=tamper, recorder=trace)
        made._looked_at_together = together
        results.append(made.run())
        traces.append(list(trace.messages()))
    assert results[0] == results[1]
    assert {event.party for event in results[0][0].events} == {"client:1", "client:2", "client:3"}
    for one, other in zip(*traces, strict=True):
        assert (one.round, one.sender, one.kind, one.info) == (other.round, other.sender, other.kind, other.info)
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(one.tensors[n], other.tensors[n]) or one.sender == "client:1" for n in one.tensors)
