"""Make-believe clients: stacked they send what the federation's own loop sends, and their defenses act."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedspill.dataset import Examples
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.frozen_head import FrozenHead
from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.defenses.mixed_classes import MixedClasses
from fedspill.federation.local import state_of, train
from fedspill.observe.make_believe import Workshop, stacks, train_stack
from fedspill.training import LocalTraining, Tensors

SAMPLES = Examples(torch.rand(12, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)
PLAIN = LocalTraining(lr=0.1, batch_size=4, shuffle=False)
ROWS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 0, 0, 1, 2]])


def network(*between: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 5), *between, nn.ReLU(), nn.Linear(5, 3))


def start_of(model: nn.Module) -> Tensors:
    return {name: tensor.clone() for name, tensor in state_of(model).items()}


@pytest.mark.parametrize(
    ("model", "training"),
    [
        (network(), PLAIN),
        (network(), replace(PLAIN, momentum=0.9, weight_decay=0.01, epochs=2)),
        (network(), replace(PLAIN, optimizer="adam", lr=0.01)),
        (network(nn.BatchNorm1d(5)), PLAIN),
        (network(nn.BatchNorm1d(5)), replace(PLAIN, batch_norm="eval")),
        (network(), replace(PLAIN, algorithm="fedsgd", batch_size=8)),
        (network(), LabelSmoothing(amount=0.3).local(PLAIN)),
        (network(), DpSgd(clip=0.05, noise_multiplier=0.0, sampling="shuffle").local(PLAIN)),
        (network(), DpSgd(clip=0.05, noise_multiplier=0.0).local(replace(PLAIN, batch_size=8))),  # takes every sample
        (network(), FrozenHead().local(PLAIN)),
    ],
)
def test_stacked_clients_send_what_the_loop_sends(model: nn.Module, training: LocalTraining) -> None:
    start = start_of(model)
    assert stacks(model, start, SAMPLES, training)
    names = [name for name, _ in model.named_parameters()]
    together = train_stack(model, start, SAMPLES, list(ROWS), training, names, torch.Generator().manual_seed(0))
    for index, own in enumerate(ROWS):
        alone = train(model, start, SAMPLES.take(own), training, torch.Generator().manual_seed(0))
        for name in names:
            assert torch.allclose(together[name][index], alone[name], atol=1e-5), name


def test_what_cannot_be_stacked_is_trained_one_by_one() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.gru(x.view(len(x), 2, 3))[1][0])
            return logits

    model = Recurrent()
    assert not stacks(model, start_of(model), SAMPLES, PLAIN)
    sent = Workshop(model, PLAIN, SAMPLES).send(start_of(model), ROWS, ["head.bias"], torch.Generator().manual_seed(0))
    assert sent["head.bias"].shape == (2, 3)
    assert bool(sent["head.bias"].any())


def test_a_known_defense_acts_on_what_they_send() -> None:
    model, rng = network(), torch.Generator().manual_seed(0)
    shop = Workshop(model, PLAIN, SAMPLES, (ClipNoise(clip=0.01, sigma=0.0),))
    sent = shop.send(start_of(model), ROWS, [name for name, _ in model.named_parameters()], rng)
    norms = torch.stack([tensor.flatten(1).square().sum(1) for tensor in sent.values()]).sum(0).sqrt()
    assert torch.allclose(norms, torch.full((2,), 0.01), rtol=1e-3)


def test_a_model_that_has_learnt_from_the_samples_is_moved_less_by_them() -> None:
    model, rng = network(), torch.Generator().manual_seed(0)
    shop, start = Workshop(model, PLAIN, SAMPLES), start_of(model)
    assert shop.learnt(start, 0, rng) is start
    learnt = shop.learnt(start, 400, rng)
    before, after = (shop.send(one, ROWS, ["3.bias" if "3.bias" in one else "2.bias"], rng) for one in (start, learnt))
    assert sum(float(t.norm()) for t in after.values()) < 0.7 * sum(float(t.norm()) for t in before.values())


def test_frozen_parameters_stay() -> None:
    model = network()
    model[0].requires_grad_(False)
    sent = Workshop(model, PLAIN, SAMPLES).send(start_of(model), ROWS, ["0.weight"], torch.Generator().manual_seed(0))
    assert not bool(sent["0.weight"].any())


def test_clients_whose_data_a_defense_changes_are_trained_together_too() -> None:
    """Topped-up clients have unequally many samples and steps; each sends what it would have sent alone."""
    model, defense = network(), MixedClasses(level=1.0)
    rows = torch.tensor([[0, 3, 6, 9, 0, 3, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7], [1, 4, 7, 1, 4, 7, 1, 4]])
    shop = Workshop(model, PLAIN, SAMPLES, (defense,))
    start, names = start_of(model), [name for name, _ in model.named_parameters()]
    sent = shop.send(start, rows, names, torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(0)
    for index, own in enumerate(rows):
        topped = shop._examples(own, draws)
        assert len(topped) > 8 or index == 1
        alone = train(model, start, topped, PLAIN, torch.Generator().manual_seed(0))
        for name in names:
            assert torch.allclose(sent[name][index], alone[name], atol=1e-5), (index, name)
