"""What servers that plant read out of a batch, as published and ours, on real images.

    python benchmarks/planted.py bins --data mnist fashion-mnist cifar10 --rows 256 1024 --fill 0.25 0.6 --batches 10
    python benchmarks/planted.py traps --data mnist --rows 1000 --batch 100 --batches 10
    python benchmarks/planted.py steps --data mnist --rows 256 1024 --fill 0.125 --clients-of 1 8 --batches 10
    python benchmarks/planted.py steps --gate --data mnist --rows 256 --fill 0.125 0.5 --clients-of 1 2 --batches 10
    python benchmarks/planted.py decoded --data fashion-mnist --rows 512 --batch 64 --batches 5 --device cuda
    python benchmarks/planted.py apart --data cifar10 --clients 100 --batch 16 --rows 256 --batches 10
    python benchmarks/planted.py module --data cifar10 --rows 256 --batch 64 --batches 10

Every batch has a seed of its own, from `--first-seed` on: the network's weights, the plant's directions and the images
are drawn anew. The server has images of the other split. Shares are of images above 30 and 60 dB after one-to-one
matching; "false" counts images that an attack vouched for and that are none of the batch. Seconds are of the reading
alone. `--device cuda` runs clients and reading on a GPU. With `--gate` clients of `steps` have the gate over pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedspill.dataset import Dataset, Examples
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.federation.local import train
from fedspill.planting.agreement import agreed
from fedspill.planting.bins import BinDesign, plant_bins
from fedspill.planting.first_layer import PlantedNetwork, first_layer_of
from fedspill.planting.latent_code import fit_decoder, latent, plant_latent_bins
from fedspill.planting.peel import peel
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.readings import readings_of
from fedspill.planting.robbing_rows import ImprintModule, plant_brightness, strongest_quotients
from fedspill.planting.steady_bins import hold_still, third_layer_of
from fedspill.planting.trap_rows import fitted_factor, plant_traps
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors, gradient

KNOWN = 2000  # images that the server has


@dataclass
class Read:
    """What came of one batch."""

    above_30: float
    above_60: float
    vouched: int
    false: int
    seconds: float
    median: float = 0.0  # PSNR, of all images of the batch
    above_20: float = 0.0


def scored(found: Tensor, real: Tensor, vouched: bool, seconds: float) -> Read:
    """Images (n, *shape) in [0, 1], matched one to one by least squared error."""
    decibels = torch.zeros(len(real), dtype=torch.float64)
    if len(found):
        guessed, true = found.flatten(1).double().cpu().clamp(0, 1), real.flatten(1).double().cpu()
        error = torch.cdist(guessed, true).square() / true.shape[1]
        rows, columns = linear_sum_assignment(np.log10(error.numpy() + 1e-12))
        decibels[torch.from_numpy(columns)] = -10 * error[rows, columns].clamp_min(1e-12).log10()
    clear, sharp = decibels > 30, decibels > 60
    false = len(found) - int(clear.sum()) if vouched else 0
    shares, many = (float(part.double().mean()) for part in (clear, sharp)), len(found) if vouched else 0
    return Read(*shares, many, false, seconds, float(decibels.median()), float((decibels > 20).double().mean()))


def line(title: str, reads: Sequence[Read], theory: float | None = None) -> None:
    """One row: mean and deviation over batches."""
    shares = [one.above_30 for one in reads]
    spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
    expected = "" if theory is None else f"{theory:.3f}"
    print(
        f"| {title} | {expected} | {statistics.fmean(shares):.3f} +- {spread:.3f} | "
        f"{statistics.fmean(one.above_60 for one in reads):.3f} | {sum(one.false for one in reads)} of "
        f"{sum(one.vouched for one in reads)} | {statistics.fmean(one.seconds for one in reads):.2f} | {len(reads)} |",
        flush=True,
    )


def header() -> None:
    print("| attack | theory | above 30 dB | above 60 dB | false certificates | seconds | batches |")
    print("|---|---|---|---|---|---|---|", flush=True)


def mlp(shape: Sequence[int], rows: int, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), rows), nn.ReLU(), nn.Linear(rows, classes))


@dataclass
class Draw:
    """Everything that one seed decides."""

    batch: Examples
    known: Tensor
    rng: torch.Generator


def draw(data: Dataset, samples: int, seed: int) -> Draw:
    rng = torch.Generator().manual_seed(seed)
    known = data.test.x[torch.randperm(len(data.test), generator=rng)[:KNOWN]]
    return Draw(data.train.take(torch.randperm(len(data.train), generator=rng)[:samples]), known, rng)


def read_from(
    place: ReadingPlace, planted: Tensors, drawn: Draw, device: str, how: Callable[..., Tensor]
) -> tuple[Tensor, float]:
    """What `how` reads from the gradient of the batch, and the seconds it took."""
    model = place.model
    model.load_state_dict(planted)
    model.to(device)
    sent = {name: tensor.cpu().double() for name, tensor in gradient(model, drawn.batch.to(device)).items()}
    model.cpu()
    began = time.process_time()
    found = how(PlantedNetwork.of(model, planted), sent[place.layer.weight], sent[place.layer.bias])
    return found, time.process_time() - began


def peeled(place: ReadingPlace, samples: int, **options: bool) -> Callable[..., Tensor]:
    return lambda network, w, b: peel(network, place.packing(), w, b, samples, **options).samples


def published(place: ReadingPlace, samples: int) -> Callable[..., Tensor]:
    def how(network: PlantedNetwork, w: Tensor, b: Tensor) -> Tensor:
        readings = readings_of(network.first.weight, network.first.bias, network.second.weight)
        return place.packing().unpack(strongest_quotients(readings, w, b, samples))

    return how


def bins(asked: argparse.Namespace) -> None:
    for name in asked.data:
        data: Dataset = make("datasets", name).load(None)
        for rows in asked.rows:
            for fill in asked.fill:
                samples = int(fill * rows)
                print(f"\n{name}, {rows} rows, batches of {samples}")
                header()
                theory = (1 - 1 / rows) ** (samples - 1)
                for title, many, theirs in [("Robbing the Fed", 0, theory)] + [
                    (f"bins by {many}", many, theory if many == 1 else None) for many in asked.functionals
                ]:
                    reads = []
                    for seed in asked.seeds:
                        drawn = draw(data, samples, seed)
                        place = ReadingPlace.of(mlp(data.shape, rows, len(data.classes), seed), drawn.known)
                        state, packings = dict(place.model.state_dict()), [place.packing()]
                        if many == 0:
                            planted = plant_brightness(place.layer, state, place.inputs(), packings)
                            how = published(place, samples)
                        else:
                            design = BinDesign(functionals=many)
                            planted = plant_bins(place.layer, state, place.inputs(), design, drawn.rng, packings)
                            how = peeled(place, samples)
                        found, seconds = read_from(place, planted, drawn, asked.device, how)
                        reads.append(scored(found, drawn.batch.x, many > 0, seconds))
                    line(title, reads, theirs)


def traps(asked: argparse.Namespace) -> None:
    for name in asked.data:
        data: Dataset = make("datasets", name).load(None)
        for rows in asked.rows:
            print(f"\n{name}, {rows} rows, batches of {asked.batch}")
            header()
            for kind in ("honest", "published", "fitted", "calibrated", "biases"):
                for again in (False, True):
                    reads = [_trapped(data, rows, asked, kind, again, seed) for seed in asked.seeds]
                    line(f"{kind}, {'peeled' if again else 'alone in a row'}", reads)


def _trapped(data: Dataset, rows: int, asked: argparse.Namespace, kind: str, again: bool, seed: int) -> Read:
    """Rows of our kinds fire once a batch, or, where found samples are taken out, once up to half of a batch."""
    drawn = draw(data, asked.batch, seed)
    place = ReadingPlace.of(mlp(data.shape, rows, len(data.classes), seed), drawn.known)
    planted, known = dict(place.model.state_dict()), place.features()
    if kind in ("published", "fitted"):
        factor = 0.95 if kind == "published" else fitted_factor(known, asked.batch, drawn.rng)
        planted = plant_traps(place.layer, planted, known, asked.batch, "published", drawn.rng, factor=factor)
    elif kind != "honest":
        most = asked.batch / 2 if again else 1.0
        planted = plant_traps(place.layer, planted, known, asked.batch, kind, drawn.rng, most=most)  # type: ignore[arg-type]
    found, seconds = read_from(place, planted, drawn, asked.device, peeled(place, asked.batch, again=again))
    return scored(found, drawn.batch.x, True, seconds)


def steps(asked: argparse.Namespace) -> None:
    """Clients of FedAvg: five local epochs. Nothing is certified; the second line is what two bins agreed on."""
    for name in asked.data:
        data: Dataset = make("datasets", name).load(None)
        cells = [(c, h, lr) for c in asked.clients_of for h in (64, 0) for lr in (0.01, 0.1)]
        for rows, fill in [(rows, fill) for rows in asked.rows for fill in asked.fill]:
            for clients, hidden, lr in cells:
                each = max(int(fill * rows) // clients, 1)
                print(f"\n{name}, {rows} rows, {hidden or 'no'} units behind them, {clients} x {each} images, lr {lr}")
                header()
                both = [
                    _stepped(data, rows, hidden, clients, each, _local(lr, each, asked.gate), seed)
                    for seed in asked.seeds
                ]
                line("everything", [one for one, _ in both])
                line("agreed on by two bins", [two for _, two in both])


def _local(lr: float, each: int, gate: bool) -> LocalTraining:
    """Five local epochs of a client with `each` images."""
    training = LocalTraining(lr=lr, batch_size=min(each, 8), epochs=5)
    return GradientGate(pairs=True).local(training) if gate else training


def _stepped(
    data: Dataset, rows: int, hidden: int, clients: int, each: int, training: LocalTraining, seed: int
) -> tuple[Read, Read]:
    drawn, lr = draw(data, clients * each, seed), training.lr
    torch.manual_seed(seed)
    behind = [nn.Linear(rows, hidden), nn.ReLU()] if hidden else []
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(int(np.prod(data.shape)), rows),
        nn.ReLU(),
        *behind,
        nn.Linear(hidden or rows, len(data.classes)),
    )
    place, gain = ReadingPlace.of(model, drawn.known), 1e-3
    state, packings = dict(model.state_dict()), [place.packing()]
    planted = plant_bins(place.layer, state, place.inputs(), BinDesign(gain=gain), drawn.rng, packings)
    third = third_layer_of(model, place.layer)
    if third is not None:
        hold_still(planted, place.layer, third, gain, drawn.rng, lr=lr, passes=training.epochs / training.batch_size)
    names = place.layer.weight, place.layer.bias
    total = [torch.zeros_like(planted[name], dtype=torch.float64) for name in names]
    for number, part in enumerate(torch.arange(clients * each).split(each)):
        moved = train(model, planted, drawn.batch.take(part), training, generator(seed, number))
        total = [one - moved[name].double() / lr for one, name in zip(total, names, strict=True)]
    began = time.process_time()
    found, sure = agreed(PlantedNetwork.of(model, planted), place.packing(), *total, clients * each)
    spent = time.process_time() - began
    return scored(found, drawn.batch.x, False, spent), scored(found[:sure], drawn.batch.x, True, spent)


def decoded(asked: argparse.Namespace) -> None:
    """Scale-MIA: convolutions with max pools, through which no exact plant gets. `--steps` of training it."""
    for name in asked.data:
        data: Dataset = make("datasets", name).load(None)
        for rows in asked.rows:
            print(f"\n{name}, pooled convolutions, {rows} rows, batches of {asked.batch}, {asked.steps} steps")
            header()
            reads = [_decoded(data, rows, asked, seed) for seed in asked.seeds]
            line("Scale-MIA", reads, (1 - 1 / rows) ** (asked.batch - 1))
            above = statistics.fmean(one.above_20 for one in reads)
            print(f"  above 20 dB {above:.3f}; median PSNR {statistics.fmean(one.median for one in reads):.1f} dB")


def _decoded(data: Dataset, rows: int, asked: argparse.Namespace, seed: int) -> Read:
    drawn, (channels, height, width) = draw(data, asked.batch, seed), data.shape
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), rows), nn.ReLU(), nn.Linear(rows, len(data.classes)),
    ).to(asked.device)  # fmt: skip
    layer, known = first_layer_of(model), data.test.x.to(asked.device)
    fit_decoder(model, layer, known, asked.steps, 1024, drawn.rng, with_encoder=True)
    with torch.no_grad():
        codes = torch.cat([latent(model, layer, part) for part in known.split(500)])
        planted = plant_latent_bins(layer, dict(model.state_dict()), codes)
    model.load_state_dict(planted)
    sent = {name: tensor.double() for name, tensor in gradient(model, drawn.batch.to(asked.device)).items()}
    began = time.process_time()
    decoder = fit_decoder(model, layer, known, asked.steps, 1024, drawn.rng, with_encoder=False)
    readings = readings_of(*(planted[name].double() for name in (layer.weight, layer.bias, layer.second_weight)))
    found = strongest_quotients(readings, sent[layer.weight], sent[layer.bias], asked.batch)
    with torch.no_grad():
        images = decoder(found.float()).reshape(-1, *data.shape)
    return scored(images.cpu(), drawn.batch.x, False, time.process_time() - began)


def apart(asked: argparse.Namespace) -> None:
    """Clients in one sum, told apart by channels of their own: LOKI's reading, and ours."""
    for name in asked.data:
        data: Dataset = make("datasets", name).load(None)
        for rows in asked.rows:
            clients, each, samples = asked.clients, asked.batch, asked.clients * asked.batch
            print(f"\n{name}, {clients} clients of {each} images in one sum, {rows} rows")
            header()
            for title, many in (("LOKI", 0), ("bins by 3, peeled", 3)):
                reads = [_apart(data, rows, clients, each, samples, many, seed, asked.device) for seed in asked.seeds]
                line(title, reads, (1 - 1 / rows) ** (each - 1) if many == 0 else None)


