"""Exact routes beside the leading linear pair: one softmax layer, and a linear pair behind convolutions."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.exact.mean_weights import mean_share, one_step_after, one_step_at
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.fedavg_leakage import averaged
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs, guess_of
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.trace import Origin
from fedspill.training import Schedule

CLASSES = 20


def drawn(samples: int, shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(samples, *shape, generator=rng), torch.randint(CLASSES, (samples,), generator=rng)


def attacked(model: nn.Module, x: Tensor, y: Tensor, noise: float = 0.0) -> AttackedMessage:
    """One step of float32 on a batch, as an adversary gets it."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    rng = torch.Generator().manual_seed(5)
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        own = parameter.grad.double()
        gradients[name] = own + noise * own.abs().mean() * torch.randn(own.shape, generator=rng, dtype=torch.float64)
    model.zero_grad()
    schedule = Schedule(len(x), len(x))
    return AttackedMessage(Origin(0, "client:0"), model.double().eval(), gradients, schedule, None, plain=True)


def recovered(message: AttackedMessage, shape: tuple[int, ...]) -> RecoveredInputs:
    return recover_exactly(message, shape, CLASSES, RootSearchEffort(), torch.Generator().manual_seed(1))


def errors(found: RecoveredInputs, x: Tensor) -> Tensor:
    """(k,) of each sample found, relative, from the nearest true one."""
    flat = x.flatten(1).double()
    return torch.cdist(found.samples.flatten(1).double(), flat).min(1).values / flat.norm(dim=1).mean()


def one_layer(features: int) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, CLASSES))


def convolutions(pooled: bool) -> nn.Module:
    torch.manual_seed(3)
    lower: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1)]
    lower += [nn.ReLU(), nn.MaxPool2d(3)] if pooled else [nn.ReLU()]
    features = 16 if pooled else 16 * 9
    upper = [nn.Linear(features, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, CLASSES)]
    return nn.Sequential(*lower, nn.Flatten(), *upper)


def test_one_softmax_layer_gives_a_batch_of_less_than_half_its_classes() -> None:
    for samples in (2, 5, 8):
        x, y = drawn(samples, (40,), seed=samples)
        message = attacked(one_layer(40), x, y)
        found = recovered(message, (40,))
        assert len(found.samples) == samples
        assert bool((errors(found, x) < 1e-3).all())
        assert bool(found.certified.all())
        assert found.labels is not None
        assert sorted(found.labels.tolist()) == sorted(y.tolist())
        assert "read by one softmax layer" in guess_of([message], [found], ()).notes


def test_more_samples_than_one_layer_tells_are_refused_with_their_number() -> None:
    x, y = drawn(9, (40,), seed=1)
    found = recovered(attacked(one_layer(40), x, y), (40,))
    assert not found.tried
    assert "9 samples are too many for one layer of 20 classes, which tells 8" in found.why


def test_the_last_samples_of_one_softmax_layer_are_found_though_they_are_faint() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Flatten(), nn.Linear(120, 60))
    inputs = torch.rand(120) + 0.15 * torch.randn(24, 120) * torch.linspace(1, 0.02, 120)
    found = recovered(attacked(layer, inputs, torch.randint(10, (24,))), (120,))
    assert len(found.samples) == 24
    assert float(torch.cdist(found.samples, inputs.double()).min(1).values.max()) < 1e-2


@pytest.mark.parametrize("noise", [1e-3, 0.3])
def test_one_softmax_layer_with_noise_is_never_vouched_for_falsely(noise: float) -> None:
    x, y = drawn(5, (40,), seed=2)
    found = recovered(attacked(one_layer(40), x, y, noise), (40,))
    if len(found.samples):
        assert not bool((found.certified & (errors(found, x) > 0.03)).any())


def test_images_behind_strided_convolutions_come_back_whole() -> None:
    x, y = drawn(3, (1, 6, 6), seed=4)
    message = attacked(convolutions(pooled=False), x, y)
    found = recovered(message, (1, 6, 6))
    assert bool((errors(found, x) < 1e-3).all())
    assert bool(found.certified.all())
    assert len(found.samples) == 3
    assert found.route == "a linear pair behind convolutions"


def test_a_frozen_layer_behind_convolutions_is_named() -> None:
    x, y = drawn(3, (1, 6, 6), seed=4)
    message = attacked(convolutions(pooled=False), x, y)
    weight = [name for name in message.gradients if name.endswith("weight")][3]  # of the second linear layer
    thawed = {name: gradient for name, gradient in message.gradients.items() if name != weight}
    found = recovered(dataclasses.replace(message, gradients=thawed), (1, 6, 6))
    assert not found.tried
    assert weight in found.why


def dense() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, CLASSES))


