"""Stacked restarts of a network whose batch norms work by the batch: the same gradients, and the same slopes."""

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, gradients_of, local_steps_of
from fedspill.leaks.inputs.search.product_convolutions import by_products
from fedspill.leaks.inputs.search.stacked_batch_norm import (
    ExplicitBatchNorm,
    FixedBatchNorm,
    few_kernels,
    with_explicit_batch_norm,
)

B, CLASSES = 6, 5


def network(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    if kind == "images":
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Tanh(), nn.Flatten()]
        model, shape = nn.Sequential(*layers, nn.Linear(4 * 16, CLASSES)), (3, 6, 6)
    elif kind == "vectors":
        layers = [nn.Linear(7, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Tanh()]
        model, shape = nn.Sequential(*layers, nn.Linear(8, CLASSES)), (7,)
    else:
        layers = [nn.Linear(7, 8), nn.BatchNorm1d(8, affine=False, track_running_stats=False), nn.Tanh()]
        model, shape = nn.Sequential(*layers, nn.Linear(8, CLASSES)), (7,)
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.affine:
            nn.init.uniform_(layer.weight)
            nn.init.normal_(layer.bias)
    return model.double().eval(), shape


def slopes(gradients: GradientFunction, x: Tensor, targets: Tensor, along: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The gradients of every restart, and how their products with `along` change with the inputs."""
    x = x.clone().requires_grad_()
    found = gradients(x, targets)
    total = sum((one * way).sum() for one, way in zip(found, along, strict=True))
    assert isinstance(total, Tensor)
    return [one.detach() for one in found], torch.autograd.grad(total, x)[0]


def test_running_statistics_are_a_factor_and_a_summand_with_the_same_slopes() -> None:
    torch.manual_seed(2)
    layer = nn.BatchNorm2d(3)
    for tensor in (layer.weight, layer.running_mean, layer.running_var):
        assert tensor is not None
        nn.init.uniform_(tensor, 0.5, 2.0)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(12, CLASSES)).double().eval()
    written = with_explicit_batch_norm(model)
    assert isinstance(written[0], FixedBatchNorm)
    assert written[0].weight is layer.weight, "autograd must find the model's own parameters"
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    second = []
    for network in (model, written):
        loss = network(x).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        total = torch.stack([g.square().sum() for g in gradients]).sum()
        second.append(torch.autograd.grad(total, x)[0])
    assert torch.allclose(*second)


@pytest.mark.parametrize("kind", ["images", "vectors", "no scale"])
@pytest.mark.parametrize("steps", [1, 2])
def test_stacked_slopes_are_those_of_differences(kind: str, steps: int) -> None:
    model, shape = network(kind)
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(2, B, *shape, generator=rng, dtype=torch.float64)
    targets = torch.rand(2, B, CLASSES, generator=rng, dtype=torch.float64).softmax(2)
    gradients = gradients_of(model) if steps == 1 else local_steps_of(model, [slice(0, 3), slice(3, 6)], 0.1)
    along = [torch.randn(p.shape, generator=rng, dtype=torch.float64) for p in model.parameters()]
    found, slope = slopes(gradients, x, targets, along)
    if steps == 1:
        one_by_one = [gradients_of(model)(x[i : i + 1], targets[i : i + 1]) for i in range(2)]
        assert all(
            torch.allclose(found[k], torch.cat([one[k] for one in one_by_one]), atol=1e-12) for k in range(len(found))
        )
    way = torch.randn(x.shape, generator=rng, dtype=torch.float64)

    def value(at: Tensor) -> float:
        return float(sum((one.detach() * w).sum() for one, w in zip(gradients(at, targets), along, strict=True)))

    difference = (value(x + 1e-5 * way) - value(x - 1e-5 * way)) / 2e-5
    assert float((slope * way).sum()) == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize(("restarts", "steps"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_few_kernels_are_the_same_batch_norm_up_to_third_derivatives(
    restarts: int, steps: int, products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6)]
    model = nn.Sequential(*layers, nn.Linear(6, CLASSES)).double().eval()
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                assert tensor is not None
                nn.init.uniform_(tensor, 0.5, 2.0)
    start = torch.randn(restarts, 2, 3, 4, 4, dtype=torch.float64)
    targets = torch.rand(restarts, 2, CLASSES, dtype=torch.float64)
    each = [slice(0, 1), slice(1, 2)]
    found: list[list[Tensor]] = []
    for forward in (FixedBatchNorm.forward, by_few_kernels):
        monkeypatch.setattr(FixedBatchNorm, "forward", forward)
        gradients = gradients_of(model) if steps == 1 else local_steps_of(model, each, 0.3, 0.5)
        if forward is by_few_kernels and products:
            gradients = by_products(gradients)
        x = start.clone().requires_grad_()
        flat = torch.cat([one.flatten(1) for one in gradients(x, targets)], 1)
        (slope,) = torch.autograd.grad(flat.square().sum(), x, create_graph=True)
        third = torch.autograd.grad(slope.square().sum(), x) if restarts == 1 and steps == 1 else ()
        found.append([flat.detach(), slope.detach(), *third])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def by_few_kernels(layer: FixedBatchNorm, x: Tensor) -> Tensor:
    known = [layer.get_buffer(name) for name in ("mean", "variance", "factor", "summand")]
    return few_kernels(x, layer.weight, layer.bias, *known, layer.eps)


def test_what_keeps_statistics_while_it_trains_is_not_replaced() -> None:
    running = nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8)).train()
    assert with_explicit_batch_norm(running) is running
    model, _ = network("vectors")
    replaced = with_explicit_batch_norm(model)
    assert isinstance(replaced[1], ExplicitBatchNorm)
    assert [name for name, _ in replaced.named_parameters()] == [name for name, _ in model.named_parameters()]
    x = torch.randn(B, 7, dtype=torch.float64)
    assert torch.allclose(replaced(x), model(x), atol=1e-12)
    alone = nn.BatchNorm1d(7, track_running_stats=False).double()
    assert torch.allclose(with_explicit_batch_norm(alone)(x), alone(x), atol=1e-12)