def _apart(data: Dataset, rows: int, clients: int, each: int, samples: int, many: int, seed: int, device: str) -> Read:
    drawn = draw(data, samples, seed)
    wide = (data.shape[0] + 1) * clients
    spec = make("models", "cnn-flat", {"first": data.shape[0], "second": wide, "dense": rows})
    model = spec.build(data.shape, len(data.classes), seed=seed)
    place = ReadingPlace.of(model, drawn.known)
    assert place.through is not None
    state, packings = dict(model.state_dict()), [place.packing(block) for block in range(clients)]
    # Rows are alike for all clients, kernels are not.
    opened = place.opened(state, 0)
    made = (
        plant_brightness(place.layer, opened, place.inputs(), packings)
        if many == 0
        else plant_bins(place.layer, opened, place.inputs(), BinDesign(many), drawn.rng, packings)
    )
    first, kernels = (
        made[place.layer.weight],
        [f"{name}.{part}" for name in place.through.convolutions for part in ("weight", "bias")],
    )
    weight: Tensor | None = None
    model.load_state_dict(made)
    model.to(device)
    for block, part in enumerate(torch.arange(samples).split(each)):
        own = place.opened({name: state[name] for name in kernels}, block)
        model.load_state_dict({name: own[name] for name in kernels}, strict=False)
        sent = gradient(model, drawn.batch.take(part).to(device))[place.layer.weight] / clients
        weight = sent if weight is None else weight + sent
    assert weight is not None
    weight = weight.cpu()
    model.cpu()
    began, found = time.process_time(), []
    height = place.through.side[0] * place.through.side[1]
    for block in range(clients):  # each block by itself: a network of one client reads it
        columns = torch.arange(block * place.through.block * height, (block + 1) * place.through.block * height)
        own = weight[:, columns].double()
        bias = own[:, place.through.constants(0)]
        small = make("models", "cnn-flat", {"first": data.shape[0], "second": place.through.block, "dense": rows})
        alone = ReadingPlace.of(small.build(data.shape, len(data.classes), seed=0), drawn.known)
        opened = alone.opened(dict(alone.model.state_dict()), 0)
        one = {**opened, alone.layer.weight: first[:, columns]}
        one |= {name: made[name] for name in (place.layer.bias, place.layer.second_weight, "head.bias")}
        network = PlantedNetwork.of(alone.model, one)
        if many == 0:
            readings = readings_of(network.first.weight, network.first.bias, network.second.weight)
            found.append(alone.packing().unpack(strongest_quotients(readings, own, bias, each)))
        else:
            found.append(peel(network, alone.packing(), own, bias, samples).samples)
    return scored(torch.cat(found), drawn.batch.x, many > 0, time.process_time() - began)


