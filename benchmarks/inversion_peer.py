"""Runs the `breaching` package on the workloads of reconstruction; to be called with the Python of its own environment.

    PYTHONPATH=src benchmarks/.venv-breaching/bin/python benchmarks/inversion_peer.py --data-dir DATA --out peer.json

Its own configurations "invertinggradients" (labels given) and "deepleakage" (labels sought jointly), its own loop, on
our models, images and gradients. Only the number of iterations is cut, to `--seconds` of CPU (of the clock with
--device cuda); the candidate is looked at on the way, which is not counted. Inverting Gradients gets as many iterations
as fit, and with them its schedule.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from inversion_workloads import WORKLOADS, Pictures, gradients, network, seconds
from torch import Tensor, nn


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
    """Notes seconds and PSNR of the candidate every few steps, looking not counted; stops when time is up."""

    def __init__(self, pictures: Pictures, real: Tensor, limit: float, every: int, device: str) -> None:
        self.curve: list[tuple[float, int, float, float]] = []
        self.pictures, self.real, self.limit, self.every, self.device = pictures, real, limit, every, device
        self.began, self.looking, self.steps = seconds(device), 0.0, 0

    def look(self, candidate: Tensor) -> None:
        self.steps += 1
        if self.steps % self.every and self.seconds < self.limit:
            return
        start = seconds(self.device)
        spent = start - self.began - self.looking
        values, _ = self.pictures.quality(torch.nan_to_num(candidate.detach().cpu()), self.real)
        self.curve.append((spent, self.steps, float(values.mean()), float(values.min())))
        self.looking += seconds(self.device) - start
        if spent > self.limit:
            raise KeyboardInterrupt  # which its loop takes for a person who has seen enough

    @property
    def seconds(self) -> float:
        return seconds(self.device) - self.began - self.looking


def attack(
    breaching: Any,
    name: str,
    workload: str,
    pictures: Pictures,
    seed: int,
    limit: float,
    iterations: int | None,
    device: str,
) -> Watch:
    from omegaconf import OmegaConf

    kind, _, size = WORKLOADS[workload]
    model, batch = network(kind, seed), pictures.batch(size, seed)
    sent = [gradient.to(device) for gradient in gradients(model, batch).values()]
    model = model.to(device)
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
    given = batch.y.clone().to(device) if name == "invertinggradients" else None
    told = {"num_data_points": size, "labels": given, "local_hyperparams": None}
    shared = [{"gradients": sent, "buffers": None, "metadata": told}]
    torch.manual_seed(seed)
    setup = {"device": torch.device(device), "dtype": torch.float}
    attacker = breaching.attacks.prepare_attack(model, nn.CrossEntropyLoss(), config, setup)
    every = 1 if name == "deepleakage" else 10  # an iteration of it is 20 evaluations
    watch = Watch(pictures, batch.x, limit, every, device)
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
    watch.began = seconds(device)
    attacker.reconstruct(payload, shared, {}, dryrun=False)
    return watch


def fitting(breaching: Any, workload: str, pictures: Pictures, seed: int, limit: float, device: str) -> int:
    """Iterations of Inverting Gradients that fit into the limit."""
    trial = attack(breaching, "invertinggradients", workload, pictures, seed, 1e9, 20, device)
    return max(50, min(24_000, int(20 * limit / trial.seconds)))


def runs(asked: argparse.Namespace, breaching: Any) -> Iterator[dict[str, Any]]:
    for workload in asked.workloads:
        pictures = Pictures.of(WORKLOADS[workload][1], asked.data_dir)
        for name in asked.attacks:  # what is set up once is not counted
            attack(breaching, name, workload, pictures, asked.first_seed - 1, 0.5, 5, asked.device)
        for seed in range(asked.first_seed, asked.first_seed + asked.number):
            for name in asked.attacks:
                how = (workload, pictures, seed, asked.seconds)
                many = fitting(breaching, *how, asked.device) if name == "invertinggradients" else None
                watch = attack(breaching, name, *how, many, asked.device)
                yield {"workload": workload, "seed": seed, "by": f"breaching {name}", "curve": watch.curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--first-seed", type=int, default=60_000)
    parser.add_argument("--device", default="cpu")
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
