"""The rightmost column of Tables 11 to 13: what a VGG19 is worth after training with each row's defense on.

    PYTHONPATH=src python papers/003/utility.py --data-dir DATA --device cuda --out OUT
    PYTHONPATH=src python papers/003/utility.py --out OUT --summary

The paper trains one network a row and does not say how; here SGD with momentum, one cycle of the learning rate, flips
and shifts. Clipping and noise act on the gradient of every step and compression on what is sent of it, by the defenses
that the tables themselves put on the wire. Every training is one line of OUT/003_utility.jsonl, written when it ends;
what is there is not done again, so that a second call goes on, and --part i/n shares the work out. Without --data-name
it is CIFAR-10, of which more images are at hand than of the paper's CIFAR-100. On a GPU both passes of a step are one
recorded graph, since starting their few hundred kernels takes longer than running them; --eager does without.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.defenses.clip_noise import ClipNoise
from fedspill.intervals import mean_interval
from fedspill.messages import Message
from fedspill.registry import make, paper_tables
from fedspill.reproduce import published

FILE = "003_utility.jsonl"
TABLES = {"11": "Clipped", "12": "Noised", "13": "Compressed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--data-name", default="cifar10")
    parser.add_argument("--model", default="vgg19")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-003"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[2024, 2025, 2026])
    parser.add_argument("--images", type=int, help="train on so many only")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th training, from the i-th on")
    parser.add_argument("--until", type=float, help="seconds after which no further training begins")
    parser.add_argument("--eager", action="store_true", help="no recorded graph on a GPU")
    parser.add_argument("--summary", action="store_true", help="print what OUT holds as Markdown, and train nothing")
    asked = parser.parse_args()
    if asked.summary:
        print("\n".join(summary(asked.out)))
        return
    began = time.time()
    torch.backends.cudnn.benchmark = True  # batches have one shape
    asked.out.mkdir(parents=True, exist_ok=True)
    dataset = make("datasets", asked.data_name, {"normalize": True}).load(asked.data_dir)
    if asked.images is not None:
        dataset = replace(dataset, train=dataset.train.take(torch.arange(min(asked.images, len(dataset.train)))))
    tables = paper_tables("003")
    settings = {
        (number, name): defenses
        for number, kind in TABLES.items()
        for name, defenses in getattr(tables, kind)().settings().items()
        if "no noise" not in name
    }
    work = [(seed, defenses) for seed in asked.seeds for defenses in dict.fromkeys(settings.values())]
    place, parts = (int(word) for word in asked.part.split("/"))
    for seed, defenses in work[place - 1 :: parts]:
        rows = [key for key, same in settings.items() if same == defenses]  # Tables 11 and 12 have one in common
        done = {(line["table"], line["setting"]) for line in lines_of(asked.out) if line["seed"] == seed}
        if done.issuperset(rows) or (asked.until and time.time() - began > asked.until):
            continue
        network = make("models", asked.model).build(dataset.shape, len(dataset.classes), seed=seed)
        graphed = asked.device != "cpu" and not asked.eager
        found = trained(network, dataset, defenses, seed, asked.epochs, asked.lr, asked.device, graphed=graphed)
        about = {"seed": seed, "data": asked.data_name, "model": asked.model, **found}
        lines = [json.dumps({"table": number, "setting": name, **about}) for number, name in rows]
        with (asked.out / FILE).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        print("\n".join(lines), flush=True)


def trained(
    network: nn.Module,
    dataset: Any,
    defenses: tuple[Any, ...],
    seed: int,
    epochs: int,
    lr: float,
    device: str,
    *,
    graphed: bool = False,
) -> dict[str, Any]:
    """Test accuracy after training with the defenses on every step's gradient, how long it took, and its steps."""
    network = network.to(device, memory_format=torch.channels_last)
    x, y = dataset.train.x.to(device), dataset.train.y.to(device)
    rng = torch.Generator().manual_seed(seed)
    steps, size = epochs * (len(x) // 128), 128
    optimizer = torch.optim.SGD(network.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.25)
    network.train()
    fill = recorded(network, moved(x[:size], rng), y[:size]) if graphed else partial(fill_gradients, network)
    began = time.time()
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=rng)
        for rows in torch.split(order[: len(x) // size * size], size):
            fill(moved(x[rows.to(device)], rng), y[rows.to(device)])
            defend(network, defenses, rng)
            optimizer.step()
            cycle.step()
    right = tested(network, dataset.test.x, dataset.test.y, device)
    seconds = (time.time() - began) / epochs
    return {"right": right, "tested": len(dataset.test), "steps": steps, "seconds_per_epoch": round(seconds, 2)}


def fill_gradients(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """Forward and backward pass of one batch."""
    network.zero_grad(set_to_none=True)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.device.type != "cpu", cache_enabled=False):
        loss = nn.functional.cross_entropy(network(x), y)
    loss.backward()  # type: ignore[no-untyped-call]


def recorded(network: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], None]:
    """The same as one CUDA graph, for batches of the shape of x and y."""
    x, y = x.clone(), y.clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # a graph may be recorded only after everything was once set up
        for _ in range(3):
            fill_gradients(network, x, y)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill_gradients(network, x, y)
    written = [parameter.grad for parameter in network.parameters()]

    def replay(new_x: Tensor, new_y: Tensor) -> None:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        for parameter, gradient in zip(network.parameters(), written, strict=True):
            parameter.grad = gradient

    return replay


def defend(network: nn.Module, defenses: tuple[Any, ...], rng: torch.Generator) -> None:
    """Each parameter's gradient replaced by what the defenses make of the whole gradient."""
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    for defense in defenses:
        if isinstance(defense, ClipNoise):
            # One long vector instead of 70 tensors: norm and noise are the same, and a GPU has less to start.
            whole = torch.cat([g.as_strided((g.numel(),), (1,)) for g in gradients.values()])
            whole = defense.clipped_and_noised({"all": whole}, rng)["all"]
            parts = zip(gradients.items(), whole.split([g.numel() for g in gradients.values()]), strict=True)
            gradients = {n: part.as_strided(g.shape, g.stride(), part.storage_offset()) for (n, g), part in parts}
        else:
            message = Message(0, "client:0", "server", "gradient", gradients, {})
            gradients = dict(defense.outgoing(message, rng).tensors)
    for name, parameter in network.named_parameters():
        parameter.grad = gradients.get(name)


def moved(x: Tensor, rng: torch.Generator) -> Tensor:
    """Images in colour flipped at random (digits are not symmetric), and the batch shifted by up to 3 pixels."""
    if x.shape[1] == 3:
        flip = (torch.rand(len(x), generator=rng) < 0.5).to(x.device)
        x = torch.where(flip[:, None, None, None], x.flip(3), x)
    down, right = torch.randint(-3, 4, (2,), generator=rng).tolist()
    return torch.roll(x, (down, right), (2, 3)).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def tested(network: nn.Module, x: Tensor, y: Tensor, device: str) -> int:
    """How many test images are right."""
    network.eval()
    return sum(
        int((network(part.to(device)).argmax(1).cpu() == labels).sum())
        for part, labels in zip(torch.split(x, 500), torch.split(y, 500), strict=True)
    )


def lines_of(out: Path) -> list[dict[str, Any]]:
    path = out / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def summary(out: Path) -> list[str]:
    """A row for each setting: accuracy over seeds with Student's interval, beside what the paper prints."""
    printed, every = published("003", "utility"), lines_of(out)
    accuracy = {(line["table"], line["setting"], line["seed"]): 100 * line["right"] / line["tested"] for line in every}
    rows = ["| table | setting | accuracy | change | printed change | seeds | s/epoch |", "|---" * 7 + "|"]
    for table, name in [(number, setting) for number in TABLES for setting in printed[number]]:
        own = [line for line in every if (line["table"], line["setting"]) == (table, name)]
        if not own:
            continue
        values = [accuracy[table, name, line["seed"]] for line in own]
        based = [(v, accuracy.get(("13", "0", line["seed"]))) for v, line in zip(values, own, strict=True)]
        change = [v - base for v, base in based if base is not None]
        cells = [_interval(v, mean_interval) for v in (values, change)]
        seconds = sum(line["seconds_per_epoch"] for line in own) / len(own)
        rows.append(
            f"| {table} | {name} | {cells[0]} | {cells[1]} | {printed[table][name]:+.1f} | {len(own)} | {seconds:.1f} |"
        )
    return rows


def _interval(values: list[float], of: Any) -> str:
    if len(values) < 2:
        return " ".join(f"{value:.1f}" for value in values)
    low, high = of(torch.tensor(values))
    return f"{sum(values) / len(values):.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
