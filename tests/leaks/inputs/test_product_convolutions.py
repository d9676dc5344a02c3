"""Convolutions as matrix products: the same outputs, gradients and slopes of gradients as convolutions have."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedspill import cuda_graphs
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of, local_steps_of
from fedspill.leaks.inputs.search.objectives import CosineDistance, joined_cosine
from fedspill.leaks.inputs.search.optimizers import Adam
from fedspill.leaks.inputs.search.priors import TotalVariation
from fedspill.leaks.inputs.search.product_convolutions import NoConvolutions, by_products
from fedspill.leaks.inputs.search.search import Box, Recipe, one_hot, reconstruct
from fedspill.leaks.inputs.search.stacked_batch_norm import FixedBatchNorm, few_kernels
from fedspill.models.resnet import ResNet18

LAYERS = {
    "padded": lambda: nn.Conv2d(3, 5, 3, padding=1, bias=False),
    "strided": lambda: nn.Conv2d(3, 5, 3, stride=2, padding=1),
    "oblong": lambda: nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(0, 1), dilation=(1, 2)),
    "one by one": lambda: nn.Conv2d(3, 5, 1, stride=2),
    "pixel by pixel": lambda: nn.Conv2d(3, 5, 1),
    "padded pixels": lambda: nn.Conv2d(3, 5, 1, stride=2, padding=4),
    "reflected": lambda: nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"),
}


def slopes(model: nn.Module, x: Tensor, targets: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """All gradients of every restart, and how their squares change with the inputs."""
    size = x.shape[1] // steps
    each = [slice(i * size, (i + 1) * size) for i in range(steps)]
    gradients = gradients_of(model) if steps == 1 else local_steps_of(model, each, 0.1)
    x = x.clone().requires_grad_()
    flat = torch.cat([one.flatten(1) for one in gradients(x, targets)], 1)
    return flat.detach(), torch.autograd.grad(flat.square().sum(), x)[0]


@pytest.mark.parametrize(("restarts", "batch", "steps"), [(1, 1, 1), (1, 4, 1), (3, 2, 1), (1, 4, 2)])
@pytest.mark.parametrize("layer", list(LAYERS))
def test_gradients_and_their_slopes_are_those_of_convolutions(
    layer: str, restarts: int, batch: int, steps: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(LAYERS[layer](), nn.Tanh(), nn.Conv2d(5, 4, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(6))
    model = model.double().eval()
    x = torch.randn(restarts, batch, 3, 7, 8, dtype=torch.float64)
    model(x[0])
    targets = torch.rand(restarts, batch, 6, dtype=torch.float64)
    expected = slopes(model, x, targets, steps)
    for found, wanted in zip(by_products(slopes)(model, x, targets, steps), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_whole_residual_network_differs_by_rounding_only() -> None:
    model = ResNet18().build((3, 16, 16), 10, seed=3).double().eval()
    torch.manual_seed(1)
    x, targets = torch.randn(1, 2, 3, 16, 16, dtype=torch.float64), torch.rand(1, 2, 10, dtype=torch.float64)
    expected = slopes(model, x, targets, 1)
    for found, wanted in zip(by_products(slopes)(model, x, targets, 1), expected, strict=True):
        assert float((found - wanted).norm() / wanted.norm()) < 1e-10


@pytest.mark.parametrize("restarts", [1, 2])
def test_all_that_a_gpu_does_otherwise_leads_to_the_same_place(restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ends_at("cpu", restarts)
    monkeypatch.setattr(FixedBatchNorm, "forward", by_few_kernels)
    monkeypatch.setattr(CosineDistance, "against", lambda self, observed: joined_cosine(observed))
    assert torch.allclose(by_products(ends_at)("cpu", restarts), expected, atol=1e-9)


def by_few_kernels(layer: FixedBatchNorm, x: Tensor) -> Tensor:
    known = [layer.get_buffer(name) for name in ("mean", "variance", "factor", "summand")]
    return few_kernels(x, layer.weight, layer.bias, *known, layer.eps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_search_on_a_gpu_goes_where_it_goes_on_the_cpu(restarts: int) -> None:
    here, there = (ends_at(device, restarts) for device in ("cpu", "cuda"))
    assert torch.allclose(there.cpu(), here, atol=1e-6)


def ends_at(device: str, restarts: int) -> Tensor:
    """After a few steps in double precision, in a network with all that is done otherwise on a GPU."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
    model = nn.Sequential(*layers).double().eval()
    x, y = torch.rand(2, 3, 16, 16, dtype=torch.float64), torch.tensor([3, 5])
    sent = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    recipe = Recipe(CosineDistance(), Adam(0.1, 3), 3, (TotalVariation(0.01),), restarts)
    found = reconstruct(
        recipe,
        gradients_of(model.to(device)),
        [g.to(device) for g in sent],
        x.shape,
        10,
        rng=torch.Generator().manual_seed(0),
        targets=one_hot(y, 10),
        box=Box(torch.tensor(-1.0), torch.tensor(2.0)),
    )
    return found.state.optimizer.points


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 2, 3, padding="same"), nn.ConvTranspose2d(4, 2, 3)]
)
def test_other_convolutions_stay_what_they_are(layer: nn.Module) -> None:
    with pytest.raises(NoConvolutions):
        by_products(layer)(torch.randn(2, 4, 6, 6))


def test_the_quickest_way_that_can_be_recorded_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def __init__(self, took: float) -> None:
            self.took = took

        def seconds(self) -> float:
            return self.took

    def chosen(*times: float | None) -> object:
        graphs = {number: Graph(took) if took is not None else None for number, took in enumerate(times)}
        ways: list[Callable[[Tensor], tuple[Tensor, ...]]] = [lambda at: (at,) for _ in times]
        monkeypatch.setattr(cuda_graphs._Recorded, "of", staticmethod(lambda way, like: graphs[ways.index(way)]))
        found = cuda_graphs.replayed(ways, torch.zeros(1))
        return found.took if isinstance(found, Graph) else ways.index(found)

    assert chosen(2.0, 1.0) == 1.0
    assert chosen(1.0, 2.0) == 1.0
    assert chosen(1.0, 0.95) == 1.0, "too close to tell"
    assert chosen(None, 3.0) == 3.0
    assert chosen(None, None) == 0, "as it is"
