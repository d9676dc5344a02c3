"""Exact recovery: whole batches from two linear layers, local steps followed one by one, certificates that can fail."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.gradient_rank import room, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import leading_pair
from fedspill.leaks.inputs.exact.match_features import known_features
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition
from fedspill.leaks.inputs.exact.two_linear_layers import PairGradients, RootSearchEffort, gradient_bases, recover_batch
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.scoring.similarity import matched, psnr
from fedspill.leaks.inputs.search.batch_norm import BatchNorms, tracking_batch_norms
from fedspill.trace import Origin
from fedspill.training import Schedule

FEATURES, WIDTH, CLASSES = 64, 48, 6


def mlp(*between: nn.Module, seed: int = 0, bias: bool = True) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(FEATURES, WIDTH, bias=bias),
            *between,
            nn.Linear(WIDTH, WIDTH, bias=bias),
            nn.Tanh(),
            nn.Linear(WIDTH, CLASSES),
        )


def batch(size: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(size, 1, 8, 8, generator=rng), torch.randint(CLASSES, (size,), generator=rng)


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    loss = nn.functional.cross_entropy(model(x), y)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def attacked_message(
    model: nn.Module, sent: dict[str, Tensor], samples: int, step: int | None = None, lr: float | None = None
) -> AttackedMessage:
    doubled = {name: tensor.double() for name, tensor in sent.items()}
    schedule = Schedule(samples, step or samples)
    return AttackedMessage(Origin(0, "client:0"), copy.deepcopy(model).double().eval(), doubled, schedule, lr, True)


def answer_to(attacked: AttackedMessage, effort: RootSearchEffort | None = None) -> RecoveredInputs:
    return recover_exactly(attacked, (1, 8, 8), CLASSES, effort or RootSearchEffort(), torch.Generator().manual_seed(0))


def worst(answer: RecoveredInputs, real: Tensor) -> float:
    assert len(answer.samples) == len(real)
    return float(psnr(answer.samples[matched(answer.samples, real)].clamp(0, 1), real).min())


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "leaky relu": lambda: nn.LeakyReLU(0.1),
}


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_batch_of_unknown_labels_comes_back_whole_certified_and_with_its_labels(activation: str, size: int) -> None:
    model, (x, y) = mlp(ACTIVATIONS[activation]()), batch(size)
    answer = answer_to(attacked_message(model, gradients(model, x, y), size))
    assert worst(answer, x) > 50
    assert bool(answer.certified.all())
    assert answer.labels is not None
    assert answer.labels[matched(answer.samples, x)].tolist() == y.tolist()


def test_the_batch_size_need_not_be_told_and_a_wrong_one_is_corrected_or_refused() -> None:
    model, (x, y) = mlp(nn.Tanh()), batch(4)
    sent = gradients(model, x, y)
    pair = leading_pair(model)
    seen = PairGradients(sent["1.weight"].double(), sent["1.bias"].double(), sent["3.weight"].double())
    found = recover_batch(pair, seen, torch.Generator().manual_seed(0))
    assert found.batch == 4
    assert worst(answer_to(attacked_message(model, sent, 7)), x) > 50  # said to be seven: four directions, four samples
    refused = answer_to(attacked_message(model, sent, 2))
    assert not len(refused.samples)
    assert "4 directions" in refused.why


def test_a_sample_that_is_there_twice_is_returned_twice() -> None:
    model, (x, y) = mlp(nn.ReLU()), batch(5)
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    answer = answer_to(attacked_message(model, gradients(model, x, y), 6))
    assert worst(answer, x) > 50


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_a_clipped_gradient_leaks_as_much(scale: float) -> None:
    model, (x, y) = mlp(nn.Tanh()), batch(5)
    sent = {name: scale * tensor for name, tensor in gradients(model, x, y).items()}
    answer = answer_to(attacked_message(model, sent, 5))
    assert worst(answer, x) > 50
    assert bool(answer.certified.all())


def test_samples_clipped_one_by_one_leak_as_much() -> None:
    model, (x, y) = mlp(nn.Tanh()), batch(4)
    each = [gradients(model, x[i : i + 1], y[i : i + 1]) for i in range(4)]
    sent = {
        name: sum(factor * one[name] for factor, one in zip((1, 0.2, 0.5, 0.1), each, strict=True)) for name in each[0]
    }
    answer = answer_to(attacked_message(model, sent, 4))  # type: ignore[arg-type]
    assert worst(answer, x) > 50


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_without_biases_samples_come_back_too_but_nobody_vouches_for_a_scale(activation: str) -> None:
    model, (x, y) = mlp(ACTIVATIONS[activation](), bias=False), batch(4)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 4))
    assert worst(answer, x) > 40
    assert bool(answer.certified.any()) == (activation == "tanh")


def test_layer_norm_between_the_layers_is_no_protection() -> None:
    model, (x, y) = mlp(nn.LayerNorm(WIDTH), nn.ReLU()), batch(4)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 4))
    assert worst(answer, x) > 50


def test_batch_norm_that_keeps_to_its_running_statistics_is_no_protection() -> None:
    norm = nn.BatchNorm1d(WIDTH)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    model = mlp(norm, nn.Tanh()).eval()
    x, y = batch(4)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 4))
    assert worst(answer, x) > 60
    assert bool(answer.certified.all())


@pytest.mark.parametrize("lr", [1e-3, 1e-1, 0.5])
def test_local_steps_are_followed_one_by_one_whatever_the_drift(lr: float) -> None:
    model, (x, y) = mlp(nn.Tanh()), batch(6)
    trained = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(trained.parameters(), lr=lr)
    for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x[part].double()), y[part]).backward()
        optimizer.step()
    start = dict(model.named_parameters())
    summed = {name: (start[name].double() - p.detach()) / lr for name, p in trained.named_parameters()}
    answer = answer_to(attacked_message(model, {k: v.detach() for k, v in summed.items()}, 6, 2, lr))
    assert worst(answer, x) > 50
    assert bool(answer.certified.all())
    assert answer.labels is not None
    assert answer.labels.tolist() == [int(y[i]) for i in matched(x, answer.samples.float()).tolist()]


def test_noise_blurs_and_much_noise_is_not_certified() -> None:
    model, (x, y) = mlp(nn.Tanh()), batch(3)
    sent = gradients(model, x, y)
    rng = torch.Generator().manual_seed(0)

    def noisy(level: float) -> AttackedMessage:
        noise = {n: level * t.norm() * torch.randn(t.shape, generator=rng) / t.numel() ** 0.5 for n, t in sent.items()}
        return attacked_message(model, {name: tensor + noise[name] for name, tensor in sent.items()}, 3)

    slight, strong = answer_to(noisy(1e-3)), answer_to(noisy(3.0))
    assert worst(slight, x) > 30
    assert not bool(strong.certified.any())


def test_the_gradient_of_another_model_gives_no_picture_that_is_vouched_for() -> None:
    model, other, (x, y) = mlp(nn.Tanh()), mlp(nn.Tanh(), seed=9), batch(4)
    answer = answer_to(attacked_message(other, gradients(model, x, y), 4))
    assert answer.tried
    assert not bool(answer.certified.any())


@pytest.mark.slow
def test_of_one_sample_of_another_model_there_is_no_picture() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(256, CLASSES))
    x, y = batch(1)
    other = copy.deepcopy(conv)
    for parameter in other.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
    assert worst(answer_to(attacked_message(conv, gradients(conv, x, y), 1)), x) > 50
    assert not bool(answer_to(attacked_message(other, gradients(conv, x, y), 1)).certified.any())


REFUSED: dict[str, tuple[nn.Module, int, str]] = {
    "dropout": (mlp(nn.Tanh(), nn.Dropout(0.5)), 4, "dropout"),
    "batch norm": (mlp(nn.BatchNorm1d(WIDTH), nn.Tanh()), 4, "batch normalisation"),
    "too many": (mlp(nn.Tanh()), WIDTH, "do not fit"),
    "no second layer": (nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES)), 4, "too many for one layer"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_exact_recovery_cannot_do_it_says(what: str) -> None:
    model, size, reason = REFUSED[what]
    x, y = batch(size)
    message = attacked_message(model, gradients(model.train(), x, y), size)
    message = replace(message, norms=BatchNorms(frozenset(tracking_batch_norms(model))))
    answer = answer_to(message)
    assert not answer.tried
    assert not len(answer.samples)
    assert reason in answer.why


def test_one_linear_layer_gives_one_sample_in_closed_form() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))
    x, y = batch(1)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 1))
    assert worst(answer, x) > 80
    assert answer.labels is not None
    assert answer.labels.tolist() == y.tolist()


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, lambda: nn.LeakyReLU(0.2)])
def test_convolutions_are_solved_layer_by_layer_for_one_sample(activation: Callable[[], nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, stride=1),
            activation(),
            nn.Conv2d(6, 8, 3, padding=1, stride=2),
            activation(),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        )
    x, y = batch(1)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 1))
    assert worst(answer, x) > 50
    assert bool(answer.certified.all())


def rectified(channels: int, seed: int = 0, last: nn.Module | None = None) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, channels, 3, padding=1, stride=2),
            last or nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * channels, CLASSES),
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_rectified_convolution_gives_its_sample_by_the_features(seed: int) -> None:
    model, (x, y) = rectified(24, seed), batch(1, seed)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 1))
    assert worst(answer, x) > 60
    assert bool(answer.certified.all())
    assert answer.labels is not None
    assert answer.labels.tolist() == y.tolist()


def test_known_features_are_those_of_the_true_sample() -> None:
    model, (x, y) = rectified(24), batch(1)
    known = known_features(copy.deepcopy(model).double(), gradients(model, x, y))
    for found, seen in zip(known.of(x[None]), known.seen, strict=True):
        assert torch.allclose(found.reshape(seen.shape), seen, atol=1e-3 * float(seen.abs().max()))


FEATURELESS: dict[str, tuple[nn.Module, str]] = {
    "pool": (rectified(24, last=nn.Sequential(nn.ReLU(), nn.MaxPool2d(1))), "more than one activation"),
    "gelu": (rectified(24, last=nn.GELU()), "GELU cannot be inverted"),
    "no convolution": (mlp(nn.ReLU()), "no convolution"),
}


@pytest.mark.parametrize("what", FEATURELESS)
def test_features_that_are_not_known_are_said(what: str) -> None:
    model, reason = FEATURELESS[what]
    x, y = batch(1)
    with pytest.raises(CannotRecover, match=reason):
        known_features(model, gradients(model, x, y))


def test_a_rectified_convolution_of_another_model_gives_no_picture_that_is_vouched_for() -> None:
    model, other, (x, y) = rectified(24), rectified(24, seed=5), batch(1)
    assert not bool(answer_to(attacked_message(other, gradients(model, x, y), 1)).certified.any())


def test_few_channels_leave_the_sample_open_and_it_is_not_vouched_for() -> None:
    """Negative: one channel's gradient says too little of 64 pixels."""
    model, (x, y) = rectified(1), batch(1)
    answer = answer_to(attacked_message(model, gradients(model, x, y), 1))
    assert not bool(answer.certified.any())


