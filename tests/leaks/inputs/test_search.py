"""The engine of reconstruction: gradients two ways, restarts as one batch, resuming, priors, recipes that recover."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.search.candidate_gradients import gradients_of, local_steps_of, soft_cross_entropy
from fedspill.leaks.inputs.search.objectives import (
    CosineDistance,
    GaussianKernel,
    GradientDistance,
    SquaredDistance,
    TensorNorms,
    alike_in_size,
    joined_cosine,
)
from fedspill.leaks.inputs.search.optimizers import Adam, Lbfgs, OptimizerState, SearchOptimizer
from fedspill.leaks.inputs.search.priors import (
    BatchNormStatistics,
    GroupConsistency,
    SquaredNorm,
    TotalVariation,
)
from fedspill.leaks.inputs.search.recipes import dlg, grad_inversion, inverting_gradients, sapag
from fedspill.leaks.inputs.search.search import Box, Recipe, SearchResult, SearchState, one_hot, reconstruct
from fedspill.leaks.inputs.total_variation import total_variation

CLASSES, SHAPE = 5, (1, 6, 6)


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, CLASSES)
        )


def batch(size: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(size, *SHAPE, generator=rng), torch.randint(CLASSES, (size,), generator=rng)


def sent_gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters())))


def test_gradients_of_hard_labels_are_those_of_cross_entropy_for_one_restart_and_for_several() -> None:
    model, (x, y) = network(), batch(3)
    targets = one_hot(y, CLASSES).float()
    one = gradients_of(model)(x[None], targets[None])
    two = gradients_of(model)(torch.stack([x, x.flip(0)]), torch.stack([targets, targets.flip(0)]))
    for real, single, several in zip(sent_gradient(model, x, y), one, two, strict=True):
        assert torch.allclose(single[0], real, atol=1e-6)
        assert torch.allclose(several[0], real, atol=1e-6)
        assert torch.allclose(several[1], real, atol=1e-6)


def test_a_single_logit_is_binary_cross_entropy() -> None:
    logits, y = torch.randn(4, 1), torch.tensor([0, 1, 1, 0])
    expected = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.float())
    assert torch.allclose(soft_cross_entropy(logits, one_hot(y, 2).float()), expected)


def test_unrolled_steps_are_minus_the_update_of_plain_sgd_over_lr() -> None:
    model, (x, y), lr = network(), batch(4), 0.1
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=lr)
    for part in (slice(0, 2), slice(2, 4)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x[part]), y[part]).backward()
        optimizer.step()
    found = local_steps_of(model, [slice(0, 2), slice(2, 4)], lr)(x[None], one_hot(y, CLASSES).float()[None])
    for before, after, summed in zip(model.parameters(), trained.parameters(), found, strict=True):
        assert torch.allclose(summed[0], (before - after) / lr, atol=1e-5)


@pytest.mark.parametrize(
    "objective", [SquaredDistance(), SquaredDistance(relative=True), TensorNorms(), CosineDistance(), GaussianKernel()]
)
def test_every_objective_is_least_at_the_truth_and_grows_away_from_it(objective: GradientDistance) -> None:
    rng = torch.Generator().manual_seed(0)
    observed = [torch.randn(shape, generator=rng) for shape in ((4, 3), (5,), ())]
    candidates = [torch.stack([g, g + 0.1 * torch.randn(g.shape, generator=rng), -g]) for g in observed]
    values = objective(candidates, observed)
    assert values.shape == (3,)
    assert float(values[0]) < 1e-5 < float(values[1]) < float(values[2])


@pytest.mark.parametrize("restarts", [1, 3])
def test_the_cosine_of_joined_tensors_is_the_cosine_and_has_its_slopes(restarts: int) -> None:
    rng = torch.Generator().manual_seed(0)
    observed = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((5, 7), (5,), (300, 4), (9,), ())]
    candidate = [torch.randn(restarts, *seen.shape, generator=rng, dtype=torch.float64) for seen in observed]
    candidate = [g.requires_grad_() for g in candidate]
    found = []
    for distance in (lambda g: CosineDistance()(g, observed), joined_cosine(observed)):
        values = distance(candidate)
        slopes = torch.autograd.grad((values * torch.arange(1, 1 + restarts)).sum(), candidate)
        found.append([values, *slopes])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_tensors_are_joined_with_such_of_their_size() -> None:
    sizes = [1, 1000, 10, 900, 400, 300, 12]
    groups = alike_in_size(sizes)
    assert [[sizes[index] for index in group] for group in groups] == [[1000, 900, 400, 300, 12], [10, 1]]


def test_norms_by_tensor_are_summed_and_not_squared() -> None:
    observed = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
    candidate = [torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.0], [1.0]])]
    assert TensorNorms()(candidate, observed).tolist() == pytest.approx([1 / 6, 5 / 6])


def test_a_wider_kernel_forgives_more() -> None:
    candidate, observed = [torch.ones(1, 3)], [torch.tensor([0.0, 1.0, 2.0])]
    narrow, wide = (float(GaussianKernel(width=width)(candidate, observed)) for width in (1.0, 100.0))
    assert narrow == pytest.approx(1 - math.exp(-2))
    assert wide == pytest.approx(1 - math.exp(-0.02))


def test_only_the_cosine_does_not_care_for_scale() -> None:
    observed = [torch.randn(4, 3)]
    half = [0.5 * observed[0][None]]
    assert float(CosineDistance()(half, observed)) == pytest.approx(0, abs=1e-6)
    for distance in (SquaredDistance(), TensorNorms(), GaussianKernel()):
        assert float(distance(half, observed)) > 1e-3


def test_total_variation_sums_the_steps_between_neighbours_and_rounds_off_small_ones() -> None:
    steps = torch.arange(4.0).expand(2, 1, 4, 4)  # 12 steps of one across, none down
    assert total_variation(steps).tolist() == [12.0, 12.0]
    assert total_variation(steps.transpose(2, 3)).tolist() == [12.0, 12.0]
    rounded = total_variation(steps, 0.02)
    assert rounded.tolist() == pytest.approx([12 * (1 + 0.02**2) ** 0.5 + 12 * 0.02] * 2)
    flat = torch.zeros(1, 1, 4, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(total_variation(flat, 0.02).sum(), flat)
    assert float(slope.abs().max()) == 0


def test_priors_are_zero_for_what_they_prefer_and_grow_with_the_distance_from_it() -> None:
    flat, steps = torch.ones(1, 2, 1, 4, 4), torch.arange(4.0).expand(1, 2, 1, 4, 4)
    assert float(TotalVariation(1.0)(flat)) == 0
    assert float(TotalVariation(1.0)(steps)) == pytest.approx(1.0)
    assert float(SquaredNorm(1.0)(flat)) == 1
    together, apart = flat.expand(3, 2, 1, 4, 4), torch.stack([flat[0], 2 * flat[0]])
    assert float(GroupConsistency(1.0)(together).max()) < 1e-5
    assert float(GroupConsistency(1.0)(apart)[0]) == pytest.approx((0.25 * 32) ** 0.5, rel=1e-4)


def test_batch_norm_statistics_prefer_the_data_that_the_network_has_seen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU())
    data = torch.randn(64, 1, 6, 6) + 3
    with torch.no_grad():
        model.train()(data)
        prior = BatchNormStatistics(model.eval(), 1.0)
        like, unlike = data[None, :32], torch.randn(1, 32, 1, 6, 6)
        assert float(prior(like)) < 0.2 * float(prior(unlike))
        assert not model.training
        nothing = BatchNormStatistics(network(), 1.0)(torch.rand(1, 2, *SHAPE))
    assert float(nothing) == 0  # no such layer, no say


@pytest.mark.parametrize("optimizer", [Adam(0.1, 30), Lbfgs(), Lbfgs(line_search=True)])
def test_restarts_in_one_batch_move_as_each_would_alone_and_a_search_can_be_taken_up_again(
    optimizer: SearchOptimizer,
) -> None:
    scale = torch.tensor([1.0, 10.0, 0.3])

    def evaluate(at: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 * (scale * at.square()).sum(1), scale * at

    def after(state: OptimizerState, moves: int) -> OptimizerState:
        for _ in range(moves):
            state, _ = optimizer.move(state, evaluate, torch.Generator())
        return state

    starts = torch.tensor([[1.0, 1.0, 1.0], [5.0, -3.0, 0.1]])
    both = after(OptimizerState(starts), 12)
    for index in range(2):
        assert torch.allclose(
            after(OptimizerState(starts[index : index + 1]), 12).points[0], both.points[index], atol=1e-6
        )
    resumed = after(after(OptimizerState(starts), 5), 7)
    assert torch.equal(resumed.points, both.points)
    assert resumed.step == 12


def test_l_bfgs_without_a_line_search_is_that_of_torch() -> None:
    rng = torch.Generator().manual_seed(0)
    square = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    hessian = square @ square.T + torch.eye(6, dtype=torch.float64)
    start = torch.randn(6, generator=rng, dtype=torch.float64)
    point = start.clone().requires_grad_()
    theirs = torch.optim.LBFGS([point], lr=1.0, max_iter=8, history_size=100, tolerance_grad=0, tolerance_change=0)

    def closure() -> Tensor:
        theirs.zero_grad()
        loss = 0.5 * point @ hessian @ point
        loss.backward()
        return loss

    theirs.step(closure)  # type: ignore[arg-type]
    state = OptimizerState(start[None])
    for _ in range(8):
        state, _ = Lbfgs().move(state, lambda at: (0.5 * ((at @ hessian) * at).sum(1), at @ hessian), rng)
    assert torch.allclose(state.points[0], point.detach(), rtol=1e-6, atol=1e-9)


def best_psnr(found: Tensor, real: Tensor) -> float:
    apart = (found.clamp(0, 1)[:, None] - real[None]).square().flatten(2).mean(2)
    return float(-10 * apart.min(0).values.mean().log10())


RECIPES: dict[str, tuple[Recipe, bool, float]] = {
    "dlg": (replace(dlg(250), restarts=3), False, 25),
    "idlg": (replace(dlg(250), start="uniform"), True, 45),
    "inverting gradients": (inverting_gradients(600, 1e-5), True, 35),
    "sapag": (sapag(600, per_entry=True, lr=0.03), True, 30),
    "gradinversion": (grad_inversion(network(), 400, group=3), True, 25),
}


@pytest.mark.parametrize("name", RECIPES)
def test_each_published_recipe_recovers_one_sample_of_a_small_network(name: str) -> None:
    recipe, labelled, bar = RECIPES[name]
    model, (x, y) = network(), batch(1)
    targets = one_hot(y, CLASSES) if labelled else None
    box = Box(torch.tensor(0.0), torch.tensor(1.0))
    rng = torch.Generator().manual_seed(0)
    found = reconstruct(
        recipe, gradients_of(model), sent_gradient(model, x, y), (1, *SHAPE), CLASSES, rng=rng, targets=targets, box=box
    )
    assert best_psnr(found.x[found.best], x) > bar
    assert int(found.targets[found.best].argmax()) == int(y)
    left = SquaredDistance(relative=True)(gradients_of(model)(found.x, found.targets), sent_gradient(model, x, y))
    assert float(left[found.best].detach()) < 0.1**2


def test_sapags_sum_of_squares_saturates_and_does_not_move() -> None:
    """Negative: the reading that CAFE compares with."""
    model, (x, y) = network(), batch(1)
    rng = torch.Generator().manual_seed(0)
    found = reconstruct(
        sapag(200),
        gradients_of(model),
        sent_gradient(model, x, y),
        (1, *SHAPE),
        CLASSES,
        rng=rng,
        targets=one_hot(y, CLASSES),
    )
    assert best_psnr(found.x[found.best], x) < 15


def test_the_answer_is_the_restart_with_the_least_mismatch_and_the_search_stops_when_all_is_explained() -> None:
    model, (x, y) = network(), batch(1)
    starts = torch.stack([x + 5, x])
    watched: list[tuple[int, float]] = []

    def watch(state: SearchState) -> None:
        watched.append((state.steps, float(state.least.min())))

    found = reconstruct(
        Recipe(SquaredDistance(), Adam(0.01, 50), 50),
        gradients_of(model),
        sent_gradient(model, x, y),
        (1, *SHAPE),
        CLASSES,
        rng=torch.Generator().manual_seed(0),
        targets=one_hot(y, CLASSES),
        start=starts,
        watch=watch,
    )
    assert found.best == 1
    assert found.steps == len(watched) == 1
    assert torch.equal(found.x[1], x)


@pytest.mark.parametrize("name", ["adam with noise", "l-bfgs"])
def test_a_search_goes_on_from_its_state_as_if_it_had_never_stopped(name: str) -> None:
    model, (x, y) = network(), batch(2)
    optimizer: SearchOptimizer = Adam(0.05, 40, langevin=0.1) if name == "adam with noise" else Lbfgs(history=5)

    def search(steps: int, state: SearchState | None = None) -> SearchResult:
        recipe = Recipe(SquaredDistance(), optimizer, steps, restarts=2)
        rng, targets = torch.Generator().manual_seed(3), one_hot(y, CLASSES)
        observed = sent_gradient(model, x, y)
        return reconstruct(
            recipe, gradients_of(model), observed, (2, *SHAPE), CLASSES, rng=rng, targets=targets, state=state
        )

    whole, resumed = search(25), search(25, search(10).state)
    assert torch.equal(resumed.x, whole.x)
    assert torch.equal(resumed.loss, whole.loss)
    assert resumed.steps == whole.steps == 25
