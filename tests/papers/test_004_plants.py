"""What the measurements of paper 004 are made of: many rounds at once, and the plant that leaves its own row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spine import network
from torch import nn

from fedspill.data.made_up_people import MadeUpPeople
from fedspill.errors import NotApplicable
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import state_of
from fedspill.planting.closed_form import NeuronDesign
from fedspill.planting.dense_network import DenseNetwork, read_dense_network
from fedspill.planting.targets import Targets
from fedspill.registry import paper_tables
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors

PEOPLE = MadeUpPeople(people=600).load()
SECRET = PEOPLE.columns.index("secret")


def person_net(widths: tuple[int, ...], **options: Any) -> tuple[nn.Module, DenseNetwork, Tensors]:
    model = network(classes=2, features=14, widths=list(widths), logits=1, **options)
    return model, read_dense_network(model), {name: tensor.clone() for name, tensor in state_of(model).items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_many_rounds_at_once_are_the_rounds_of_a_federation(optimizer: Any) -> None:
    model, dense, state = person_net((48, 16), activation="elu", alpha=-2.0)
    clients = [PEOPLE.train.take(part) for part in torch.arange(100).split([13, 40, 47])]
    training = LocalTraining(optimizer=optimizer, lr=0.01, batch_size=10, epochs=2)
    federation = Horizontal(model, clients, Settings(rounds=1, training=training), seed=5, classes=2)
    federation.run()
    stacked = {name: torch.stack([tensor, tensor]) for name, tensor in state.items()}
    found = paper_tables("004").measuring("many_rounds").aggregates(dense, stacked, clients, training, 5, 0)
    for name, tensor in state_of(federation.model).items():
        assert torch.allclose(state[name] + found[name][1], tensor, atol=1e-6)


def test_a_frozen_row_is_left_bit_for_bit_and_relu_networks_are_refused() -> None:
    plant_frozen_row = paper_tables("004").measuring("adaptive_plants").plant_frozen_row
    _, dense, state = person_net((96, 8), activation="elu", alpha=-2.0)
    records = PEOPLE.train.take(torch.arange(4))
    x = records.x.clone()
    x[:, SECRET] = 0
    targets = Targets(x, records.y, 0, SECRET, (SECRET,))
    planted = plant_frozen_row(dense, state, targets, 0, NeuronDesign(), 2000.0, generator(0, "p"))
    assert torch.equal(planted[dense.weight(1)][-1], state[dense.weight(1)][-1])
    assert not torch.equal(planted[dense.weight(0)], state[dense.weight(0)])
    with pytest.raises(NotApplicable, match="negative alpha"):
        plant_frozen_row(person_net((96, 8))[1], state, targets, 0, NeuronDesign(), 2000.0, generator(0, "p"))