def wide(units: int = 200, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, second, last = nn.Linear(FEATURES, units), nn.Linear(units, WIDTH), nn.Linear(WIDTH, CLASSES)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.Tanh(), last)


def test_few_units_hold_the_roots_that_all_of_them_do() -> None:
    model, (x, y) = wide().double(), batch(4)
    pair = leading_pair(model)
    sent, rng = gradients(model, x.double(), y), torch.Generator().manual_seed(0)
    bases = gradient_bases(pair, PairGradients(sent["1.weight"], sent["1.bias"], sent["3.weight"]), 4, rng)
    seen = pair.first.weight @ bases.first.right
    whole = SpanCondition.of(seen, pair.first.bias, pair.between, bases.second.right, bases.bias_equation)
    few = whole.thinned(32, rng)
    assert len(few.offset) == 32
    true = x.flatten(1).double() @ bases.first.right
    assert float(whole.residual(true).max()) < 1e-6
    assert float(few.residual(true).max()) < 1e-6
    assert float(few.residual(true.flip(1)).min()) > 1e-2  # and no others
    assert whole.thinned(500, rng) is whole


@pytest.mark.parametrize("size", [3, 8])
def test_a_wide_layer_is_searched_on_few_units_and_comes_back_whole(size: int) -> None:
    model, (x, y) = wide(), batch(size)
    answer = answer_to(attacked_message(model, gradients(model, x, y), size))
    assert worst(answer, x) > 60
    assert bool(answer.certified.all())


