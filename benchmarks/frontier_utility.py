"""What each defense costs where nothing else differs: one federation, trained with each until it hardly gains.

    FEDSPILL_DATA=... python benchmarks/frontier_utility.py --out OUT
    python benchmarks/frontier_utility.py --out OUT --summary

MNIST, 20 clients with 600 random images each, a perceptron, 60 rounds of one local pass. `--data digits --clients 15
--samples 60` are smaller ones. Every training is one line of
OUT/utility.jsonl, written when it ends; what is there is not done again, so that a second call goes on, and --part i/n
shares the work out. The summary holds each seed against the same seed without a defense, and says how much the last
quarter of the rounds still gained: that is how far "hardly" goes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedspill.dataset import Dataset
from fedspill.defense import Defense
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.dropout import Dropout
from fedspill.defenses.frozen_head import FrozenHead
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.defenses.guard import Guard
from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.defenses.larger_batches import LargerBatches
from fedspill.defenses.mixed_classes import MixedClasses
from fedspill.defenses.quantization import Quantization
from fedspill.defenses.secure_aggregation import SecureAggregation
from fedspill.defenses.verify import guarantee_of
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import accuracy
from fedspill.intervals import mean_interval
from fedspill.partitions.iid import IID
from fedspill.partitions.shares import share_out
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.training import LocalTraining

FILE = "utility.jsonl"
NONE = "none"
CLIENTS, SAMPLES, PUBLIC = 20, 600, 50  # images a client; public ones a class
TRAINING = LocalTraining(lr=0.3, batch_size=32)
DEFENSES: dict[str, tuple[Defense, ...]] = {
    NONE: (),
    "dp-sgd, clip 2, multiplier 0.3": (DpSgd(clip=2.0, noise_multiplier=0.3),),
    "dp-sgd, clip 1, multiplier 1": (DpSgd(clip=1.0, noise_multiplier=1.0),),
    "clip-noise, clip 1, sigma 0.01": (ClipNoise(clip=1.0, sigma=0.01),),
    "clip-noise, clip 1, sigma 0.1": (ClipNoise(clip=1.0, sigma=0.1),),
    "clip-noise, clip 10, sigma 0.03": (ClipNoise(clip=10.0, sigma=0.03),),
    "clip-noise, clip 10, sigma 0.1": (ClipNoise(clip=10.0, sigma=0.1),),
    "clip-noise, Laplace, clip 1, sigma 0.01": (ClipNoise(clip=1.0, sigma=0.01, law="laplace"),),
    "gradient-gate, 5": (GradientGate(),),
    "gradient-gate, 5, pairs": (GradientGate(pairs=True),),
    "gradient-gate, 5, pairs, all samples": (GradientGate(pairs=True, part=1.0),),
    "guard and gradient-gate, 5, pairs": (Guard(), GradientGate(pairs=True)),
    "compression, 0.9": (Compression(drop=0.9),),
    "compression, 0.99": (Compression(drop=0.99),),
    "compression of the head, 0.9": (Compression(drop=0.9, of="head"),),
    "quantization, fp16": (Quantization("fp16"),),
    "quantization, bf16": (Quantization("bf16"),),
    "quantization, int8": (Quantization("int8"),),
    "dropout, 0.5": (Dropout(rate=0.5),),
    "frozen-head": (FrozenHead("head"),),
    "frozen-head, bias": (FrozenHead("bias"),),
    "larger-batches, 4": (LargerBatches(factor=4),),
    "label-smoothing, 0.5": (LabelSmoothing(amount=0.5),),
    "mixed-classes, 1": (MixedClasses(level=1.0),),
    "secure-aggregation": (SecureAggregation(),),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("frontier-utility"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[91, 92, 93])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of a client")
    parser.add_argument("--network", default="mlp", help="mlp has 64 neurons")
    parser.add_argument("--part", default="1/1", help="i/n: every n-th training, from the i-th on")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds after which no training begins")
    parser.add_argument("--only", nargs="+", default=list(DEFENSES), choices=list(DEFENSES), metavar="DEFENSE")
    parser.add_argument("--summary", action="store_true", help="print what OUT holds as Markdown, and train nothing")
    asked = parser.parse_args()
    if asked.summary:
        print("\n".join(summary(lines_of(asked.out))))
        return
    began = time.monotonic()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    dataset: Dataset = make("datasets", asked.data).load(asked.data_dir)
    place, parts = (int(word) for word in asked.part.split("/"))
    for name, seed in [(name, seed) for name in asked.only for seed in asked.seeds][place - 1 :: parts]:
        done = {(line["defense"], line["seed"]) for line in lines_of(asked.out)}
        if (name, seed) in done or time.monotonic() - began > asked.until:
            continue
        found = trained(dataset, DEFENSES[name], seed, asked.rounds, asked.clients, asked.samples, asked.network)
        line = json.dumps({"defense": name, "seed": seed, **found})
        with (asked.out / FILE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def trained(
    dataset: Dataset,
    defenses: tuple[Defense, ...],
    seed: int,
    rounds: int,
    clients: int | None = None,
    samples: int | None = None,
    network_name: str = "mlp",
) -> dict[str, Any]:
    """Accuracy after three quarters of the rounds and after all, seconds a round, and epsilon where there is one."""
    samples = samples or SAMPLES
    shares = share_out(
        dataset, IID(samples=samples), clients or CLIENTS, auxiliary=PUBLIC, rng=generator(seed, "shares")
    )
    options = {"widths": [64]} if network_name == "mlp" else {}
    network = make("models", network_name, options).build(dataset.shape, len(dataset.classes), seed=seed)
    settings = Settings(rounds=rounds, training=TRAINING, defenses=defenses)
    public = shares.auxiliary
    federation = Horizontal(network, list(shares.clients), settings, seed, len(dataset.classes), public=public)
    found: list[float] = []
    began = time.process_time()
    for number in range(rounds):
        federation.round(number)
        if number + 1 in (rounds - rounds // 4, rounds):
            found.append(100 * accuracy(federation.model, dataset.test))
    seconds = (time.process_time() - began) / rounds
    federation.close()
    guarantee = guarantee_of(settings, [samples], sum(p.numel() for p in network.parameters()))
    epsilon = None if guarantee is None else guarantee.epsilon
    return {"before": found[0], "accuracy": found[1], "cpu_per_round": seconds, "epsilon": epsilon, "rounds": rounds}


def lines_of(out: Path) -> list[dict[str, Any]]:
    path = out / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def summary(every: list[dict[str, Any]]) -> list[str]:
    """A row for each defense: accuracy and what it costs, with Student's interval over seeds."""
    plain = {line["seed"]: line for line in every if line["defense"] == NONE}
    head = ("defense", "accuracy", "change", "gained in the last quarter", "epsilon", "CPU a round, of none", "seeds")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in DEFENSES:
        own = [line for line in every if line["defense"] == name and line["seed"] in plain]
        if not own:
            continue
        change = [line["accuracy"] - plain[line["seed"]]["accuracy"] for line in own]
        gained = sum(line["accuracy"] - line["before"] for line in own) / len(own)
        cost = sum(line["cpu_per_round"] for line in own) / sum(plain[line["seed"]]["cpu_per_round"] for line in own)
        epsilon = own[0]["epsilon"]
        seconds = sum(line["cpu_per_round"] for line in own) / len(own)
        cells = (
            name,
            interval([line["accuracy"] for line in own]),
            "" if name == NONE else interval(change),
            f"{gained:+.1f}",
            "" if epsilon is None else f"{epsilon:.3g}",
            f"{seconds:.2f} s" if name == NONE else f"{cost:.1f}",
            str(len(own)),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def interval(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.1f}"
    low, high = mean_interval(torch.tensor(values))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
