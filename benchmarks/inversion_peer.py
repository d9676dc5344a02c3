"""Runs the `breaching` package on the workloads of reconstruction; to be called with the Python of its own environment.

    PYTHONPATH=src benchmarks/.venv-breaching/bin/python benchmarks/inversion_peer.py --data-dir DATA --out peer.json

Its own configurations "invertinggradients" (labels given) and "deepleakage" (labels sought jointly), its own loop, on
our models, images and gradients. Only the number of iterations is cut, to `--seconds` of CPU; the candidate is looked
at on the way, which is not counted. Inverting Gradients gets as many iterations as fit, and with them its schedule.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from inversion_workloads import Pictures, gradients, network
from torch import Tensor, nn

# Workload: network, data set, batch size.
WORKLOADS: dict[str, tuple[str, str, int]] = {
    "t10-4": ("t10", "cifar100", 4),
    "lenet-1": ("lenet", "cifar10", 1),
    "lenet-8": ("lenet", "cifar10", 8),
    "small-cnn-1": ("small-cnn", "cifar10", 1),
    "resnet18-1": ("resnet18", "cifar10", 1),
}


def import_breaching() -> Any:
    """With torchvision's Python parts where its compiled ones do not fit the installed torch."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        import_breaching.library = library  # type: ignore[attr-defined] # dropping it would undo it
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import breaching

    return breaching


class Watch:
    """Notes CPU seconds and PSNR of the candidate every few steps, looking not counted; stops when time is up."""

    def __init__(self, pictures: Pictures, real: Tensor, limit: float, every: int) -> None:
        self.curve: list[tuple[float, int, float, float]] = []
        self.pictures, self.real, self.limit, self.every = pictures, real, limit, every
        self.began, self.looking, self.steps = time.process_time(), 0.0, 0

    def look(self, candidate: Tensor) -> None:
        self.steps += 1
        if self.steps % self.every and self.seconds < self.limit:
            return
        start = time.process_time()
        spent = start - self.began - self.looking
        values, _ = self.pictures.quality(torch.nan_to_num(candidate.detach()), self.real)
        self.curve.append((spent, self.steps, float(values.mean()), float(values.min())))
        self.looking += time.process_time() - start
        if spent > self.limit:
            raise KeyboardInterrupt  # which its loop takes for a person who has seen enough

    @property
    def seconds(self) -> float:
        return time.process_time() - self.began - self.looking


def attack(
    breaching: Any, name: str, kind: str, pictures: Pictures, size: int, seed: int, limit: float, iterations: int | None
) -> Watch:
    from omegaconf import OmegaConf

    model, batch = network(kind, seed), pictures.batch(size, seed)
    config = breaching.get_attack_config(name)
    if iterations:
        config.optim.max_iterations = iterations
    mean, deviation = pictures.mean.flatten().tolist(), pictures.deviation.flatten().tolist()
    classes = len(pictures.data.classes)
    meta = {"shape": list(pictures.data.shape), "mean": mean, "std": deviation, "classes": classes}
    meta |= {"modality": "vision", "task": "classification", "name": "CIFAR"}
    payload = [
        {
            "parameters": [parameter.detach().clone() for parameter in model.parameters()],
            "buffers": [buffer.clone() for buffer in model.buffers()],
            "metadata": OmegaConf.create(meta),
        }
    ]
    given = batch.y.clone() if name == "invertinggradients" else None
    sent = list(gradients(model, batch).values())
    told = {"num_data_points": size, "labels": given, "local_hyperparams": None}
    shared = [{"gradients": sent, "buffers": None, "metadata": told}]
    torch.manual_seed(seed)
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    attacker = breaching.attacks.prepare_attack(model, nn.CrossEntropyLoss(), config, setup)
    every = 1 if name == "deepleakage" and size * len(sent[0]) > 1000 else 10
    watch = Watch(pictures, batch.x, limit, every)
    first = attacker._init_optimizer

    def watched(candidate: list[Tensor]) -> Any:
        optimizer, scheduler = first(candidate)
        step = optimizer.step

        def stepped(*arguments: Any) -> Any:
            value = step(*arguments)
            watch.look(candidate[0])
            return value

        optimizer.step = stepped
        return optimizer, scheduler

    attacker._init_optimizer = watched
    watch.began = time.process_time()
    attacker.reconstruct(payload, shared, {}, dryrun=False)
    return watch


def fitting(breaching: Any, kind: str, pictures: Pictures, size: int, seed: int, limit: float) -> int:
    """Iterations of Inverting Gradients that fit into the limit."""
    trial = attack(breaching, "invertinggradients", kind, pictures, size, seed, 1e9, 20)
    return max(50, min(24_000, int(20 * limit / trial.seconds)))


def runs(asked: argparse.Namespace, breaching: Any) -> Iterator[dict[str, Any]]:
    for workload in asked.workloads:
        kind, data, size = WORKLOADS[workload]
        pictures = Pictures.of(data, asked.data_dir)
        for seed in range(asked.first_seed, asked.first_seed + asked.number):
            for name in asked.attacks:
                many = fitting(breaching, kind, pictures, size, seed, asked.seconds) if name[0] == "i" else None
                watch = attack(breaching, name, kind, pictures, size, seed, asked.seconds, many)
                yield {"workload": workload, "seed": seed, "by": f"breaching {name}", "curve": watch.curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--first-seed", type=int, default=60_000)
    parser.add_argument("--attacks", nargs="+", default=["deepleakage", "invertinggradients"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    breaching = import_breaching()
    with asked.out.open("a", encoding="utf-8") as out:
        for run in runs(asked, breaching):
            out.write(json.dumps(run) + "\n")
            out.flush()
            last = run["curve"][-1] if run["curve"] else None
            best = max((point[2] for point in run["curve"]), default=None)
            print(run["workload"], run["seed"], run["by"], "last", last, "best mean PSNR", best, flush=True)


if __name__ == "__main__":
    main()