def test_the_rank_is_where_singular_values_fall_and_unclear_ones_are_not_guessed() -> None:
    rng = torch.Generator().manual_seed(0)
    low = torch.randn(30, 5, generator=rng, dtype=torch.float64) @ torch.randn(
        5, 40, generator=rng, dtype=torch.float64
    )
    noise = torch.randn(30, 40, generator=rng, dtype=torch.float64)
    clear = truncated_svd(low + 1e-7 * noise, None, rng)
    assert clear is not None
    assert clear.rank == 5
    assert truncated_svd(noise, None, rng) is None
    told = truncated_svd(noise, 7, rng)
    assert told is not None
    assert told.rank == 7


def test_where_units_sleep_the_rounding_of_a_message_is_not_taken_for_samples() -> None:
    """Five units are awake, so that the rounding has five directions itself, and the step from it to zero is long."""
    rng = torch.Generator().manual_seed(4)
    deltas = torch.zeros(20, 2, dtype=torch.float64)
    deltas[:5] = torch.randn(5, 2, generator=rng, dtype=torch.float64)
    message = (deltas @ torch.rand(2, 12, generator=rng, dtype=torch.float64)).float().double()
    found = truncated_svd(message, 2, rng)
    assert found is not None
    assert found.rank == 2
    assert room(message) == 5
