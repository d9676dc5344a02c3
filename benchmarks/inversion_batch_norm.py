"""Clients that train in training mode: what `inputs` gets when it matches their batch norms, and when it does not.

    python benchmarks/inversion_batch_norm.py --data-dir DATA
    python benchmarks/inversion_batch_norm.py --data-dir DATA --evidence

Each sample or pair of CIFAR-10 test images, at 16 x 16 pixels, meets a small convolutional network with batch norm that
is fresh, or the same one after 200 steps. One client of a real federation makes one step in training mode and sends its
update, buffers and all, or its gradient alone. "before" matches gradients in evaluation mode whatever the client did,
"after" in the mode that is read off the message. The attack is told neither labels nor truth. Held out: seeds from
90,000; development used other seeds and 32 x 32 pixels. --evidence: of gradients alone, in both modes, how the true
batch explains them in either mode, what the rows of weights say, and how often the mode is read wrong.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from inversion_workloads import Pictures
from torch import Tensor, nn
from torch.nn import functional

from fedspill.dataset import Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.intervals import mean_interval
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.gradient_matching import match_gradients
from fedspill.leaks.inputs.inputs import Reconstruction, unsure
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs, attacked_messages
from fedspill.leaks.inputs.scoring.similarity import matched, psnr, ssim
from fedspill.leaks.inputs.search.batch_norm import BatchNorms, tracking_batch_norms, weight_gradient_cosine
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.models.resnet import ResNet18
from fedspill.seeds import seed_of
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace, View
from fedspill.training import Algorithm, BatchNorm, LocalTraining

FIRST_SEED, LR, SHAPE, CLASSES = 90_000, 0.05, (3, 16, 16), 10


@dataclass(frozen=True)
class Setting:
    activation: type[nn.Module]
    trained: bool
    algorithm: Algorithm
    samples: int

    def __str__(self) -> str:
        sent = "update with buffers" if self.algorithm == "fedavg" else "gradient alone"
        return f"{self.activation.__name__}{', trained' * self.trained}, {sent}, B = {self.samples}"


SETTINGS = (
    Setting(nn.ReLU, False, "fedavg", 1),
    Setting(nn.ReLU, False, "fedsgd", 1),
    Setting(nn.ReLU, True, "fedavg", 1),
    Setting(nn.ReLU, True, "fedsgd", 1),
    Setting(nn.ReLU, False, "fedavg", 2),
    Setting(nn.Tanh, False, "fedavg", 1),
    Setting(nn.Tanh, False, "fedavg", 2),
)


def network(activation: type[nn.Module], seed: int) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "network"))
        for index, (channels, out, stride) in enumerate(((3, 16, 1), (16, 32, 2), (32, 32, 2))):
            layers[f"conv{index}"] = nn.Conv2d(channels, out, 3, padding=1, stride=stride)
            layers[f"norm{index}"] = nn.BatchNorm2d(out)
            layers[f"act{index}"] = activation()
        layers |= {"flat": nn.Flatten(), "head": nn.Linear(32 * 16, CLASSES)}
    return nn.Sequential(layers)


def trained(data: Examples, activation: type[nn.Module], steps: int = 200) -> nn.Module:
    model, rng = network(activation, 0), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(steps):
        batch = data.take(torch.randint(len(data), (64,), generator=rng))
        optimizer.zero_grad()
        functional.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
    return model


def halved(batch: Examples) -> Examples:
    return Examples(functional.avg_pool2d(batch.x, 2), batch.y)


def seen(model: nn.Module, batch: Examples, setting: Setting, others: Tensor, batch_norm: BatchNorm = "train") -> View:
    """What a server sees of the one client's step, and knows."""
    protocol = {
        "classes": CLASSES, "head_weight": "head.weight", "head_bias": "head.bias", "algorithm": setting.algorithm,
        "batch_size": len(batch), "local_lr": LR, "local_epochs": 1, "optimizer": "sgd", "client_count": 1,
    }  # fmt: skip
    trace = MemoryTrace(protocol)
    training = LocalTraining(setting.algorithm, lr=LR, batch_size=len(batch), batch_norm=batch_norm)
    Horizontal(model, [batch], Settings(rounds=1, training=training), 1, CLASSES, trace).run()
    known = {"architecture": partial(copy.deepcopy, model), "unlabelled_aux": others}
    return trace.view(CURIOUS_SERVER, knowledge=known)


def inputs(case: AttackedMessage, view: View, seed: int) -> RecoveredInputs:
    """What the attack `inputs` does with a case, batches of two included."""
    rng = torch.Generator().manual_seed(seed)
    answer = recover_exactly(case, SHAPE, CLASSES, RootSearchEffort(), rng)
    if not unsure(answer):
        return answer
    other = match_gradients(case, SHAPE, CLASSES, view, rng, moves=Reconstruction().moves)
    return other if not answer.tried else min(answer, other, key=lambda one: one.unexplained)


