"""How far off samples may be: what is known by heart, and samples that send back the same, are not vouched for."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.exact import error_bars as bars
from fedspill.leaks.inputs.exact.error_bars import UsedAt, error_bars
from fedspill.leaks.inputs.exact.images_with_features import image_from_nothing
from fedspill.leaks.inputs.exact.reckoned_time import OUT_OF_TIME
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.scoring.pairs import guess_psnr
from fedspill.leaks.inputs.scoring.similarity import Range
from fedspill.registry import make
from fedspill.trace import Origin
from fedspill.training import Schedule

FEATURES, WIDTH, CLASSES = 64, 64, 10


def chain(activation: type[nn.Module], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    upper = [nn.Linear(WIDTH, 48), activation(), nn.Linear(48, CLASSES)]
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, WIDTH), activation(), *upper)


def used(model: nn.Module, x: Tensor, labels: Tensor) -> UsedAt:
    return UsedAt(copy.deepcopy(model).double(), "1", x.double(), labels, 1 / len(x))


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_bar_is_what_is_left_over_what_a_sample_changes() -> None:
    model, x = chain(nn.Tanh, 0), torch.randn(4, FEATURES)
    step = used(model, x, torch.arange(4))
    once, tenfold = error_bars([step], 1e-6, rng()), error_bars([step], 1e-5, rng())
    assert torch.allclose(tenfold, 10 * once)
    basis = torch.linalg.qr(step.fed.T)[0]
    changes = [bars._change(step, one, label, basis) / 4 for one, label in zip(step.fed, step.labels, strict=True)]
    whole = torch.linalg.pinv(torch.cat(changes, 1))
    plain = whole.square().sum(1).reshape(4, 4).sum(1).sqrt() * 1e-6 / len(changes[0]) ** 0.5 / step.fed.norm(dim=1)
    assert bool(((once / plain > 0.7) & (once / plain < 1.5)).all())


def test_what_is_known_by_heart_may_be_anything() -> None:
    model, x = chain(nn.Tanh, 1), torch.randn(4, FEATURES)
    labels = model(x).argmax(1)
    known = copy.deepcopy(model)
    optimizer = torch.optim.Adam(known.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(known(x[:1]), labels[:1]).backward()
        optimizer.step()
    before, after = (error_bars([used(one, x, labels)], 1e-6, rng()) for one in (model, known))
    assert float(after[0]) > 100 * float(before.max())


def test_of_two_samples_that_send_back_the_same_only_the_mean_is_told() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES))
    x, labels = torch.randn(3, FEATURES), torch.tensor([1, 1, 2])
    with torch.no_grad():
        model[2].bias[0] += 60.0  # whatever the sample, the network says 0, and so the label alone is sent back
    off = error_bars([used(model, x, labels)], 1e-6, rng())
    assert float(off[:2].min()) > 1e3 * float(off[2])


@pytest.mark.parametrize(
    ("activation", "samples", "heart", "epochs", "size", "seed"),
    [(nn.Tanh, 4, 20, 5, 4, 501), (nn.ReLU, 8, 5, 1, 2, 501), (nn.Tanh, 8, 5, 1, 2, 508)],
)
def test_half_a_batch_known_by_heart_is_not_vouched_for_falsely(
    activation: type[nn.Module], samples: int, heart: int, epochs: int, size: int, seed: int
) -> None:
    digits = make("datasets", "digits").load(None).train
    drawn = torch.Generator().manual_seed(seed)
    model = chain(activation, seed)
    part = digits.take(torch.randperm(len(digits), generator=drawn)[:samples])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(heart):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(part.x[: samples // 2]), part.y[: samples // 2]).backward()
        optimizer.step()
    trained = copy.deepcopy(model)
    for _ in range(epochs):
        for cut in torch.randperm(samples, generator=drawn).split(size):
            trained.zero_grad()
            nn.functional.cross_entropy(trained(part.x[cut]), part.y[cut]).backward()
            with torch.no_grad():
                for parameter in trained.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.01 * parameter.grad
    after = trained.state_dict()
    sent = {name: (tensor.double() - after[name].double()) / 0.01 for name, tensor in model.state_dict().items()}
    schedule = Schedule(samples, size, epochs)
    message = AttackedMessage(Origin(0, "client:0"), model.double().eval(), sent, schedule, 0.01, plain=True)
    found = recover_exactly(message, (1, 8, 8), CLASSES, RootSearchEffort(), drawn)
    real = part.x.double()
    assert not bool((guess_psnr(found.samples[found.certified], real, Range.of([real])) < 30).any())


def test_features_that_no_image_has_do_not_hold_up_the_others() -> None:
    torch.manual_seed(3)
    below = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten()).double()
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        features = below(x)
    features[1] = features[1].flip(0)
    found = image_from_nothing(below.requires_grad_(False), features, (1, 8, 8))
    apart = (found - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert float(apart[[0, 2]].max()) < 1e-4
    assert float(apart[1]) > 0.1


def answer_in(seconds: float) -> RecoveredInputs:
    model, x = chain(nn.ReLU, 4), torch.rand(6, 1, 8, 8)
    nn.functional.cross_entropy(model(x), torch.arange(6)).backward()
    sent = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    message = AttackedMessage(Origin(0, "client:0"), model.double().eval(), sent, Schedule(6, 6), None, plain=True)
    return recover_exactly(message, (1, 8, 8), CLASSES, RootSearchEffort(seconds=seconds), rng())


def test_a_search_that_has_used_up_its_time_says_so() -> None:
    assert OUT_OF_TIME in answer_in(1e-5).why
    whole = answer_in(120.0)
    assert not whole.why
    assert len(whole.samples) == 6
