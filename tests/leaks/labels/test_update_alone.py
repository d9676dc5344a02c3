"""What an update alone says: the client's mean features, how the model answers them, and whether it is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspill.leaks.labels.counts.each_update import best_reading
from fedspill.leaks.labels.counts.readings import read
from fedspill.leaks.labels.counts.update_alone import HeadChange, wire_outlook
from fedspill.leaks.labels.counts.whole_counts import Steps
from fedspill.leaks.labels.ebi import ebi_counts
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.leaks.labels.metrics import overlap
from fedspill.messages import Message
from fedspill.observe.last_layer import last_layer_gradients
from fedspill.training import Schedule

CLASSES, FEATURES, SAMPLES = 10, 32, 96


def gradient_of(weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor) -> HeadChange:
    error = (features @ weight.T + bias).softmax(1) - nn.functional.one_hot(labels, CLASSES)
    size = len(labels)
    return HeadChange(weight, bias, error.T @ features / size, error.mean(0), is_change=False)


def layer(scale: float) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return scale * torch.randn(CLASSES, FEATURES, generator=rng).double(), torch.zeros(CLASSES).double()


def labels_of(seed: int, *, even: bool) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    shares = torch.ones(CLASSES) if even else torch.tensor([8.0, 4.0] + [0.5] * (CLASSES - 2))
    return torch.multinomial(shares, SAMPLES, replacement=True, generator=rng)


def test_features_that_are_all_alike_are_read_exactly() -> None:
    weight, bias = layer(0.1)
    features = torch.linspace(0, 1, FEATURES).double()
    head = gradient_of(weight, bias, features.expand(SAMPLES, -1), labels_of(0, even=False))
    seen = wire_outlook([head])
    assert seen is not None
    assert torch.allclose(seen.start[0], (weight @ features + bias).softmax(0))
    assert seen.end is None, "after a gradient there is no other model"
    changed = HeadChange(weight, bias, -0.1 * head.weight_sent, -0.1 * head.bias_sent, is_change=True)
    after = wire_outlook([changed])
    assert after is not None
    assert after.end is not None
    logits = (weight + changed.weight_sent) @ features + bias + changed.bias_sent
    assert torch.allclose(after.end[0], logits.softmax(0))


def test_a_bias_that_did_not_move_says_nothing() -> None:
    weight, bias = layer(0.1)
    still = HeadChange(weight, bias, torch.ones(CLASSES, FEATURES), torch.zeros(CLASSES), is_change=True)
    assert wire_outlook([still]) is None
    broken = HeadChange(weight, bias, torch.ones(CLASSES, FEATURES), torch.full((CLASSES,), torch.nan), is_change=True)
    assert wire_outlook([broken]) is None


def test_uneven_answers_of_a_fresh_model_are_taken_into_account() -> None:
    """A model that favours some classes whatever it is shown: even probabilities, as LLBG has them, are wrong."""
    weight, _ = layer(0.02)
    bias = torch.linspace(-1, 1, CLASSES).double()
    rng = torch.Generator().manual_seed(5)
    features = (1 + 0.5 * torch.randn(SAMPLES, FEATURES, generator=rng)).double()
    labels = labels_of(1, even=False)
    head = gradient_of(weight, bias, features, labels)
    steps = Steps.of(Schedule(SAMPLES, SAMPLES))
    reading = read(head.bias_sent[None], steps, wire_outlook([head])).each_alone()
    real = torch.bincount(labels, minlength=CLASSES)[None]
    size = torch.tensor([SAMPLES])
    blind = llbg_counts(head.bias_sent[None], size, size, torch.zeros(1, CLASSES, dtype=torch.float64))
    assert reading.routes == ("measured",)
    seen = wire_outlook([head])
    assert seen is not None
    between = (features @ weight.T + bias).softmax(1).var(0)
    assert float((seen.variance[0] / between).log10().abs().max()) < 2, "how far samples differ is known roughly"
    assert float(overlap(reading.counts, real)) > 0.97 > float(overlap(blind, real))
    assert float(reading.expected) > 0.9


def test_a_trained_model_is_known_by_its_update_and_read_with_doubt() -> None:
    """Nearly every sample is classified right: what is left of the gradient is of a few, and tells counts in part."""
    weight, bias = layer(1.0)
    rng = torch.Generator().manual_seed(6)
    success, stated, greedy = [], [], []
    for seed in range(12):
        labels = labels_of(seed, even=seed % 2 == 0)
        features = 0.3 * weight[labels] + 0.8 * torch.randn(SAMPLES, FEATURES, generator=rng).double()
        head = gradient_of(weight, bias, features, labels)
        seen = wire_outlook([head])
        reading = read(head.bias_sent[None], Steps.of(Schedule(SAMPLES, SAMPLES)), seen).each_alone()
        assert reading.routes == ("unaided",)
        real = torch.bincount(labels, minlength=CLASSES)[None]
        success.append(float(overlap(reading.counts, real)))
        stated.append(float(reading.expected))
        size = torch.tensor([SAMPLES])
        blind = llbg_counts(head.bias_sent[None], size, size, torch.zeros(1, CLASSES, dtype=torch.float64))
        greedy.append(float(overlap(blind, real)))
    mean, claimed = sum(success) / len(success), sum(stated) / len(stated)
    assert mean > sum(greedy) / len(greedy) + 0.02
    assert abs(mean - claimed) < 0.12


def test_a_client_that_holds_all_classes_alike_is_read_without_any_data() -> None:
    """Its biases say next to nothing: EBI calls half of its classes absent."""
    right, by_ebi = [], []
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        centres, labels = torch.randn(6, 20, generator=rng), torch.arange(6).repeat_interleave(20)
        x = centres[labels] + torch.randn(120, 20, generator=rng)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))
        before = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.randperm(120, generator=rng).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
        change = {name: tensor.double() - before[name] for name, tensor in model.state_dict().items()}
        sent = Message(0, "client:0", "server", "update", change, {"examples": 120})
        head = last_layer_gradients([sent], weight="2.weight", bias="2.bias", lr=0.1, batch_size=16)
        answers = wire_outlook(
            [HeadChange(*(part[name] for part in (before, change) for name in ("2.weight", "2.bias")), is_change=True)]
        )
        real = torch.bincount(labels)
        assert head.bias is not None
        right.append(float(best_reading(head, answers).counts.minimum(real).sum()) / 120)
        by_ebi.append(float(ebi_counts(head.bias, head.samples).minimum(real).sum()) / 120)
    assert sum(right) / 4 > 0.85
    assert sum(by_ebi) / 4 < 0.65