def quality(pictures: Pictures, samples: Tensor, real: Tensor) -> tuple[float, float]:
    """Mean PSNR and SSIM in pixels, matched one to one; nothing returned counts as a grey image."""
    true, guessed = ((x.double() * pictures.deviation + pictures.mean).clamp(0, 1) for x in (real, samples))
    guessed = guessed[matched(guessed, true)] if len(samples) else torch.full_like(true, 0.5)
    return float(psnr(guessed, true).mean()), float(ssim(guessed, true).mean())


def measure(setting: Setting, seeds: range, pictures: Pictures, train: Examples) -> None:
    after = trained(train, setting.activation) if setting.trained else None
    scores: dict[str, list[tuple[float, float]]] = {"grey image": [], "before": [], "after": []}
    passed, answered = list[float](), 0
    began = time.process_time()
    for seed in seeds:
        batch = halved(pictures.batch(setting.samples, seed))
        view = seen(after or network(setting.activation, seed), batch, setting, train.x[:200])
        cases, _ = attacked_messages(view, 1, torch.Generator().manual_seed(seed))
        scores["grey image"].append(quality(pictures, batch.x[:0], batch.x))
        for name, case in (("before", replace(cases[0], norms=BatchNorms())), ("after", cases[0])):
            answer = inputs(case, view, seed)
            scores[name].append(quality(pictures, answer.samples, batch.x))
            answered += name == "before" and len(answer.samples) > 0
            passed += [scores[name][-1][0]] if name == "after" and bool(answer.certified.any()) else []
    print(f"{setting}: n = {len(seeds)}, {time.process_time() - began:.0f} CPU s", flush=True)
    gains = [(a - c, b - d) for (a, b), (c, d) in zip(scores["after"], scores["before"], strict=True)]
    for name, values in {**scores, "paired gain": gains}.items():
        _line(name, values)
    none = len(seeds) - answered
    print(
        f"  before: nothing in {none}; after: vouched for {len(passed)}, least {min(passed, default=0):.0f} dB",
        flush=True,
    )


def evidence(seeds: range, pictures: Pictures, train: Examples) -> None:
    networks = {"small, ReLU": partial(network, nn.ReLU), "small, Tanh": partial(network, nn.Tanh), "ResNet18": _resnet}
    for (name, build), mode, size in product(networks.items(), ("train", "eval"), (1, 2, 4)):
        cosines, right, other, wrong = [], [], [], 0
        for seed in seeds:
            batch, model = halved(pictures.batch(size, seed)), build(seed)
            view = seen(model, batch, Setting(nn.ReLU, False, "fedsgd", size), train.x[:200], mode)
            case = attacked_messages(view, 1, torch.Generator().manual_seed(seed))[0][0]
            cosines.append(weight_gradient_cosine(case.model, case.gradients) or 0.0)
            wrong += bool(case.norms.by_batch) != (mode == "train")
            told, silent = BatchNorms(frozenset(tracking_batch_norms(case.model))), BatchNorms()
            for norms, misses in (
                ((told, right), (silent, other)) if mode == "train" else ((silent, right), (told, other))
            ):
                gradients, targets = gradients_of(norms.as_client_ran(case.model)), one_hot(batch.y, CLASSES)
                misses.append(mismatch_up_to_scale(gradients, case.gradient_list, batch.x.double(), targets)[0])
        shown = ", ".join(
            f"{what} {min(values):.2g} to {max(values):.2g}"
            for what, values in (("cosine", cosines), ("mismatch", right), ("in the other mode", other))
        )
        print(f"{name}, {mode}, B = {size}: {shown}; read wrong {wrong} of {len(seeds)}", flush=True)


def _resnet(seed: int) -> nn.Module:
    return ResNet18().build(SHAPE, CLASSES, seed=seed_of(seed, "network"))


def _line(name: str, values: Sequence[tuple[float, float]]) -> None:
    psnrs, ssims = (torch.tensor(column) for column in zip(*values, strict=True))
    spread = "PSNR {:.1f} [{:.1f}, {:.1f}] dB".format(float(psnrs.mean()), *mean_interval(psnrs))
    print(
        f"  {name:<12} {spread}, SSIM {float(ssims.mean()):.3f} [{', '.join(f'{x:.3f}' for x in mean_interval(ssims))}]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--number", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--evidence", action="store_true", help="how the mode is read, instead")
    parser.add_argument("--only", type=int, nargs="*", help="settings by number, from 0")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pictures = Pictures.of("cifar10", asked.data_dir)
    train = halved(pictures.data.train)
    if asked.evidence:
        evidence(range(asked.first_seed, asked.first_seed + asked.number), pictures, train)
        return
    for index, setting in enumerate(SETTINGS):
        if asked.only is None or index in asked.only:
            measure(setting, range(asked.first_seed, asked.first_seed + asked.number), pictures, train)


if __name__ == "__main__":
    main()
