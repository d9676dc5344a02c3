"""The published route of Table 10 at full length, all batches and both label attacks stacked as one search on a GPU.

    PYTHONPATH=src python papers/003/table10_stacked.py --data-dir DATA --device cuda --out OUT --batches 20

The same networks, batches, labels, recipe and scores as table 003/10, whose full scale runs one batch after the other.
Every batch meets a network of its own, so networks are stacked too: restart r of the engine is batch r under one label
attack. Writes OUT/003_10_stacked.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedspill.leaks.inputs.search.objectives import GradientDistance
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.leaks.inputs.search.search import Box, SearchResult, one_hot, reconstruct
from fedspill.registry import paper_tables
from fedspill.reproduce import Run
from fedspill.trace import Origin, Truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-003"))
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--steps", type=int, default=24_000)
    parser.add_argument(
        "--budget", type=float, help="seconds to fit into, with fewer steps (and their schedule) if need be"
    )
    asked = parser.parse_args()
    tables = paper_tables("003")

    class EachItsOwn(GradientDistance):
        """The cosine distance where every restart has an observed gradient of its own, (R, *parameter)."""

        def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
            inner = torch.stack([(g * o).flatten(1).sum(1) for g, o in zip(candidate, observed, strict=True)]).sum(0)
            own = torch.stack([g.flatten(1).square().sum(1) for g in candidate]).sum(0)
            return 1 - inner / (own * size).sqrt()

    run = Run("full", asked.data_dir, asked.device, asked.seed)
    data = tables.Cifar100(normalize=True).load(asked.data_dir)
    raw = tables.Cifar100().load(asked.data_dir).train.x
    mean, deviation = raw.mean((0, 2, 3))[:, None, None], raw.std((0, 2, 3))[:, None, None]
    spec = tables.Mlp(widths=(1024, 1024, 1024), last_activation="tanh")
    networks = tables._fresh(spec, data, run)
    partition = tables.HalfQuarterRest(batch=4, shortage="reuse")
    setup = tables.Setup(data, networks, partition, 4, data.test, tables._unlabelled(data, run))
    shares = partition.split(data.test, asked.batches, tables.generator(run.seed, "batches", 4))
    plain = replace(run, device="cpu")
    states, seen, targets, sources, batches = [], [], [], [], []
    for index, share in enumerate(shares):
        network, batch = networks(index), data.test.take(share)
        trace = tables.record_update(network, setup, batch, plain, "fedsgd")
        (message,) = trace.messages("gradient")
        for name, attack in (("llg", tables.LLG()), ("llbg", tables.LLBG())):
            counts = attack(trace.view(tables.CURIOUS_SERVER), seed=run.seed).counts[0]
            targets.append(one_hot(torch.arange(100).repeat_interleave(counts), 100).float())
            states.append({key: value.detach() for key, value in network.named_parameters()})
            seen.append(message.tensors)
            sources.append(name)
            batches.append((index, batch))
    names, device = list(states[0]), asked.device
    stacked = {key: torch.stack([state[key] for state in states]).to(device) for key in names}
    observed = [torch.stack([one[key] for one in seen]).to(device) for key in names]
    size = torch.stack([o.flatten(1).square().sum(1) for o in observed]).sum(0)
    skeleton: nn.Module = spec.build(data.shape, 100, seed=0).to(device)

    def loss(parameters: dict[str, Tensor], x: Tensor, soft: Tensor) -> Tensor:
        return -(soft * functional_call(skeleton, parameters, (x,)).log_softmax(-1)).sum(-1).mean()

    def gradients(x: Tensor, soft: Tensor) -> list[Tensor]:
        found = vmap(grad(loss))(stacked, x, soft)
        return [found[key] for key in names]

    box = Box(((0 - mean) / deviation).to(device), ((1 - mean) / deviation).to(device))

    def search(steps: int) -> SearchResult:
        recipe = replace(inverting_gradients(steps, 0.2), objective=EachItsOwn(), restarts=len(states), enough=-1.0)
        rng, soft = torch.Generator().manual_seed(run.seed), torch.stack(targets).to(device)
        return reconstruct(recipe, gradients, observed, (4, *data.shape), 100, rng=rng, targets=soft, box=box)

    steps = asked.steps
    if asked.budget:
        search(20)
        began = time.time()
        float(search(100).loss.sum())
        steps = min(steps, int(asked.budget / (time.time() - began) * 100))
    began = time.time()
    found = search(steps)
    rows: list[dict[str, Any]] = []
    held = tables.Examples((data.test.x * deviation + mean).clamp(0, 1), data.test.y)
    for source in ("llg", "llbg"):
        mine = [r for r, name in enumerate(sources) if name == source]
        of = [Origin(batches[r][0], "client:0") for r in mine]
        facts: dict[tuple[Origin, str], Tensor] = {}
        for origin, r in zip(of, mine, strict=True):
            facts[origin, "inputs"] = (batches[r][1].x * deviation + mean).clamp(0, 1)
            facts[origin, "input_labels"] = batches[r][1].y
            facts[origin, "label_counts"] = torch.bincount(batches[r][1].y, minlength=100)
        samples = [(found.x[r].cpu() * deviation + mean).clamp(0, 1) for r in mine]
        labels = [targets[r].argmax(1) for r in mine]
        no = [torch.zeros(4, dtype=torch.bool) for _ in mine]
        guess = tables.Inputs(of, samples, no, torch.ones(len(mine), dtype=torch.bool), labels)
        printed = tables.published("003", "10")[source]
        for row in tables.rows_of_inputs(
            guess, Truth(facts, [held]), source, "paper", printed, f"{found.steps:,} steps."
        ):
            rows.append(asdict(row))
            print(row.line(), flush=True)
    print(f"{found.steps} steps of {len(states)} searches in {time.time() - began:.0f} s", flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    report = {"paper": "003", "table": "10", "scale": "full", "seed": asked.seed, "rows": rows}
    (asked.out / "003_10_stacked.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