def trained(
    samples: int,
    lr: float,
    epochs: int,
    batch: int,
    momentum: float = 0.0,
    model: nn.Module | None = None,
    shape: tuple[int, ...] = (30,),
) -> tuple[AttackedMessage, Tensor]:
    """What a client sends after some epochs, by its own float32 arithmetic."""
    x, y = drawn(samples, shape, seed=7)
    model = model or dense()
    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr, momentum)
    for _ in range(epochs):
        for part in torch.arange(samples).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(x[part]), y[part]).backward()
            optimizer.step()
    after = own.state_dict()
    sent = {name: (tensor.double() - after[name].double()) / lr for name, tensor in model.state_dict().items()}
    schedule = Schedule(samples, batch, epochs)
    plain = not momentum
    origin = Origin(0, "client:0")
    return AttackedMessage(origin, model.double().eval(), sent, schedule, lr, plain, momentum=momentum), x


@pytest.mark.parametrize(("lr", "momentum"), [(0.3, 0.0), (0.05, 0.9)])
def test_steps_that_move_the_model_far_and_momentum_are_simulated_too(lr: float, momentum: float) -> None:
    message, x = trained(3, lr, epochs=4, batch=3, momentum=momentum)
    found = recovered(message, (30,))
    assert len(found.samples) == 3
    assert bool((errors(found, x) < 1e-2).all())
    assert bool(found.certified.all())


@pytest.mark.parametrize("lr", [0.02, 0.2])
def test_several_epochs_behind_convolutions_give_the_images(lr: float) -> None:
    message, x = trained(2, lr, epochs=3, batch=2, model=convolutions(pooled=False), shape=(1, 6, 6))
    found = recovered(message, (1, 6, 6))
    assert len(found.samples) == 2
    assert bool((errors(found, x) < 0.03).all())
    assert found.unexplained < 0.01
    assert found.route == "several epochs behind convolutions, simulated"


def test_training_on_the_samples_themselves_gives_one_step_that_they_explain() -> None:
    message, x = trained(3, lr=0.1, epochs=4, batch=3, momentum=0.5)
    labels = drawn(3, (30,), seed=7)[1]
    step, missed = one_step_after(message, x.double(), labels, CLASSES)
    assert missed < 1e-5
    targets = torch.nn.functional.one_hot(labels, CLASSES).double()
    there = gradients_of(step.model)(x.double()[None], targets[None])
    assert all(bool((g[0] - s).norm() < 1e-4 * s.norm()) for g, s in zip(there, step.gradient_list, strict=True))


def test_at_the_mean_of_the_way_an_update_is_nearer_to_one_step_than_at_its_start() -> None:
    torch.manual_seed(3)
    smooth = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, CLASSES))
    message, x = trained(3, lr=0.05, epochs=4, batch=3, model=smooth)
    targets = torch.nn.functional.one_hot(drawn(3, (30,), seed=7)[1], CLASSES).double()
    missed = []
    for share in (0.0, mean_share(message), 1.0):
        step = one_step_at(message, share)
        missed.append(mismatch_up_to_scale(gradients_of(step.model), step.gradient_list, x.double(), targets)[0])
    assert missed[1] < 0.5 * min(missed[0], missed[2])


def test_the_published_attack_puts_the_sets_of_all_epochs_into_one_order() -> None:
    x = drawn(1, (30,), seed=7)[0]
    sets = torch.stack([x.expand(3, -1), x.expand(3, -1)]) + torch.arange(3)[None, :, None]
    assert torch.equal(averaged(torch.stack([sets[0], sets[1].flip(0)])), sets[0])


def test_several_epochs_over_one_batch_are_simulated() -> None:
    message, x = trained(3, lr=0.05, epochs=4, batch=3)
    found = recovered(message, (30,))
    assert len(found.samples) == 3
    assert bool((errors(found, x) < 1e-2).all())
    assert bool(found.certified.all())
    assert found.route == "several epochs, simulated"


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_batches_cut_in_an_order_that_is_not_known_come_back_nearly_and_nobody_vouches(momentum: float) -> None:
    message, x = trained(4, lr=0.01, epochs=4, batch=2, momentum=momentum)
    found = recovered(message, (30,))
    assert len(found.samples) == 4
    assert bool((errors(found, x) < 0.05).all())
    assert not bool(found.certified.any())
    assert found.route.endswith("as if every step were on all samples")


def test_an_update_of_another_learning_rate_is_not_vouched_for() -> None:
    message, _ = trained(3, lr=0.05, epochs=4, batch=3)
    assert not bool(recovered(dataclasses.replace(message, lr=0.5), (30,)).certified.any())


def test_images_behind_a_max_pool_come_back_and_nobody_vouches_for_them() -> None:
    torch.manual_seed(3)
    lower = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    upper = [nn.Linear(12 * 9, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, CLASSES)]
    x, y = drawn(2, (1, 6, 6), seed=4)
    found = recovered(attacked(nn.Sequential(*lower, *upper), x, y), (1, 6, 6))
    assert len(found.samples) >= 1
    assert bool((errors(found, x) < 0.05).any())
    assert not bool(found.certified.any())
    assert found.route == "a linear pair behind pools, and smooth images that have the features"


def test_images_that_pooling_does_not_determine_are_not_made_up() -> None:
    x, y = drawn(3, (1, 6, 6), seed=4)
    found = recovered(attacked(convolutions(pooled=True), x, y), (1, 6, 6))
    assert len(found.samples) == 0
    assert found.why == "the features of 3 of 3 samples are known, but the layers below do not determine the images"
