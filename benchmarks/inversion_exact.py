"""Exact recovery on held-out batches: how many come back whole, how well, at what cost, and whether certificates hold.

    python benchmarks/inversion_exact.py --data-dir DATA fedsgd noise fedavg trained single wrong

Every batch meets a fresh network. The attack is told neither labels nor truth. Held out: seeds from 50,000; development
used other batches and networks. Prints one line for each setting and the certificate's record over all of them. "wrong"
asks for the gradient of another network: there is nothing to find.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from inversion_workloads import Pictures, gradients, local_update, network, noised
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.trace import Origin
from fedspill.training import Schedule

FIRST_SEED = 50_000
OFTEN = (
    "FedSGD",
    "lenet, CIFAR-10, B = 1",
    "small-cnn, CIFAR-10, B = 1",
    "noise 0.01 t10, B = 4",
    "FedAvg t10, 4 steps",
)


@dataclass
class Record:
    """Over all runs: the PSNR of every certified sample, and of every other one that was returned."""

    certified: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def line(self) -> str:
        values = torch.tensor(self.certified)
        missed = torch.tensor(self.others)
        return (
            f"certificates: {len(values)} samples passed, {float((values > 30).double().mean()):.4f} above 30 dB, "
            f"{int((values < 20).sum())} below 20 dB; {len(missed)} returned and not passed, of which "
            f"{int((missed > 30).sum())} are above 30 dB"
        )


def case_of(model: nn.Module, sent: dict[str, Tensor], samples: int, step: int, lr: float | None) -> AttackedMessage:
    scaled = {name: tensor.double() if lr is None else tensor.double() / -lr for name, tensor in sent.items()}
    schedule = Schedule(samples, step)
    return AttackedMessage(Origin(0, "client:0"), copy.deepcopy(model).double().eval(), scaled, schedule, lr, True)


def measure(
    label: str,
    pictures: Pictures,
    seeds: range,
    size: int,
    make: Callable[[int, Examples], AttackedMessage],
    record: Record,
    classes: int,
) -> None:
    """Runs a setting over its seeds and prints what came of it."""
    whole, good, qualities, seconds, labels = 0, 0, [], [], 0
    for seed in seeds:
        batch = pictures.batch(size, seed)
        case = make(seed, batch)
        began = time.process_time()
        answer: RecoveredInputs = recover_exactly(
            case, pictures.data.shape, classes, RootSearchEffort(), torch.Generator().manual_seed(seed)
        )
        seconds.append(time.process_time() - began)
        values, order = pictures.quality(answer.samples, batch.x)
        qualities += values.tolist()
        good += int((values > 30).sum())
        whole += bool((values > 30).all())
        if answer.labels is not None and len(answer.labels) == len(batch):
            labels += bool(torch.equal(answer.labels[order], batch.y))
        of_guess = {int(i): float(v) for i, v in zip(order, values, strict=True) if i >= 0}
        for index, yes in enumerate(answer.certified.tolist()):
            (record.certified if yes else record.others).append(of_guess.get(index, 0.0))
    spread = torch.tensor(qualities).sort().values
    cpu = torch.tensor(seconds).sort().values
    print(
        f"{label:<44} whole {whole}/{len(seeds)}, above 30 dB {good}/{len(spread)}, PSNR median "
        f"{float(spread.median()):.0f} worst {float(spread[0]):.0f} dB, labels {labels}/{len(seeds)}, "
        f"CPU s median {float(cpu.median()):.2f} worst {float(cpu[-1]):.2f}",
        flush=True,
    )


Setting: TypeAlias = tuple[str, Pictures, int, Callable[[int, Examples], AttackedMessage], int]


def settings(which: list[str], folder: Path) -> Iterator[Setting]:
    """Label, data, batch size, how a case is made, classes."""
    hundred, ten = Pictures.of("cifar100", folder), Pictures.of("cifar10", folder)

    def plain(kind: str, level: float = 0.0, other: int = 0) -> Callable[[int, Examples], AttackedMessage]:
        """The gradient of a fresh network, with noise; handed out was that of seed + other."""

        def make(seed: int, batch: Examples) -> AttackedMessage:
            sent = gradients(network(kind, seed), batch)
            sent = noised(sent, level, seed) if level else sent
            return case_of(network(kind, seed + other), sent, len(batch), len(batch), None)

        return make

    def steps(kind: str, step: int, lr: float) -> Callable[[int, Examples], AttackedMessage]:
        def make(seed: int, batch: Examples) -> AttackedMessage:
            model = network(kind, seed)
            update = local_update(model, batch, [step] * (len(batch) // step), lr)
            return case_of(model, update, len(batch), step, lr)

        return make

    def after(model: nn.Module) -> Callable[[int, Examples], AttackedMessage]:
        return lambda seed, batch: case_of(model, gradients(model, batch), len(batch), len(batch), None)

    if "fedsgd" in which:
        for kind in ("t10", "tanh"):
            for size in (1, 4, 8, 16, 32, 64):
                yield f"FedSGD {kind}, B = {size}", hundred, size, plain(kind), 100
        for kind in ("sigmoid", "gelu"):
            for size in (4, 16):
                yield f"FedSGD {kind}, B = {size}", hundred, size, plain(kind), 100
    if "noise" in which:
        for kind, size in (("t10", 4), ("tanh", 4), ("t10", 16), ("tanh", 16)):
            for level in (1e-3, 1e-2, 1e-1):
                yield f"noise {level:g} {kind}, B = {size}", hundred, size, plain(kind, level), 100
    if "fedavg" in which:
        for kind in ("t10", "tanh"):
            for size, step in ((4, 1), (16, 2)):
                for lr in (1e-3, 1e-2, 1e-1):
                    label = f"FedAvg {kind}, {size // step} steps of {step}, lr {lr:g}"
                    yield label, hundred, size, steps(kind, step, lr), 100
    if "trained" in which:
        for kind in ("t10", "tanh"):
            model, accuracy = trained(kind, hundred)
            for size in (4, 16, 32):
                yield f"trained {kind} (train accuracy {accuracy:.2f}), B = {size}", hundred, size, after(model), 100
    if "single" in which:
        for kind, level in (
            ("lenet", 0.0),
            ("small-cnn", 0.0),
            ("lenet", 1e-3),
            ("small-cnn", 1e-3),
            ("relu-lenet", 0.0),
        ):
            label = (f"noise {level:g} " if level else "") + f"{kind}, CIFAR-10, B = 1"
            yield label, ten, 1, plain(kind, level), 10
    if "wrong" in which:
        for kind, size in (("t10", 4), ("tanh", 4), ("t10", 1)):
            yield f"gradient of another {kind}, B = {size}", hundred, size, plain(kind, other=1), 100
        for kind in ("lenet", "small-cnn"):
            yield f"gradient of another {kind}, B = 1", ten, 1, plain(kind, other=1), 10


def trained(kind: str, pictures: Pictures, steps: int = 400) -> tuple[nn.Module, float]:
    """A network after some hundred steps on the training images, and its accuracy on them."""
    model, data = network(kind, 0), pictures.data.train
    optimizer, rng = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = data.take(torch.randint(len(data), (64,), generator=rng))
        loss = nn.functional.cross_entropy(model(batch.x), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in data.x.split(500)]) == data.y
    return model, float(right.double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="+", choices=["fedsgd", "noise", "fedavg", "trained", "single", "wrong"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rare", type=int, default=5, help="batches of all settings but FedSGD and the plain CNNs")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record = Record()
    for label, pictures, size, make, classes in settings(asked.which, asked.data_dir):
        number = asked.batches if size < 64 and label.startswith(OFTEN) else asked.rare
        seeds = range(asked.first_seed, asked.first_seed + number)
        measure(label, pictures, seeds, size, make, record, classes)
    print(record.line())


if __name__ == "__main__":
    main()
