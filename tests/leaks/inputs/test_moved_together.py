"""Samples of several epochs that are moved together from their mean."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.explained_update import room_for_rounding
from fedspill.leaks.inputs.exact.mean_weights import mean_share, one_step_at
from fedspill.leaks.inputs.exact.moved_together import counted_labels, front_of, mean_fed, moved_together
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.trace import Origin
from fedspill.training import Schedule

SAMPLES, CLASSES, EPOCHS = 4, 12, 4


def dense(outputs: int = CLASSES, *, last_bias: bool = True) -> nn.Module:
    torch.manual_seed(3)
    head = nn.Linear(40, outputs, bias=last_bias)
    return nn.Sequential(nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), head)


def convolution() -> nn.Module:
    torch.manual_seed(3)
    upper = [nn.Linear(8 * 36, 48), nn.ReLU(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, CLASSES)]
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), *upper)


def on_white_ground(labels: list[int], shape: tuple[int, ...] = (36,)) -> tuple[Tensor, Tensor]:
    """Samples that have most of their norm in common."""
    rng = torch.Generator().manual_seed(11)
    strokes = (torch.rand(len(labels), *shape, generator=rng) < 0.2).float()
    return 1 - strokes * torch.rand(strokes.shape, generator=rng), torch.tensor(labels)


def sent_by(model: nn.Module, x: Tensor, y: Tensor, lr: float) -> AttackedMessage:
    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        logits = own(x)
        if logits.shape[1] == 1:
            nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.float()).backward()
        else:
            nn.functional.cross_entropy(logits, y).backward()
        optimizer.step()
    after = own.state_dict()
    sent = {name: (tensor.double() - after[name].double()) / lr for name, tensor in model.state_dict().items()}
    schedule = Schedule(len(x), len(x), EPOCHS)
    return AttackedMessage(Origin(0, "client:0"), model.double().eval(), sent, schedule, lr, plain=True)


def errors(found: Tensor, x: Tensor) -> Tensor:
    """(B,) how far each sample's nearest one is, as a share of how far samples lie from their mean."""
    x = x.double().flatten(1)
    return torch.cdist(x, found.flatten(1)).min(1).values / (x - x.mean(0)).norm(dim=1).mean()


def counted(model: nn.Module, labels: list[int], classes: int) -> list[int]:
    message = sent_by(model, *on_white_ground(labels), lr=0.05)
    middle = one_step_at(message, mean_share(message))
    front = front_of(middle, (36,))
    told: list[int] = counted_labels(middle, front, mean_fed(middle, front), classes).tolist()
    return told


def test_labels_are_counted_in_what_the_last_layer_is_told() -> None:
    assert counted(dense(), [5, 1, 5, 9], CLASSES) == [1, 5, 5, 9]
    assert counted(dense(last_bias=False), [5, 1, 5, 9], CLASSES) == [1, 5, 5, 9]
    assert sorted(counted(dense(outputs=1), [0, 1, 1, 1], 2)) == [0, 1, 1, 1]


def test_the_mean_that_the_first_layer_shows_is_one_of_the_samples() -> None:
    x, y = on_white_ground([5, 1, 7, 9])
    middle = one_step_at(message := sent_by(dense(), x, y, lr=0.05), mean_share(message))
    mean = mean_fed(middle, front_of(middle, (36,)))
    assert float((mean - x.mean(0)).norm()) < 0.5 * float(x.mean(0).norm())


@pytest.mark.parametrize(("labels", "lr"), [([5, 1, 7, 9], 0.05), ([5, 1, 5, 9], 0.05), ([5, 1, 7, 9], 0.2)])
def test_samples_come_back_from_their_mean_alone(labels: list[int], lr: float) -> None:
    x, y = on_white_ground(labels)
    message, nothing_read = sent_by(dense(), x, y, lr), torch.zeros(0, 36, dtype=torch.float64)
    found = moved_together(message, (36,), CLASSES, torch.Generator().manual_seed(0), nothing_read)
    assert found.missed < room_for_rounding(message)
    assert bool((errors(found.x, x) < 0.02).all())
    assert found.labels.tolist() == sorted(labels)


def test_a_head_that_is_frozen_over_several_epochs_is_refused_in_words() -> None:
    model = dense()
    model.get_parameter("4.weight").requires_grad_(False)
    message = sent_by(model, *on_white_ground([5, 1, 7, 9]), lr=0.05)
    kept = {name: sent for name, sent in message.gradients.items() if name != "4.weight"}
    rng = torch.Generator().manual_seed(0)
    found = recover_exactly(dataclasses.replace(message, gradients=kept), (36,), CLASSES, RootSearchEffort(), rng)
    assert not len(found.samples)
    assert "4.weight" in found.why


def test_behind_convolutions_the_drift_of_what_is_fed_is_followed() -> None:
    x, y = on_white_ground([5, 1, 7, 9], (1, 6, 6))
    message, nothing_read = sent_by(convolution(), x, y, 0.03), torch.zeros(0, 1, 6, 6, dtype=torch.float64)
    found = moved_together(message, (1, 6, 6), CLASSES, torch.Generator().manual_seed(0), nothing_read)
    assert found.missed < room_for_rounding(message)
    assert bool((errors(found.x, x) < 0.002).all())  # 0.006 where the layer is taken to be fed the same at every step


def test_samples_that_were_read_take_the_place_of_those_near_them() -> None:
    x, y = on_white_ground([5, 1, 7, 9])
    wrong = x.mean(0).expand(2, -1) + 1
    message, read = sent_by(dense(), x, y, 0.05), torch.cat([wrong, x[:2]]).double()
    found = moved_together(message, (36,), CLASSES, torch.Generator().manual_seed(1), read)
    assert bool((errors(found.x, x) < 0.02).all())
