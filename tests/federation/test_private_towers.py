"""Private towers: who is sent what, that training together equals training one network, and where defenses act."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.errors import UsageError
from fedspill.federation.local import state_of
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings
from fedspill.messages import Message
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import ACTIVE_PARTY, CURIOUS_PARTY, OF_PRIVATE_TOWERS, VERTICAL_SERVER
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import LocalTraining

SAMPLES, COLUMNS, CLASSES, BATCH = 24, 10, 3, 6


def table(seed: int = 0) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, COLUMNS, generator=rng)
    return Examples(x, (x[:, 0] > 0).long() + (x[:, 5] > 0).long())


def network(**options: Any) -> VerticalNet:
    made = make("models", "vertical-mlp", {"widths": (8, 4), "head_widths": (6,), **options})
    return vertical_net(made.build((COLUMNS,), CLASSES, seed=2))


def federate(net: VerticalNet | None = None, **settings: Any) -> tuple[MemoryTrace, PrivateTowers]:
    trace = MemoryTrace({"classes": CLASSES})
    chosen = PrivateTowerSettings(
        **{"rounds": 8, "training": LocalTraining(batch_size=BATCH, lr=0.1, momentum=0.5), **settings}
    )
    made = PrivateTowers(net or network(), table(), chosen, 3, trace)
    made.run()
    return trace, made


@pytest.mark.parametrize("parties", [1, 2, 5, 8])
def test_parties_train_together_what_one_network_would_learn(parties: int) -> None:
    """An oracle: the joint network, trained on whole rows by one optimizer."""
    net, together = network(parties=parties), network(parties=parties)
    _, made = federate(net)
    optimizer = torch.optim.SGD(together.parameters(), 0.1, 0.5)
    for batch in made.batches:
        own = table().take(batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(together(own.x), own.y).backward()
        optimizer.step()
    trained = state_of(made.model.net)
    for name, tensor in state_of(together).items():
        assert torch.allclose(trained[name], tensor, atol=1e-5), name
    assert torch.allclose(made.model.eval()(table().x), together.eval()(table().x), atol=1e-4)


def heard(trace: MemoryTrace) -> set[tuple[str, str, str]]:
    return {(message.kind, message.sender, message.receiver) for message in trace.messages()}


def test_the_last_tower_is_the_active_party_s_own_and_nothing_of_it_travels() -> None:
    trace, _ = federate(network(parties=3), predictions=12, hand_over=True)
    assert heard(trace) == {
        ("batch", "server", "all"),
        *(("embedding", f"party:{p}", "server") for p in (0, 1)),
        *(("returned", "server", f"party:{p}") for p in (0, 1)),
        *(("model", f"party:{p}", f"party:{p}") for p in (0, 1)),
        *(("model", f"party:{p}", "server") for p in (0, 1)),
        ("model", "server", "server"),
        ("prediction", "aggregator", "server"),
    }


def test_one_tower_and_a_server_is_split_learning() -> None:
    trace, _ = federate(network(parties=1))
    assert ("embedding", "party:0", "server") in heard(trace)
    assert ("returned", "server", "party:0") in heard(trace)


def test_a_secure_sum_shows_predictions_and_nothing_of_single_parties() -> None:
    trace, _ = federate(predictions=6, secure_sum=True)
    assert {kind for kind, _, _ in heard(trace)} == {"batch", "model", "prediction"}


def test_a_party_sees_its_own_tower_and_gradients_and_nothing_of_another_party() -> None:
    trace, _ = federate(network(parties=3), hand_over=True)
    view = trace.view(CURIOUS_PARTY, me=CURIOUS_PARTY.me)
    assert {message.receiver for message in view.get("returned")} == {"party:0"}
    assert {message.sender for message in view.get("embedding")} == {"party:0"}
    assert {name.split(".")[1] for message in view.get("model") for name in message.tensors} == {"0"}
    active = trace.view(ACTIVE_PARTY, me=ACTIVE_PARTY.me)
    assert {message.sender for message in active.get("embedding")} == {"party:0", "party:1"}
    assert not VERTICAL_SERVER.sees_message(next(trace.messages("returned")), None)


def test_towers_that_are_not_handed_over_stay_unseen() -> None:
    trace, _ = federate(predictions=6)
    for threat in OF_PRIVATE_TOWERS:
        view = trace.view(threat, me=threat.me)
        towers = {n.split(".")[1] for m in view.get("model") for n in m.tensors if n.startswith("towers")}
        assert towers == ({"1"} if threat.me == "server" else {"0"}), threat.name


def test_the_truth_of_a_round_is_its_batch_in_order() -> None:
    trace, made = federate(predictions=6)
    truth = trace.truth().beside([made.examples])
    for number, batch in enumerate(made.batches):
        assert torch.equal(truth.get(Origin(number, "server"), "input_labels"), table().y[batch])
    assert torch.equal(truth.get(Origin(len(made.batches), "server"), "inputs"), table().x[:6])


@dataclass(frozen=True)
class Doubled(Defense):
    """Doubles what it is given, to see where it is asked."""

    name: ClassVar[str] = "doubled"
    title: ClassVar[str] = "Doubled"

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        if message.kind != "embedding":
            return message
        return replace(message, tensors={name: 2 * tensor for name, tensor in message.tensors.items()})

    def returned(self, message: Message, labels: Tensor, rng: torch.Generator) -> Message:
        assert len(labels) == len(message.tensors["gradient"])
        return replace(message, tensors={name: 3 * tensor for name, tensor in message.tensors.items()})

    def labels(self, labels: Tensor, classes: int, rng: torch.Generator) -> Tensor:
        return (labels + 1) % classes


def test_defenses_act_on_embeddings_on_returned_gradients_and_on_labels() -> None:
    net = network()
    plain, _ = federate(net, rounds=1)
    defended, made = federate(net, rounds=1, defenses=(Doubled(),))
    (honest,), (doubled,) = (
        [message.tensors["output"] for message in trace.messages("embedding")] for trace in (plain, defended)
    )
    assert torch.allclose(doubled, 2 * honest)
    (back,) = [message.tensors["gradient"] for message in defended.messages("returned")]
    batch = made.batches[0]
    own = net.parts.split(table().x[batch])
    embedding = (2 * net.tower(0)(own[0])).detach().requires_grad_()
    loss = nn.functional.cross_entropy(net.top([embedding, net.tower(1)(own[1])]), (table().y[batch] + 1) % CLASSES)
    (expected,) = torch.autograd.grad(loss, [embedding])
    assert torch.allclose(back, 3 * expected, atol=1e-6)
    # What is served is defended too.
    outputs = [2 * made.model.net.tower(0)(own[0]), made.model.net.tower(1)(own[1])]
    assert torch.allclose(made.model(table().x[batch]), made.model.net.top(outputs), atol=1e-5)


def test_every_party_may_have_an_optimizer_of_its_own() -> None:
    frozen = LocalTraining(lr=1e-12, batch_size=BATCH)
    usual = LocalTraining(lr=0.1, batch_size=BATCH)
    net = network()
    _, made = federate(net, optimizers=(frozen, usual, usual))
    before, after = state_of(net), state_of(made.model.net)
    moved = {
        name.split(".")[0] + name.split(".")[1] for name in before if not torch.allclose(before[name], after[name])
    }
    assert "towers1" in moved
    assert "towers0" not in moved
    with pytest.raises(UsageError, match="for 2 parties and the head"):
        federate(net, optimizers=(usual,))


def test_a_malicious_party_goes_further_and_the_others_do_not_know() -> None:
    net = network()
    moved = []
    for malicious in (False, True):
        made = PrivateTowers(
            net, table(), PrivateTowerSettings(rounds=3, training=LocalTraining(batch_size=24, lr=0.05)), 3,
            malicious=malicious,
        )  # fmt: skip
        made.run()
        change = [
            made.model.net.state_dict()[name] - net.state_dict()[name]
            for name in net.state_dict()
            if name.startswith("towers.0.")
        ]
        moved.append(sum(float(part.square().sum()) for part in change) ** 0.5)
    assert moved[1] > 1.3 * moved[0]


def test_what_is_for_clients_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="dp-sgd changes how clients train"):
        PrivateTowerSettings(defenses=(make("defenses", "dp-sgd"),))
