"""Exact recovery beside one step of a leading linear pair: one softmax layer, convolutions below, five epochs.

    python benchmarks/exact_inputs.py softmax-10 softmax-100 softmax-1000 --seed 97000 --batches 20
    python benchmarks/exact_inputs.py convolutions peel-256 peel-1024 spear-200 epochs-lr.01 --seed 97000 --batches 20

One line per number of samples: batches of which every image came back above 60 dB, with an exact 95 % interval; images
above 60 and 30 dB; images that were vouched for, and those of them below 30 dB, which must be none. Each batch has a
fresh network and fresh images. The number of samples is known, labels are not. Where nothing is recovered, what a
guesser has is the mean image: its share above 30 dB is printed as chance. Labels of softmax-1000 are drawn at random,
since no data set at hand has as many classes. Peeling is told 500 test images, which say between which values inputs
lie. `spear` is SPEAR's network (Dimitrov et al. 2024): five hidden rectified layers. FEMNIST is not at hand;
`femnist-like` stands for it: digits of MNIST as black strokes on white ground, a head of 62 classes, labels drawn
at random among them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from fedspill.dataset import Dataset, Examples
from fedspill.leaks.inputs.exact.peel_honest import peel_honest
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.fedavg_leakage import FedAvgLeakage
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.scoring.pairs import guess_psnr
from fedspill.leaks.inputs.scoring.similarity import Range, psnr
from fedspill.placement import moved
from fedspill.registry import make
from fedspill.trace import Origin
from fedspill.training import Schedule

EXACT, SEEN = 60.0, 30.0  # dB


@dataclass(frozen=True)
class Cell:
    data: str
    network: Callable[[Dataset], nn.Module]
    samples: tuple[int, ...]
    lr: float | None = None  # of five epochs, each one step; None: a gradient
    classes: int | None = None  # where labels are drawn at random among so many
    peeled: bool = False  # row by row, by inputs at hand
    momentum: float = 0.0
    batch: int | None = None  # of a local step, cut at random in every epoch; None: all samples
    normalize: bool = False  # inputs with mean 0 and deviation 1 in each channel
    inverted: bool = False  # 1 - x


def softmax_layer(dataset: Dataset) -> nn.Module:
    made: nn.Module = make("models", "logistic").module(dataset.shape, len(dataset.classes))
    return made


def behind_convolutions(dataset: Dataset) -> nn.Module:
    channels, height, width = dataset.shape
    features = 32 * ((height + 1) // 2) * ((width + 1) // 2)
    lower = [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    upper = [nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, len(dataset.classes))]
    return nn.Sequential(*lower, nn.Flatten(), *upper)


def strided(dataset: Dataset, classes: int = 10) -> nn.Module:
    channels, height, width = dataset.shape
    lower = [nn.Conv2d(channels, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten()]
    features = 16 * ((height + 1) // 2) * ((width + 1) // 2)
    upper = [nn.Linear(features, 100), nn.ReLU(), nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(*lower, *upper)


def dense(dataset: Dataset, classes: int = 10) -> nn.Module:
    made: nn.Module = make("models", "mlp", {"widths": [100, 100]}).module(dataset.shape, classes)
    return made


def thousand_classes(dataset: Dataset) -> nn.Module:
    made: nn.Module = make("models", "logistic").module(dataset.shape, 1_000)
    return made


def rectified(*widths: int) -> Callable[[Dataset], nn.Module]:
    def made(dataset: Dataset) -> nn.Module:
        network: nn.Module = make("models", "mlp", {"widths": list(widths)}).module(dataset.shape, len(dataset.classes))
        return network

    return made


def of_width(width: int) -> tuple[int, ...]:
    """Samples that are 0.1 to 0.4 of the width."""
    return tuple(round(share * width) for share in (0.1, 0.2, 0.3, 0.4))


EPOCHS = 5
FEMNIST = 62  # classes: digits, and letters of both cases
CELLS = {
    "softmax-10": Cell("mnist", softmax_layer, (1, 2, 3, 4)),
    "softmax-100": Cell("cifar100", softmax_layer, (8, 16, 32, 40)),
    "softmax-1000": Cell("cifar100", thousand_classes, (8, 16, 32), classes=1_000),
    "peel-256": Cell("mnist", rectified(256), (16,), peeled=True),
    "peel-1024": Cell("mnist", rectified(1024), (32,), peeled=True),
    **{
        f"spear-{width}": Cell("cifar100", rectified(*[width] * 5), of_width(width), normalize=True)
        for width in (200, 400, 640)
    },
    "convolutions": Cell("digits", behind_convolutions, (4, 8, 16, 32)),
    "convolutions-cifar10": Cell("cifar10", behind_convolutions, (4, 8, 16, 32)),
    **{f"epochs-lr{lr}": Cell("mnist", dense, (4, 10), float(lr)) for lr in (".001", ".01", ".1")},
    "epochs-momentum": Cell("mnist", dense, (4, 10), 0.01, momentum=0.9),
    **{f"epochs-cnn-lr{lr}": Cell("mnist", strided, (4, 10), float(lr)) for lr in (".001", ".01", ".1")},
    "epochs-cnn-momentum": Cell("mnist", strided, (4, 10), 0.01, momentum=0.9),
    **{f"epochs-fashion-lr{lr}": Cell("fashion-mnist", dense, (4, 10), float(lr)) for lr in (".001", ".01", ".1")},
    "epochs-fashion-momentum": Cell("fashion-mnist", dense, (4, 10), 0.01, momentum=0.9),
    **{
        f"epochs-cnn-fashion-lr{lr}": Cell("fashion-mnist", strided, (4, 10), float(lr)) for lr in (".001", ".01", ".1")
    },
    **{f"epochs-cut-lr{lr}": Cell("mnist", dense, (8,), float(lr), batch=4) for lr in (".001", ".01", ".1")},
    **{f"epochs-cnn-cut-lr{lr}": Cell("mnist", strided, (8,), float(lr), batch=4) for lr in (".001", ".01", ".1")},
    **{
        f"epochs{kind}-femnist-like-lr{lr}": Cell(
            "mnist", partial(network, classes=FEMNIST), (4, 10), float(lr), FEMNIST, inverted=True
        )
        for kind, network in (("", dense), ("-cnn", strided))
        for lr in (".001", ".01", ".1")
    },
    "epochs-cnn-fashion-momentum": Cell("fashion-mnist", strided, (4, 10), 0.01, momentum=0.9),
}


def sent_after(
    network: nn.Module, x: Tensor, y: Tensor, lr: float, momentum: float, parts: list[Tensor]
) -> dict[str, Tensor]:
    """Minus the update of local steps on these parts of the samples in float32, over the learning rate."""
    own = copy.deepcopy(network)
    optimizer = torch.optim.SGD(own.parameters(), lr, momentum)
    for part in parts:
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(x[part]), y[part]).backward()
        optimizer.step()
    after = own.state_dict()
    return {name: (tensor.double() - after[name].double()) / lr for name, tensor in network.state_dict().items()}


def sent(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of one step in float32."""
    nn.functional.cross_entropy(network(x), y).backward()
    gradients = {name: p.grad.double() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return gradients


def published(message: AttackedMessage, dataset: Dataset, y: Tensor, device: str, rng: torch.Generator) -> Tensor:
    """(2, B, ...) what Dimitrov et al.'s attack returns with its released weights, and with ours for small networks.

    It is told the labels, which is more than it gets in an audit.
    """
    placed, known = moved(message, torch.device(device)), dataset.test.x[:500]
    attacks = [FedAvgLeakage(lr=0.4, agreement=1000.0), FedAvgLeakage()]
    found = [a.reconstructed(placed, dataset.shape, len(dataset.classes), y, known, rng).samples for a in attacks]
    return torch.stack(found)


def above(samples: Tensor, real: Tensor, span: Range) -> int:
    """Images above 30 dB."""
    return int((guess_psnr(samples, real, span) > SEEN).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", choices=[*CELLS, "all"])
    parser.add_argument("--samples", nargs="+", type=int, help="instead of the cell's own")
    parser.add_argument("--seed", type=int, default=96_000, help="of the first batch")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="of one batch, as reckoned")
    parser.add_argument("--published", action="store_true", help="Dimitrov et al. 2022, labels given, beside ours")
    parser.add_argument("--device", default="cpu", help="of the published attack")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rows", type=Path, help="a file that gets one JSON line for each batch, as it ends")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in CELLS if "all" in asked.cells else asked.cells:
        cell = CELLS[name]
        dataset: Dataset = make("datasets", cell.data, {"normalize": True} if cell.normalize else {}).load(
            asked.data_dir
        )
        mean = dataset.test.x.double().mean(0)
        mean = 1 - mean if cell.inverted else mean
        for samples in asked.samples or cell.samples:
            whole = exact = seen = vouched = false = by_mean = 0
            spent, reasons, by_search = 0.0, set(), [0, 0]
            for seed in range(asked.seed, asked.seed + asked.batches):
                rng = torch.Generator().manual_seed(seed)
                torch.manual_seed(seed)
                network = cell.network(dataset)
                chosen = dataset.train.take(torch.randperm(len(dataset.train), generator=rng)[:samples])
                if cell.inverted:
                    chosen = Examples(1 - chosen.x, chosen.y)
                if cell.classes is not None:
                    chosen = Examples(chosen.x, torch.randint(cell.classes, (samples,), generator=rng))
                if cell.lr is None:
                    gradients, schedule = sent(network, chosen.x, chosen.y), Schedule(samples, samples)
                else:
                    size = cell.batch or samples
                    parts = [p for _ in range(EPOCHS) for p in torch.randperm(samples, generator=rng).split(size)]
                    gradients = sent_after(network, chosen.x, chosen.y, cell.lr, cell.momentum, parts)
                    schedule = Schedule(samples, size, EPOCHS)
                message = AttackedMessage(
                    Origin(0, "client:0"),
                    network.double().eval(),
                    gradients,
                    schedule,
                    cell.lr,
                    plain=not cell.momentum,
                    momentum=cell.momentum,
                )
                began = time.process_time()
                if cell.peeled:
                    found = peel_honest(message, dataset.test.x[:500]) or RecoveredInputs.none("nothing", tried=True)
                else:
                    found = recover_exactly(
                        message,
                        dataset.shape,
                        cell.classes or len(dataset.classes),
                        RootSearchEffort(seconds=asked.seconds),
                        rng,
                    )
                seconds = time.process_time() - began
                spent += seconds
                real = chosen.x.double()
                span = Range.of([real])
                reasons |= {found.why} - {""}
                by_mean += int((psnr(span.unit(mean.expand_as(real)), span.unit(real)) > SEEN).sum())
                if asked.published and cell.lr is not None:
                    both = published(message, dataset, chosen.y, asked.device, rng)
                    by_search = [n + above(x, real, span) for n, x in zip(by_search, both, strict=True)]
                row = {"cell": name, "B": samples, "seed": seed, "exact": 0, "seen": 0, "vouched": 0, "false": 0}
                if len(found.samples):
                    quality = guess_psnr(found.samples, real, span)
                    row["exact"], row["seen"] = int((quality > EXACT).sum()), int((quality > SEEN).sum())
                    row["vouched"] = int(found.certified.sum())
                    row["false"] = int((guess_psnr(found.samples[found.certified], real, span) < SEEN).sum())
                exact, seen = exact + row["exact"], seen + row["seen"]
                vouched, false, whole = (
                    vouched + row["vouched"],
                    false + row["false"],
                    whole + (row["exact"] == samples),
                )
                if asked.rows:
                    more = {"published": by_search} if asked.published else {}
                    with asked.rows.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**row, "seconds": round(seconds, 3), "why": found.why, **more}) + "\n")
            n, images = asked.batches, asked.batches * samples
            interval = binomtest(whole, n).proportion_ci(method="exact")
            print(
                f"{name:20} B {samples:3} n {n}: whole batches {whole}/{n} [{interval.low:.2f}, {interval.high:.2f}]; "
                f"images above 60 dB {exact}/{images}, 30 dB {seen}/{images}, chance {by_mean}/{images}; "
                f"{f'Dimitrov et al. 30 dB {by_search} of {images}; ' if asked.published else ''}"
                f"vouched for {vouched}, of them false {false}; "
                f"CPU s each {spent / n:.2f} {'; '.join(sorted(reasons))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
