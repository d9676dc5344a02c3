"""Exact recovery on held-out batches: how many come back whole, how well, at what cost, and whether certificates hold.

    python benchmarks/inversion_exact.py --data-dir DATA --batches 20 fedsgd noise fedavg lenet

Every batch meets a fresh network. The attack is told neither labels nor truth. Held out: seeds from 50,000; development
used other batches and networks. Prints one line for each setting and the certificate's record over all of them.
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
from safetensors.torch import load_file
from torch import Tensor, nn

from fedspill.attacks.inversion.cases import Answer, Case
from fedspill.attacks.inversion.exact import exact_answer
from fedspill.attacks.inversion.recover import Effort
from fedspill.data.base import Examples
from fedspill.federation.schedule import Schedule
from fedspill.trace import Origin

FIRST_SEED = 50_000


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


def case_of(model: nn.Module, sent: dict[str, Tensor], samples: int, step: int, lr: float | None) -> Case:
    scaled = {name: tensor.double() / (1.0 if lr is None else -lr) for name, tensor in sent.items()}
    schedule = Schedule(samples, step)
    return Case(Origin(0, "client:0"), copy.deepcopy(model).double().eval(), scaled, schedule, lr, True)


def measure(
    label: str,
    pictures: Pictures,
    seeds: range,
    size: int,
    make: Callable[[int, Examples], Case],
    record: Record,
    classes: int,
) -> None:
    """Runs a setting over its seeds and prints what came of it."""
    whole, good, qualities, seconds, labels = 0, 0, [], [], 0
    for seed in seeds:
        batch = pictures.batch(size, seed)
        case = make(seed, batch)
        began = time.process_time()
        answer: Answer = exact_answer(case, pictures.data.shape, classes, Effort(), torch.Generator().manual_seed(seed))
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


Setting: TypeAlias = tuple[str, Pictures, int, Callable[[int, Examples], Case], int]


def settings(which: list[str], folder: Path, trained: Path | None) -> Iterator[Setting]:
    """Label, data, batch size, how a case is made, classes."""
    hundred = Pictures.of("cifar100", folder)

    def plain(kind: str, size: int) -> Callable[[int, Examples], Case]:
        return lambda seed, batch: case_of((m := network(kind, seed)), gradients(m, batch), size, size, None)

    if "fedsgd" in which:
        for kind in ("t10", "tanh"):
            for size in (1, 4, 8, 16, 32, 64):
                yield f"FedSGD {kind}, B = {size}", hundred, size, plain(kind, size), 100
        for kind in ("sigmoid", "gelu"):
            for size in (4, 16):
                yield f"FedSGD {kind}, B = {size}", hundred, size, plain(kind, size), 100
    if "noise" in which:
        for kind, size in (("t10", 4), ("t10", 16), ("tanh", 4), ("tanh", 16)):
            for level in (1e-3, 1e-2, 1e-1):

                def noisy(seed: int, batch: Examples, kind: str = kind, level: float = level) -> Case:
                    m = network(kind, seed)
                    return case_of(m, noised(gradients(m, batch), level, seed), len(batch), len(batch), None)

                yield f"noise {level:g} {kind}, B = {size}", hundred, size, noisy, 100
    if "fedavg" in which:
        for kind in ("t10", "tanh"):
            for size, step in ((4, 1), (16, 2)):
                for lr in (1e-3, 1e-2, 1e-1):

                    def steps(seed: int, batch: Examples, kind: str = kind, step: int = step, lr: float = lr) -> Case:
                        m = network(kind, seed)
                        sizes = [step] * (len(batch) // step)
                        return case_of(m, local_update(m, batch, sizes, lr), len(batch), step, lr)

                    yield f"FedAvg {kind}, {size // step} steps of {step}, lr {lr:g}", hundred, size, steps, 100
    if "trained" in which and trained is not None:
        for path in sorted(trained.glob("*.safetensors")):
            model = network(path.stem.split("_")[0], 0)
            model.load_state_dict(load_file(path))
            for size in (4, 16, 32):

                def after(seed: int, batch: Examples, model: nn.Module = model) -> Case:
                    return case_of(model, gradients(model, batch), len(batch), len(batch), None)

                yield f"trained {path.stem}, B = {size}", hundred, size, after, 100
    if "lenet" in which:
        yield "LeNet (sigmoid), CIFAR-10, B = 1", Pictures.of("cifar10", folder), 1, plain("lenet", 1), 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="+", choices=["fedsgd", "noise", "fedavg", "trained", "lenet"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--trained", type=Path, help="folder of KIND_SEED.safetensors")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record = Record()
    for label, pictures, size, make, classes in settings(asked.which, asked.data_dir, asked.trained):
        number = asked.batches if size < 64 else max(1, asked.batches // 4)
        seeds = range(asked.first_seed, asked.first_seed + number)
        measure(label, pictures, seeds, size, make, record, classes)
    print(record.line())


if __name__ == "__main__":
    main()
