"""The vertical federation: what parties send is what they would, what is unsound is left out by name."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from vertical_kit import BATCH, ROUNDS, SAMPLES, digits, federate, network, plain

from fedspill.dataset import Examples
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.errors import UsageError
from fedspill.federation.batches import circulant, membership, plan_batches, twins
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.messages import Message
from fedspill.models.vertical import Columns, owner
from fedspill.trace import Origin
from fedspill.training import LocalTraining, gradient


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_party_sends_the_gradient_of_its_own_tower_and_nothing_else() -> None:
    net = network()
    trace, made, _ = federate(net, rounds=1, labels="party")
    whole = gradient(net, digits().take(made.batches[0]))
    sent = {m.sender: m.tensors for m in trace.messages("gradient")}
    assert sorted(sent) == ["party:0", "party:1", "party:2", "party:3", "party:4"]
    assert {name for tensors in sent.values() for name in tensors} == set(whole)
    for sender, tensors in sent.items():
        for name, tensor in tensors.items():
            assert owner(name) == (None if sender == "party:4" else int(sender[-1]))
            torch.testing.assert_close(tensor, whole[name])


def test_with_labels_at_the_server_the_heads_gradient_stays_there() -> None:
    trace, _, _ = federate(rounds=2)
    assert all(not name.startswith("head") for m in trace.messages("gradient") for name in m.tensors)
    assert not list(trace.messages("embedding"))
    with_outputs, _, _ = federate(rounds=1, embeddings=True)
    assert [tuple(m.tensors["output"].shape) for m in with_outputs.messages("embedding")] == [(BATCH, 10)] * 4


def test_a_model_that_stands_still_is_sent_once_and_one_that_is_trained_every_round() -> None:
    assert len(list(federate(rounds=3)[0].messages("model"))) == 1
    trace, made, _ = federate(rounds=3, static=False)
    models = list(trace.messages("model"))
    assert len(models) == 3
    net = network()
    for number in range(2):
        step = gradient(net, digits().take(made.batches[number]))
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter -= 0.05 * step[name]
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(models[2].tensors[name], parameter.detach())


def test_each_sample_belongs_to_the_first_round_that_used_it_and_no_input_is_written_down() -> None:
    trace, _, _ = federate()
    facts = trace.truth().facts
    assert {name for _, name in facts} == {"used_samples"}
    places = torch.cat([value for value in facts.values()])
    assert sorted(places[:, 1].tolist()) == list(range(SAMPLES))
    truth = trace.truth().beside([digits()])
    first = trace.truth().facts[Origin(0, "server"), "used_samples"][:, 1]
    assert torch.equal(truth.get(Origin(0, "server"), "inputs"), digits().x[first])


def test_an_unsound_party_is_left_out_by_name_and_the_others_go_on() -> None:
    def spoil(index: int, message: Message) -> Message:
        if index != 2:
            return message
        return replace(message, tensors={name: torch.full_like(t, torch.nan) for name, t in message.tensors.items()})

    _, made, rounds = federate(rounds=2, static=False, tamper=spoil)
    assert rounds[0].clients == (0, 1, 3)
    assert [(e.party, e.what[:35]) for e in rounds[0].events] == [("party:2", "left out: its gradient has NaN at '")]
    before, after = network().state_dict(), made.model.state_dict()
    assert torch.equal(before["towers.2.first.weight"], after["towers.2.first.weight"])
    assert not torch.equal(before["towers.1.first.weight"], after["towers.1.first.weight"])


def test_defenses_act_on_every_partys_message() -> None:
    clean, _, _ = federate(rounds=1)
    noisy, _, _ = federate(rounds=1, defenses=(ClipNoise(clip=None, sigma=1.0),))
    for one, other in zip(clean.messages("gradient"), noisy.messages("gradient"), strict=True):
        assert float((other.tensors[f"towers.{one.sender[-1]}.first.weight"]).std()) > 0.9
        assert one.tensors.keys() == other.tensors.keys()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ([torch.tensor([1, 1, 2])], "1 indices repeat"),
        ([torch.tensor([0, SAMPLES])], f"0 to {SAMPLES} of {SAMPLES}"),
        ([torch.tensor([-1, 2])], "-1 to 2"),
        ([torch.tensor([0.5])], "whole sample indices"),
    ],
)
def test_batches_that_make_no_sense_are_refused(plan: list[Tensor], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        federate(plan=plan)


def test_a_batch_larger_than_the_data_and_a_model_without_towers_are_refused() -> None:
    with pytest.raises(UsageError, match="A batch of 30 cannot be drawn from 24"):
        federate(batch=30)
    with pytest.raises(UsageError, match="towers and a head"):
        Vertical(torch.nn.Linear(64, 10), digits(), VerticalSettings(training=LocalTraining(batch_size=4)), 0)


@pytest.mark.parametrize(("samples", "size"), [(800, 40), (100, 7), (23, 5), (60, 25)])
def test_chosen_epochs_use_every_sample_once_and_leave_no_twins(samples: int, size: int) -> None:
    rounds = -(-samples // size)
    epochs = 3 if rounds**2 * rounds >= samples and samples / rounds**2 <= rounds else 4
    batches = plan_batches("anti-twins", samples, size, epochs * rounds, rng())
    used = membership(batches, samples)
    assert bool((used.sum(0) == epochs).all())
    assert max(len(batch) for batch in batches) <= size
    assert twins(batches, samples) == []
    assert len(twins(plan_batches("anti-twins", samples, size, rounds, rng()), samples)) > 0


def test_a_circulant_plan_is_one_batch_shifted_and_far_from_singular() -> None:
    used = membership(circulant(40, 6, rng()), 40)
    assert torch.equal(used[1:], used[:-1].roll(1, dims=1))
    assert float(torch.linalg.cond(used)) < 100


def test_tables_are_shared_out_by_columns() -> None:
    x = torch.rand(7, 9)
    parts = Columns([[0, 4], [1, 2, 3], [5, 6, 7, 8]])
    assert torch.equal(parts.join(parts.split(x)), x)
    net = plain(parties=3, shape=(9,), classes=2)
    trace, _, _ = federate(net, Examples(x, torch.tensor([0, 1, 0, 1, 1, 0, 1])), batch=3, rounds=2)
    assert len(list(trace.messages("gradient"))) == 6


def test_the_same_seed_asks_for_the_same_samples() -> None:
    first, second = (federate(rounds=ROUNDS, batches="random")[1].batches for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