def module(asked: argparse.Namespace) -> None:
    """The setting of breaching's notebook: the imprint block in front of a network, images of CIFAR-10."""
    for name in asked.data:
        data: Dataset = make("datasets", name).load(None)
        for rows in asked.rows:
            print(f"\n{name}, a block of {rows} rows in front of a network, batches of {asked.batch}")
            header()
            for title in ("Robbing the Fed, module", "our bins in the same module"):
                reads = []
                for seed in asked.seeds:
                    drawn = draw(data, asked.batch, seed)
                    inner = mlp(data.shape, 64, len(data.classes), seed)
                    model = ImprintModule(inner, drawn.known, rows)
                    layer = first_layer_of(model)
                    place = ReadingPlace(model, layer, drawn.known, None)
                    planted = dict(model.state_dict())
                    how = published(place, asked.batch)
                    if title.startswith("our"):
                        design = BinDesign(head=1.0)
                        planted = plant_bins(layer, planted, place.inputs(), design, drawn.rng, [place.packing()])
                        how = peeled(place, asked.batch)
                    found, seconds = read_from(place, planted, drawn, asked.device, how)
                    reads.append(scored(found, drawn.batch.x, title.startswith("our"), seconds))
                line(title, reads, (1 - 1 / rows) ** (asked.batch - 1) if title.startswith("R") else None)


KINDS = {kind.__name__: kind for kind in (bins, traps, steps, decoded, apart, module)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--data", nargs="+", default=["mnist"])
    parser.add_argument("--rows", type=int, nargs="+", default=[256])
    parser.add_argument("--fill", type=float, nargs="+", default=[0.25, 0.6], help="samples a row")
    parser.add_argument("--functionals", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--clients-of", type=int, nargs="+", default=[1], help="of FedAvg, in one sum")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4000, help="of training Scale-MIA's decoder")
    parser.add_argument("--first-seed", type=int, default=70_000)
    parser.add_argument("--gate", action="store_true", help="of the clients, over pairs")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    asked.seeds = list(range(asked.first_seed, asked.first_seed + asked.batches))
    torch.set_num_threads(1)
    KINDS[asked.kind](asked)


if __name__ == "__main__":
    main()
