"""The server that plants to read whole batches: what it reads, what it vouches for, and how slowly it may come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spine import network
from torch import Tensor, nn

from fedspill.audit.planted_run import run_planted
from fedspill.data.digits import Digits
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable, UsageError
from fedspill.leaks.inputs.planted_guess import PLANT_CONTROL
from fedspill.planting.arrival import on_the_way, share_arrived
from fedspill.planting.bins import BinDesign, plant_bins
from fedspill.planting.class_fishing import head_of, one_sample, plant_class
from fedspill.planting.first_layer import PlantedNetwork, first_layer_of
from fedspill.planting.latent_code import fit_decoder, latent, plant_latent_bins
from fedspill.planting.peel import Peeled, peel
from fedspill.planting.planted_rounds import PlantedRounds
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.readings import readings_of
from fedspill.planting.robbing_rows import ImprintModule, plant_brightness, strongest_quotients
from fedspill.planting.trap_rows import fitted_factor, plant_traps, trap_rows
from fedspill.registry import make
from fedspill.threat import MALICIOUS_SERVER, MALICIOUS_SERVER_UPDATES
from fedspill.training import Tensors, gradient

DIGITS = Digits().load()
KNOWN = DIGITS.test.x  # what the server has; clients have the training split
PLANTS = ("planted-inputs", "robbing-the-fed", "trap-weights", "class-fishing", "loki")


def batch_of(samples: int, seed: int) -> Examples:
    return DIGITS.train.take(torch.randperm(len(DIGITS.train), generator=torch.Generator().manual_seed(seed))[:samples])


def net(rows: int, seed: int = 0) -> nn.Module:
    model = network(seed, classes=10, features=64, widths=[rows])
    return nn.Sequential(nn.Flatten(), *list(model)[1:])


def convolutions(rows: int, stride: int, channels: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, channels, 3, stride, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * (8 // stride) ** 2, rows),
        nn.ReLU(),
        nn.Linear(rows, 10),
    )


def state(model: nn.Module) -> Tensors:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def binned(model: nn.Module, design: BinDesign, seed: int = 0) -> tuple[ReadingPlace, Tensors]:
    place = ReadingPlace.of(model, KNOWN)
    rng = torch.Generator().manual_seed(seed)
    opened = place.opened(state(model))
    return place, plant_bins(place.layer, opened, place.inputs(), design, rng, [place.packing()])


def read(place: ReadingPlace, planted: Tensors, batch: Examples, **options: Any) -> Peeled:
    model = place.model
    model.load_state_dict(planted)
    sent = {name: tensor.double() for name, tensor in gradient(model, batch).items()}
    seen = sent[place.layer.weight], sent[place.layer.bias]
    return peel(PlantedNetwork.of(model, planted), place.packing(), *seen, len(batch), **options)


def right(found: Tensor, real: Tensor) -> int:
    """How many of the findings are a sample of the batch, each sample counted once."""
    if not len(found):
        return 0
    nearest = torch.cdist(found.flatten(1).double(), real.flatten(1).double()).min(1)
    close = nearest.values < 1e-3 * real[0].numel() ** 0.5  # 60 dB
    return len(set(nearest.indices[close].tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_bins_by_three_numbers_read_a_whole_batch_and_vouch_for_it_with_its_labels(seed: int) -> None:
    batch = batch_of(60, seed)
    found = read(*binned(net(128, seed), BinDesign(), seed), batch)
    assert len(found.samples) == right(found.samples, batch.x) >= 58
    for x, label in zip(found.samples, found.labels.tolist(), strict=True):
        nearest = int((batch.x.double() - x).flatten(1).norm(dim=1).argmin())
        assert int(batch.y[nearest]) == label


@pytest.mark.parametrize("samples", [100, 200, 400])
def test_a_batch_that_is_too_large_is_read_in_part_or_not_at_all_and_nothing_false_is_vouched_for(samples: int) -> None:
    for seed in range(4):
        batch = batch_of(samples, seed)
        found = read(*binned(net(96, seed), BinDesign(), seed), batch)
        assert len(found.samples) == right(found.samples, batch.x)


def unforeseen(place: ReadingPlace, planted: Tensors, batch: Examples, seed: int) -> Peeled:
    """What is read where each sample counts up to a hundredth more or less than the network says.

    Units of a deep network that rounding switches do that.
    """
    model = place.model
    model.load_state_dict(planted)
    counts = 1 + 0.02 * (torch.rand(len(batch), generator=torch.Generator().manual_seed(seed)) - 0.5)
    loss = (counts * nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none")).mean()
    first = model.get_submodule(place.layer.name)
    seen = [tensor.double() for tensor in torch.autograd.grad(loss, list(first.parameters()))]
    return peel(PlantedNetwork.of(model, planted), place.packing(), seen[0], seen[1], len(batch))


def test_where_the_network_cannot_foretell_what_is_sent_readings_vouch_for_each_other() -> None:
    shares = []
    for seed in range(4):
        batch = batch_of(40, seed)
        found = unforeseen(*binned(net(128, seed), BinDesign(), seed), batch, seed)
        assert len(found.samples) == right(found.samples, batch.x)
        shares.append(len(found.samples) / 40)
    assert sum(shares) / 4 > 0.9


@pytest.mark.parametrize("samples", [72, 100, 200])
def test_readings_that_vouch_for_each_other_vouch_for_nothing_false_in_batches_that_are_too_large(samples: int) -> None:
    for seed in range(4):
        batch = batch_of(samples, seed)
        found = unforeseen(*binned(net(96, seed), BinDesign(), seed), batch, seed)
        assert len(found.samples) == right(found.samples, batch.x)


def test_one_number_reads_what_theory_says_and_peeling_needs_several() -> None:
    shares = []
    for seed in range(12):
        place, planted = binned(net(48, seed), BinDesign(functionals=1), seed)
        found = read(place, planted, batch_of(24, seed))
        assert len(found.samples) == len(read(place, planted, batch_of(24, seed), again=False).samples)
        shares.append(len(found.samples) / 24)
    assert abs(sum(shares) / 12 - (1 - 1 / 48) ** 23) < 0.1


def test_bins_of_usual_norms_in_a_deeper_network_are_read_too() -> None:
    model = network(3, classes=10, features=64, widths=[128, 32])
    batch = batch_of(40, 3)
    found = read(*binned(nn.Sequential(nn.Flatten(), *list(model)[1:]), BinDesign(norms="usual")), batch)
    assert len(found.samples) == right(found.samples, batch.x) >= 36


@pytest.mark.parametrize(("stride", "channels"), [(1, 4), (2, 8)])
def test_convolutions_can_be_made_to_pass_images_on(stride: int, channels: int) -> None:
    batch = batch_of(40, 1)
    place, planted = binned(convolutions(96, stride, channels), BinDesign())
    found = read(place, planted, batch)
    assert len(found.samples) == right(found.samples, batch.x) >= 36
    with pytest.raises(NotApplicable, match="no room for all pixels"):
        ReadingPlace.of(convolutions(8, 2, 3), KNOWN)
    pooled = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), *list(convolutions(8, 2, 4))[4:])
    with pytest.raises(NotApplicable, match="MaxPool2d"):
        ReadingPlace.of(pooled, KNOWN)


def test_inputs_below_zero_get_through_rectified_convolutions() -> None:
    known, batch = KNOWN - 0.5, batch_of(30, 2)
    batch = Examples(batch.x - 0.5, batch.y)
    place = ReadingPlace.of(convolutions(96, 1, 4), known)
    opened, rng = place.opened(state(place.model)), torch.Generator().manual_seed(0)
    planted = plant_bins(place.layer, opened, place.inputs(), BinDesign(), rng, [place.packing()])
    found = read(place, planted, batch)
    assert len(found.samples) == right(found.samples, batch.x) >= 27


def test_robbing_the_fed_reads_samples_that_are_alone_in_their_bins_in_place_and_as_a_module() -> None:
    batch, model = batch_of(32, 0), net(256)
    place = ReadingPlace.of(model, KNOWN)
    planted = plant_brightness(place.layer, state(model), place.inputs(), [place.packing()])
    model.load_state_dict(planted)
    module = ImprintModule(net(16), KNOWN, 256)
    for one, layer in ((model, place.layer), (module, first_layer_of(module))):
        sent = {name: tensor.double() for name, tensor in gradient(one, batch).items()}
        first, second = one.get_submodule(layer.name), one.get_submodule(layer.second)
        readings = readings_of(first.weight.double(), first.bias.double(), second.weight.double())
        found = strongest_quotients(readings, sent[layer.weight], sent[layer.bias], 32)
        assert len(found) <= 32
        assert right(found, batch.x) >= 20  # about (1 - 1/256)^31 of 32 by theory


def test_calibrated_traps_and_biases_alone_read_more_than_published_ones() -> None:
    model, batch = net(256), batch_of(60, 0)
    place, counts, at_once = ReadingPlace.of(model, KNOWN), {}, {}
    for kind in ("published", "calibrated", "biases"):
        rng = torch.Generator().manual_seed(0)
        planted = plant_traps(place.layer, state(net(256)), place.features(), 60, kind, rng)  # type: ignore[arg-type]
        found = read(place, planted, batch)
        assert len(found.samples) == right(found.samples, batch.x)
        counts[kind] = len(found.samples)
        at_once[kind] = len(read(place, planted, batch, again=False).samples)
        moved = {name for name, tensor in planted.items() if not torch.equal(tensor, state(net(256))[name])}
        assert moved == ({place.layer.bias} if kind == "biases" else {place.layer.weight, place.layer.bias})
    assert at_once["published"] < min(at_once["calibrated"], at_once["biases"])
    assert min(counts["calibrated"], counts["biases"]) >= 50


def test_rows_that_fire_for_one_sample_up_to_half_of_a_batch_give_all_of_it_away() -> None:
    for seed in range(3):
        model, batch = net(480, seed), batch_of(48, seed)
        place = ReadingPlace.of(model, KNOWN)
        found = {}
        for most in (1.0, 24.0):
            rng = torch.Generator().manual_seed(seed)
            planted = plant_traps(place.layer, state(net(480, seed)), place.features(), 48, "biases", rng, most=most)
            read_now = read(place, planted, batch)
            assert len(read_now.samples) == right(read_now.samples, batch.x)
            found[most] = len(read_now.samples)
        assert found[24.0] == 48
        fires = (place.features() @ planted[place.layer.weight].T + planted[place.layer.bias] > 0).double().mean(0) * 48
        assert float(fires[0]) < 2
        assert 20 < float(fires[-1]) < 28


def test_the_published_factor_can_be_fitted_to_the_data() -> None:
    known, rng = ReadingPlace.of(net(256), KNOWN).features(), torch.Generator().manual_seed(0)
    factor = fitted_factor(known, 60, rng)
    rows = trap_rows(400, known.shape[1], factor, 0.5, rng)
    often = float((known @ rows.T > 0).double().mean(0).median())
    assert abs(often - 1 / 60) < 0.01
    assert 0.3 < factor < 0.95


def test_fishing_leaves_the_gradient_of_one_class() -> None:
    model, batch = net(32), batch_of(20, 4)
    label = int(batch.y[0])
    planted = plant_class(head_of(model), state(model), label)
    model.load_state_dict(planted)
    of_class = batch.take((batch.y == label).nonzero().flatten())
    whole, part = gradient(model, batch), gradient(model, of_class)
    assert torch.allclose(whole["1.weight"] * len(batch), part["1.weight"] * len(of_class), rtol=1e-3, atol=1e-5)
    only = batch.take(torch.cat([(batch.y != label).nonzero().flatten(), torch.tensor([0])]))
    sent = gradient(model, only)
    x, alone = one_sample(sent["1.weight"].double(), sent["1.bias"].double())
    assert alone
    assert right(x[None], batch.x[:1]) == 1
    assert not one_sample(*(gradient(net(32), batch)[name].double() for name in ("1.weight", "1.bias")))[1]


def test_a_slow_plant_arrives_whole_and_rows_keep_their_norms_on_the_way() -> None:
    place, goal = binned(net(64), BinDesign(norms="usual"))
    honest = state(net(64))
    assert [share_arrived(number, 2, 4) for number in (1, 2, 3, 5, 9)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    line, sphere = (on_the_way(honest, goal, 0.5, place.layer, way) for way in ("line", "sphere"))  # type: ignore[arg-type]
    rows = [torch.cat([s[place.layer.weight], s[place.layer.bias][:, None]], 1).norm(dim=1) for s in (honest, goal)]
    moved = torch.cat([sphere[place.layer.weight], sphere[place.layer.bias][:, None]], 1).norm(dim=1)
    assert torch.allclose(moved, (rows[0] + rows[1]) / 2, rtol=1e-4)
    assert float(line[place.layer.weight].norm()) < float(sphere[place.layer.weight].norm())
    assert all(torch.equal(tensor, goal[name]) for name, tensor in on_the_way(honest, goal, 1.0, place.layer).items())
    when = PlantedRounds(2, 10, 3)
    assert (when.planted, when.read) == (range(2, 14), range(11, 14))
    with pytest.raises(UsageError, match="arrival >= 1"):
        PlantedRounds(0, 0, 1)


def ran(name: str, threat: Any, **changes: Any) -> Any:
    deployment = Deployment.of(check_plan({"seed": 3, **PLANT_CONTROL, **changes}, "test"))
    attack = make("attacks", name)
    trace, known = run_planted(attack, threat, deployment)
    return trace, attack(trace.view(threat, knowledge=known), seed=1)


def test_behind_secure_aggregation_clients_are_read_in_turn_and_the_others_are_silenced() -> None:
    many = {"federation": {"clients": 6, "rounds": 2, "secure_aggregation": True}}
    training = {"training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 16}}
    trace, guess = ran("planted-inputs", MALICIOUS_SERVER, **many, **training)
    assert {origin.sender for origin in guess.of} == {"aggregator"}
    planted = [message for message in trace.messages("model") if message.round == 1]
    assert len(planted) == 6
    heard = [message.receiver for message in planted if bool(message.tensors["fc1.weight"].any())]
    assert len(heard) == 2, "two batches of 16 fit into 64 rows"
    rows = [m.tensors["fc1.weight"].abs().sum(1) > 0 for m in planted if m.receiver in heard]
    assert not bool((rows[0] & rows[1]).any()), "each has rows of its own, which tell whose a sample is"
    next_round = [m.receiver for m in trace.messages("model") if m.round == 2 and bool(m.tensors["fc1.weight"].any())]
    assert not set(heard) & set(next_round)
    assert min(len(found) for found in guess.samples) >= 16
    for number, found in enumerate(guess.samples):
        places = trace.truth().get(guess.of[number], "used_samples").tolist()
        clients = Deployment.of(check_plan({"seed": 3, **PLANT_CONTROL, **many, **training}, "test")).shares.clients
        real = torch.stack([clients[owner].x[sample] for owner, sample in places])
        assert len(found) == right(found, real)


def test_who_sees_updates_hands_out_one_model_and_reads_each_client() -> None:
    trace, guess = ran("planted-inputs", MALICIOUS_SERVER_UPDATES)
    assert len(list(trace.messages("model"))) == 4
    assert {origin.sender for origin in guess.of} == {"client:0", "client:1"}
    assert sum(len(found) for found in guess.samples) >= 20, "of 24: in 21 bins two samples may share all of theirs"


def test_an_update_of_one_local_step_is_read_as_a_gradient_is() -> None:
    training = {"training": {"lr": 0.5, "batch_size": 32, "steps": 1}}
    _, guess = ran("planted-inputs", MALICIOUS_SERVER_UPDATES, **training)
    assert min(len(found) for found in guess.samples) >= 20


@pytest.mark.parametrize("name", PLANTS)
def test_a_network_that_cannot_be_planted_in_is_skipped_before_any_round(name: str) -> None:
    plan = check_plan({**PLANT_CONTROL, "model": {"name": "mlp", "widths": [8], "activation": "tanh"}}, "test")
    with pytest.raises(NotApplicable, match="planted in"):
        run_planted(make("attacks", name), MALICIOUS_SERVER_UPDATES, Deployment.of(plan))


@pytest.mark.parametrize(("name", "least"), [("planted-inputs", 0.95), ("loki", 0.5)])
def test_convolutions_of_their_own_tell_clients_apart_in_a_sum(name: str, least: float) -> None:
    many = {
        "model": {"name": "cnn-flat", "first": 4, "second": 12, "dense": 96},
        "federation": {"clients": 6, "rounds": 2, "secure_aggregation": True},
        "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 24},
    }
    trace, guess = ran(name, MALICIOUS_SERVER, **many)
    clients = Deployment.of(check_plan({"seed": 3, **PLANT_CONTROL, **many}, "test")).shares.clients
    for number, found in enumerate(guess.samples):
        places = trace.truth().get(guess.of[number], "used_samples").tolist()
        real = torch.stack([clients[owner].x[sample] for owner, sample in places])
        assert right(found, real) >= least * 6 * 24, "144 samples in 96 rows: more than bins without channels can hold"
        if name == "planted-inputs":
            assert right(found, real) == len(found)


def test_sums_of_very_many_samples_are_refused_before_any_round() -> None:
    many = {"federation": {"clients": 30, "rounds": 2}, "training": {"algorithm": "fedsgd", "batch_size": 30}}
    deployment = Deployment.of(check_plan({**PLANT_CONTROL, **many}, "test"))
    with pytest.raises(NotApplicable, match="A sum of about 900 samples"):
        run_planted(make("attacks", "planted-inputs"), MALICIOUS_SERVER, deployment)


@pytest.mark.parametrize(("widths", "least"), [([192, 32], 0.5), ([192], 0.15)])
def test_several_local_epochs_are_read_in_part_and_nothing_of_it_is_vouched_for(
    widths: list[int], least: float
) -> None:
    several = {
        "model": {"name": "mlp", "widths": widths},
        "partition": {"name": "uniform-batch", "batch": 16},
        "training": {"lr": 0.05, "batch_size": 8, "epochs": 3},
    }
    trace, guess = ran("planted-inputs", MALICIOUS_SERVER_UPDATES, **several)
    clients = Deployment.of(check_plan({"seed": 3, **PLANT_CONTROL, **several}, "test")).shares.clients
    shares = []
    for number, found in enumerate(guess.samples):
        assert not bool(guess.certified[number].any())
        owner = int(guess.of[number].sender.partition(":")[2])
        nearest = torch.cdist(found.flatten(1).double(), clients[owner].x.flatten(1).double()).amin(0)
        shares.append(float((nearest < 0.0316 * 64**0.5).double().mean()))  # 30 dB
    assert sum(shares) / len(shares) > least
    assert any("no certificate" in note for note in guess.notes)
    assert trace is not None


def test_features_behind_pooled_convolutions_are_read_and_decoded_by_one_that_has_never_seen_them() -> None:
    """Scale-MIA gets through pooling; nothing it returns is exact, and nothing is vouched for."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 96),
        nn.ReLU(),
        nn.Linear(96, 10),
    )
    with pytest.raises(NotApplicable, match="MaxPool2d"):
        ReadingPlace.of(model, KNOWN)
    layer, rng, batch = first_layer_of(model), torch.Generator().manual_seed(0), batch_of(12, 1)
    decoder = fit_decoder(model, layer, KNOWN, 300, 128, rng, with_encoder=True)
    with torch.no_grad():
        planted = plant_latent_bins(layer, state(model), latent(model, layer, KNOWN))
    model.load_state_dict(planted)
    sent = {name: tensor.double() for name, tensor in gradient(model, batch).items()}
    readings = readings_of(*(planted[name].double() for name in (layer.weight, layer.bias, layer.second_weight)))
    codes = strongest_quotients(readings, sent[layer.weight], sent[layer.bias], 12)
    with torch.no_grad():
        real = latent(model, layer, batch.x)
        exact = torch.cdist(codes, real.double()).amin(0) < 1e-3 * real.norm(dim=1)
        images = decoder(codes.float())
    assert int(exact.sum()) >= 7  # 12 (1 - 1/96)^11 by theory
    error = torch.cdist(images, batch.x.flatten(1)).amin(0).square() / 64
    guessing = (batch.x.flatten(1) - KNOWN.flatten(1).mean(0)).square().mean(1)
    assert float(error.median()) < 0.2 * float(guessing.median())
