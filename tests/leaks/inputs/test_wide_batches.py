"""Batches that fill much of a layer: half of the width comes back, and what is known by heart is not vouched for."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact import two_linear_layers
from fedspill.leaks.inputs.exact.certificate import Certificate, counts_once, sent_back
from fedspill.leaks.inputs.exact.leading_layers import leading_pair
from fedspill.leaks.inputs.exact.local_steps import pair_gradients_in
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort, gradient_bases
from fedspill.leaks.inputs.exact.wide_batches import network_above
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.registry import make
from fedspill.trace import Origin
from fedspill.training import Schedule

INPUTS, WIDTH, CLASSES = 90, 60, 20


def deep(activation: type[nn.Module], layers: int = 5) -> nn.Sequential:
    torch.manual_seed(3)
    parts: list[nn.Module] = [nn.Flatten(), nn.Linear(INPUTS, WIDTH), activation()]
    for _ in range(layers - 1):
        parts += [nn.Linear(WIDTH, WIDTH), activation()]
    return nn.Sequential(*parts, nn.Linear(WIDTH, CLASSES))


def message(model: nn.Module, x: Tensor, y: Tensor) -> AttackedMessage:
    """One step in float32."""
    sent = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    gradients = {name: g.double() for (name, _), g in zip(model.named_parameters(), sent, strict=True)}
    model = copy.deepcopy(model).double().eval()
    return AttackedMessage(Origin(0, "client:0"), model, gradients, Schedule(len(x), len(x)), None, plain=True)


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, INPUTS, generator=rng(samples)), torch.randint(CLASSES, (samples,), generator=rng())


def recovered(attacked: AttackedMessage, shape: tuple[int, ...], classes: int) -> RecoveredInputs:
    return recover_exactly(attacked, shape, classes, RootSearchEffort(), rng())


def apart(found: RecoveredInputs, x: Tensor) -> Tensor:
    """(k,) of each sample found from the nearest true one, relative."""
    flat = found.samples.flatten(1).double()
    nearest: Tensor = torch.cdist(flat, x.flatten(1).double()).min(1).values / flat.norm(dim=1)
    return nearest


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_close_to_half_of_the_width_comes_back_whole(
    activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = drawn(28)
    attacked = message(deep(activation), x, y)
    found = recovered(attacked, (INPUTS,), CLASSES)
    assert len(found.samples) == len(x)
    assert bool(found.certified.all())
    assert float(apart(found, x).max()) < 1e-3
    assert found.labels is not None
    assert sorted(found.labels.tolist()) == sorted(y.tolist())
    if activation is nn.ReLU:  # the first pair's condition alone leads to none of them
        monkeypatch.setattr(two_linear_layers, "is_wide", lambda _: False)
        assert not len(recovered(attacked, (INPUTS,), CLASSES).samples)


def test_what_a_sample_sends_back_is_told_by_the_network_above() -> None:
    x, y = drawn(WIDTH // 2)
    attacked = message(deep(nn.ReLU), x, y)
    pair = leading_pair(attacked.model)
    above = network_above(attacked.model, pair, attacked.gradients, len(x), rng())
    assert len(above.further) == 3
    bases = gradient_bases(pair, pair_gradients_in(attacked.gradients, pair), len(x), rng())
    assert pair.first.bias is not None
    z = x.double() @ pair.first.weight.T + pair.first.bias
    for one, label, sent in zip(z, y, sent_back(attacked.model, "1", z), strict=True):
        down = above.sent_down(one, bases.first.left)
        assert torch.allclose(down.first, sent[label])
        assert down.outside < 1e-4


def test_a_layer_whose_gradient_was_held_back_is_done_without() -> None:
    x, y = drawn(WIDTH // 3)
    attacked = message(deep(nn.ReLU), x, y)
    pair = leading_pair(attacked.model)
    for held, many in (("7.weight", 1), ("5.weight", 0)):
        gradients = {name: gradient for name, gradient in attacked.gradients.items() if name != held}
        assert len(network_above(attacked.model, pair, gradients, len(x), rng()).further) == many


@pytest.mark.parametrize("seed", [111_001, 111_009, 111_016, 111_018])
def test_a_wide_batch_that_is_half_known_by_heart_is_not_vouched_for_falsely(seed: int) -> None:
    torch.manual_seed(seed)
    upper = [nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), *upper)
    digits = make("datasets", "digits").load(None).train
    digits = digits.take(torch.randperm(len(digits), generator=rng(seed))[:28])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(digits.x[:14]), digits.y[:14]))
        optimizer.step()
    found = recovered(message(model, digits.x, digits.y), tuple(digits.x.shape[1:]), 10)
    assert not len(found.samples) or not bool((found.certified & (apart(found, digits.x) > 0.05)).any())


@pytest.mark.parametrize(
    ("shares", "once"),
    [
        ([1.0, 1.0, 1.0, 1.0], [True] * 4),
        ([0.3, 0.3, 0.3, 0.3], [True] * 4),  # clipped, and found whole
        ([1.0, 1.4, 0.7, 1.0], [True, False, False, True]),
        ([0.31, 1.4, 0.7, 1.2], [False] * 4),  # none has its share, and no two have another one
        ([0.3, 0.3, 0.9, 1.7], [False] * 4),  # two alike of four are none that was scaled
    ],
)
def test_another_share_than_that_of_one_sample_is_one_that_most_have(shares: list[float], once: list[bool]) -> None:
    certificate = Certificate(torch.zeros(4, dtype=torch.int64), torch.full((4,), 1e-3), torch.tensor(shares) / 4)
    assert counts_once(certificate, torch.ones(4, dtype=torch.int64), 4).tolist() == once
