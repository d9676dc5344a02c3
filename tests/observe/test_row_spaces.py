"""Spans: what a layer's change spans, what rehearsals say of it, and that label counts follow."""

import pytest
import torch
from torch import Tensor, nn

from fedspill.data.digits import Digits
from fedspill.dataset import Examples
from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.span_counts import SpanCounts, span_counts
from fedspill.leaks.labels.counts.span_rehearsal import SpanRehearsals, SpanStage, made_up_counts
from fedspill.models.mlp import Mlp
from fedspill.observe.row_spaces import LayerSamples, distance_from_span, rehearsed_distance_from_span, sample_layers
from fedspill.training import gradient

CLASSES = 10


@pytest.fixture(scope="module")
def digits() -> Examples:
    return Digits().load().train


@pytest.fixture(scope="module")
def model(digits: Examples) -> nn.Module:
    """Trained until it tells most digits apart."""
    network = Mlp(widths=(96, 96)).build((1, 8, 8), CLASSES, seed=3)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(digits.x[700:]), digits.y[700:]).backward()
        optimizer.step()
    return network.eval()


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def summed(model: nn.Module, batch: Examples) -> dict[str, Tensor]:
    return {name: len(batch) * tensor for name, tensor in gradient(model, batch).items()}


def by_name(layers: list[LayerSamples], weight: str) -> LayerSamples:
    return next(layer for layer in layers if layer.weight == weight)


def test_samples_of_the_batch_lie_within_its_span_and_others_do_not(digits: Examples, model: nn.Module) -> None:
    own, batch = digits.take(torch.arange(200)), torch.arange(24)
    tensors = summed(model, own.take(batch))
    layer = by_name(sample_layers(model, own, 24), "fc2.weight")
    found = distance_from_span(layer, layer.change(tensors), len(batch), rng())
    inside, outside = found.logs[0, :24], found.logs[0, 24:]
    assert float(inside.median()) < float(outside.min())
    assert float(inside.median()) < -8.0  # within rounding
    assert float(outside.median()) > -6.0


def test_a_rehearsal_is_what_a_client_with_these_samples_would_send(digits: Examples, model: nn.Module) -> None:
    own, chosen = digits.take(torch.arange(200)), torch.arange(0, 48, 2)
    tensors = summed(model, own.take(chosen))
    others = torch.ones(200, dtype=torch.bool)
    others[chosen] = False
    layers = sample_layers(model, own, len(chosen))
    assert [layer.weight for layer in layers] == ["fc1.weight", "fc2.weight"]  # the head has room for none
    for layer in layers:
        sent = distance_from_span(layer, layer.change(tensors), len(chosen), rng())
        rehearsed = rehearsed_distance_from_span(layer, chosen, sent.noise)
        off = (sent.logs - rehearsed)[:, others].abs()
        assert float(off.median()) < 0.02
        assert float(off.mean()) < 0.1


def test_layers_that_samples_fill_are_not_looked_at(digits: Examples, model: nn.Module) -> None:
    own = digits.take(torch.arange(200))
    tensors = summed(model, own.take(torch.arange(24)))
    layers = sample_layers(model, own, 24)
    assert sample_layers(model, own, 90) == []
    assert by_name(layers, "fc2.weight").can_show(tensors, 24)
    assert not by_name(layers, "fc2.weight").can_show(tensors, 90)
    assert not by_name(layers, "fc2.weight").can_show({"fc2.weight": tensors["fc2.weight"]}, 24)
    broken = {**tensors, "fc2.weight": torch.full_like(tensors["fc2.weight"], torch.nan)}
    assert not by_name(layers, "fc2.weight").can_show(broken, 24)


def test_convolutions_and_layers_used_twice_have_no_such_span(digits: Examples) -> None:
    twice = nn.Linear(40, 40)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 40), twice, nn.ReLU(), twice, nn.Linear(40, CLASSES)
    )
    layers = sample_layers(network, digits.take(torch.arange(300)), 4)
    assert [(layer.weight, tuple(layer.inputs.shape)) for layer in layers] == [("2.weight", (300, 145))]


def test_a_layer_with_zero_inputs_and_signals_gives_finite_distances() -> None:
    layer = LayerSamples.of("w", None, torch.zeros(20, 30).double(), torch.zeros(20, 30).double())
    assert bool(rehearsed_distance_from_span(layer, torch.arange(5), 1e-6).isfinite().all())


@pytest.mark.parametrize("seed", range(20))
def test_made_up_batches_are_within_what_there_is(seed: int) -> None:
    largest = torch.tensor([7, 0, 3, 20, 9])
    counts = made_up_counts(30, largest, torch.Generator().manual_seed(seed))
    assert int(counts.sum()) == 30
    assert bool((counts <= largest).all())


def observed(stage: SpanStage, model: nn.Module, batches: list[Examples]) -> tuple[SpanRehearsals, Tensor]:
    seen = [stage.look(summed(model, batch), 1.0, len(batch), rng()) for batch in batches]
    noise = torch.stack([one for _, one in seen]).median(0).values
    return stage.rehearse(len(batches[0]), noise.tolist(), rng()), torch.stack([looks for looks, _ in seen])


def test_counts_are_read_off_spans_alone(digits: Examples, model: nn.Module) -> None:
    own = digits.take(torch.arange(500))
    stage = SpanStage(tuple(sample_layers(model, own, 40)), own.y, CLASSES)
    victims = digits.take(torch.arange(500, len(digits)))
    draws = torch.Generator().manual_seed(1)
    largest = torch.bincount(victims.y, minlength=CLASSES) // 2
    batches, known = [], []
    for _ in range(12):
        wanted = made_up_counts(40, largest, draws)
        chosen = torch.cat([(victims.y == c).nonzero().flatten()[: int(wanted[c])] for c in range(CLASSES)])
        batches.append(victims.take(chosen))
        known.append(wanted)
    counts = torch.stack(known).double()
    rehearsed, looks = observed(stage, model, batches)
    assert len(rehearsed.looks) == COUNTS.span_rehearsals
    found = span_counts(rehearsed, looks)
    assert bool(found.usable.all())
    assert float(torch.corrcoef(torch.stack([found.estimates.flatten(), (counts + 2).log().flatten()]))[0, 1]) > 0.75
    best = found.table(torch.arange(41.0).double().expand(12, CLASSES, 41)).argmax(2)
    assert float((best - counts).abs().mean()) < 0.7 * float((counts - 4).abs().mean())  # 4 each is the even guess


def test_an_update_unlike_all_rehearsals_is_left_alone(digits: Examples, model: nn.Module) -> None:
    own = digits.take(torch.arange(500))
    stage = SpanStage(tuple(sample_layers(model, own, 40)), own.y, CLASSES)
    rehearsed, looks = observed(stage, model, [digits.take(torch.arange(600, 640))])
    noise = {name: torch.randn(tensor.shape, generator=rng()) for name, tensor in model.named_parameters()}
    strange, _ = stage.look(noise, 1.0, 40, rng())
    assert span_counts(rehearsed, torch.stack([looks[0], strange])).usable.tolist() == [True, False]


def test_parts_are_joined_in_any_order() -> None:
    first, second = SpanCounts.none(2, 3), SpanCounts.none(1, 3)
    second = SpanCounts(second.estimates + 1, ~second.usable, second.offset, second.slope, second.spread)
    found = SpanCounts.joined([first, second]).rows(torch.tensor([2, 0, 1]))
    assert found.usable.tolist() == [True, False, False]
    assert found.estimates[:, 0].tolist() == [1.0, 0.0, 0.0]
