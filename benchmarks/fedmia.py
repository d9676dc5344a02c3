"""FedMIA (Zhu et al. 2025) in its own setting: published attacks, ours, and what its way of drawing outsiders adds.

    python benchmarks/fedmia.py alexnet --seeds 5 --device cuda --json fedmia.json
    python benchmarks/fedmia.py resnet18 --seeds 1 --device cuda

CIFAR-100, 10 clients alike, batches of 100, one local pass, SGD with momentum .9, weight decay 5e-4 and a rate of .1
that falls by a cosine over 300 rounds; every tenth round is read. Clients have 500 records, the paper's have 5,000.

Members found at a rate of false alarms, the mean over ten clients as target, with outsiders drawn in two ways:
- `outsiders`: 1,000 test records that nobody holds, the same in all rounds and of all clients;
- `redrawn`: nine in ten are other clients' records, and each client and each round draws its own, as the authors' code
  does. A place in the list is then another record each time, so that an outsider's mean over rounds is over records.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedspill.data.cifar100 import Cifar100
from fedspill.leaks.membership.passive.exposure import share_above
from fedspill.leaks.membership.passive.published_tables import against_others
from fedspill.leaks.membership.passive.soft_span import whitening_of
from fedspill.leaks.membership.passive.whitened_gradient import without_others
from fedspill.roc_area import restricted_area

CLIENTS, BATCH, AT_ONCE = 10, 100, 500
WIDEST, MOST_PLACES = 2400, 16  # of layers that soft span reads
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def alexnet() -> nn.Module:
    """The authors' CNN: five convolutions, the largest of 2 x 2 places, one linear layer of 256 inputs."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, stride=4, padding=5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 100)),
    )


class Block(nn.Module):
    """Two convolutions with group norm, and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(32, outside), nn.GroupNorm(32, outside)])
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.GroupNorm(32, outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.around(x))


def resnet18() -> nn.Module:
    """ResNet18 for small images, with group norm as in the authors' code."""
    blocks, inside = [], 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    start = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64), nn.ReLU())
    return nn.Sequential(*start, *blocks, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, 100))


MODELS: dict[str, Callable[[], nn.Module]] = {"alexnet": alexnet, "resnet18": resnet18}


@dataclass(frozen=True, eq=False)
class Records:
    """Images (records, 3, 32, 32) with labels; holder (records,) is the client, or -1 of test records."""

    x: Tensor
    y: Tensor
    holder: Tensor


def draw_records(seed: int, folder: Path | None, device: str) -> Records:
    found = Cifar100().load(folder)
    x = torch.cat([found.train.x, found.test.x]).to(device)
    spread = torch.tensor(DEVIATION, device=device)[:, None, None]
    x = (x - torch.tensor(MEAN, device=device)[:, None, None]) / spread
    rng = torch.Generator().manual_seed(seed)
    n = len(found.train)
    holder = torch.full((len(x),), -1)
    holder[torch.randperm(n, generator=rng)] = torch.arange(n) % CLIENTS
    return Records(x, torch.cat([found.train.y, found.test.y]).to(device), holder)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One round: the model before it and the models that clients made of it."""

    round: int
    before: Mapping[str, Tensor]
    after: list[Mapping[str, Tensor]]


def federate(model: nn.Module, records: Records, rounds: int, every: int, lr: float, seed: int) -> Iterator[Snapshot]:
    rng = torch.Generator().manual_seed(seed)
    own = [(records.holder == client).nonzero().flatten().to(records.x.device) for client in range(CLIENTS)]
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    for number in range(rounds):
        rate = lr if number == 0 else lr * (1 + math.cos(math.pi * (number - 1) / rounds)) / 2
        after = []
        for mine in own:
            load(model, state)
            optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
            for batch in mine[torch.randperm(len(mine), generator=rng).to(mine.device)].split(BATCH):
                optimizer.zero_grad()
                functional.cross_entropy(model(records.x[batch]), records.y[batch]).backward()
                optimizer.step()
            after.append({name: p.detach().clone() for name, p in model.named_parameters()})
        if (number + 1) % every == 0:
            yield Snapshot(number + 1, state, after)
        state = {name: torch.stack([one[name] for one in after]).mean(0) for name in state}
    load(model, state)


@torch.no_grad()
def load(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, p in model.named_parameters():
        p.copy_(state[name])


@torch.no_grad()
def losses(model: nn.Module, state: Mapping[str, Tensor], records: Records) -> Tensor:
    """(records,)"""
    load(model, state)
    parts = zip(records.x.split(1000), records.y.split(1000), strict=True)
    return torch.cat([functional.cross_entropy(model(x), y, reduction="none") for x, y in parts])


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Layers whose rows say something of single records: more inputs than outputs, and few places of an image."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            inputs, outputs = module.weight[0].numel(), len(module.weight)
            if outputs < inputs <= WIDEST:
                found[f"{name}.weight"] = module
    sample = torch.zeros(1, 3, 32, 32, device=next(model.parameters()).device)
    return {
        name: found[name] for name, seen in patches_at(model, found, sample).items() if seen.shape[1] <= MOST_PLACES
    }


@torch.no_grad()
def patches_at(model: nn.Module, layers: Mapping[str, nn.Module], x: Tensor) -> dict[str, Tensor]:
    """(records, places, inputs) what each layer sees of each record; of a linear layer one place."""
    caught: dict[str, Tensor] = {}

    def catch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen = inputs[0]
            if isinstance(module, nn.Conv2d):
                seen = functional.unfold(seen, module.kernel_size, padding=module.padding, stride=module.stride)
                seen = seen.transpose(1, 2)
            caught[name] = seen if seen.ndim == 3 else seen[:, None]

        return keep

    handles = [module.register_forward_hook(catch(name)) for name, module in layers.items()]
    model(x)
    for handle in handles:
        handle.remove()
    return caught


@torch.no_grad()
def span_shares(model: nn.Module, snapshot: Snapshot, records: Records) -> dict[str, Tensor]:
    """Soft span, layer by layer: (records, clients) share of what a layer sees of a record in a client's rows."""
    load(model, snapshot.before)
    layers = layers_of(model)
    moments: dict[str, Tensor] = {}
    for x in records.x.split(AT_ONCE):
        for name, seen in patches_at(model, layers, x).items():
            flat = seen.flatten(0, 1).double()
            moments[name] = moments.get(name, 0) + flat.T @ flat / len(records.x)
    roots = {name: whitening_of(moment) for name, moment in moments.items()}
    rows = {name: [rows_of(snapshot, name, after, root) for after in snapshot.after] for name, root in roots.items()}
    shares: dict[str, list[Tensor]] = {name: [] for name in layers}
    for x in records.x.split(AT_ONCE):
        for name, seen in patches_at(model, layers, x).items():
            white = seen.double() @ roots[name]
            whole = white.square().sum((1, 2))
            inside = torch.stack([(white @ own).square().sum((1, 2)) for own in rows[name]], 1)
            shares[name].append(inside / whole[:, None])
    return {name: torch.cat(parts) for name, parts in shares.items()}


def rows_of(snapshot: Snapshot, name: str, after: Mapping[str, Tensor], root: Tensor) -> Tensor:
    """(inputs, outputs) directions of a client's whitened rows."""
    change = (after[name] - snapshot.before[name]).flatten(1).double()
    return torch.linalg.qr((change @ root).T)[0]


def cosine_table(model: nn.Module, snapshot: Snapshot, records: Records, at_once: int) -> Tensor:
    """(records, clients) cosine of each record's gradient, over all parameters, and the update turned around."""
    state = dict(snapshot.before)
    changes = [torch.cat([(state[name] - after[name]).flatten() for name in state]) for after in snapshot.after]
    moved = torch.stack([change / change.norm() for change in changes], 1)

    def loss(some: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, dict(some), (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    parts = []
    for x, y in zip(records.x.split(at_once), records.y.split(at_once), strict=True):
        own = each(state, x, y)
        flat = torch.cat([own[name].flatten(1) for name in state], 1)
        parts.append(flat @ moved / flat.norm(dim=1, keepdim=True).clamp_min(1e-30))
    return torch.cat(parts)


def standardised(table: Tensor, outsiders: Tensor) -> Tensor:
    """(records, clients) less the other clients' mean, over the spread that outsiders have."""
    found = without_others(table.double())
    return found / found[outsiders].std(0).clamp_min(1e-12)


def figures(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """Of one target."""
    member = torch.arange(len(inside) + len(outside)) < len(inside)
    scores = torch.cat([inside, outside])
    return {
        "auc": restricted_area(member, scores, 1.0),
        "tpr1": share_above(inside, outside, 0.01),
        "tpr01": share_above(inside, outside, 0.001),
    }


def over_targets(scores: Tensor, records: Records) -> dict[str, float]:
    """scores (records, clients); outsiders are test records. The mean over targets."""
    rows = [
        figures(scores[records.holder == client, client], scores[records.holder < 0, client])
        for client in range(CLIENTS)
    ]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def redrawn(table: Tensor, records: Records, how: Callable[[Tensor], Tensor], seed: int) -> dict[str, float]:
    """As the authors' code counts: outsiders drawn anew for each client and round. table (rounds, records, clients)."""
    rng = torch.Generator().manual_seed(seed)
    rows = []
    for target in range(CLIENTS):
        each = []
        for values in table:
            columns = []
            for client in range(CLIENTS):
                chosen = [_some(records.holder < 0, 400, rng)]
                chosen += [_some(records.holder == other, 400, rng) for other in range(CLIENTS) if other != target]
                columns.append(values[torch.cat(chosen), client])
            each.append(torch.stack(columns, 1))
        outside = how(torch.stack(each))[:, target]
        rows.append(figures(how(table[:, records.holder == target])[:, target], outside))
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _some(mask: Tensor, many: int, rng: torch.Generator) -> Tensor:
    there = mask.nonzero().flatten()
    return there[torch.randperm(len(there), generator=rng)[:many]]


@dataclass(frozen=True)
class Setting:
    """How a federation is trained and read."""

    model: str
    rounds: int
    every: int
    lr: float
    device: str
    data_dir: Path | None
    seconds: float


def attacked(asked: Setting, seed: int) -> dict[str, dict[str, float]]:
    began = time.monotonic()
    torch.manual_seed(seed)
    model = MODELS[asked.model]().to(asked.device)
    records = draw_records(seed, asked.data_dir, asked.device)
    outsiders = records.holder < 0
    cosines, fits = [], []
    spans: dict[str, list[Tensor]] = {}
    for snapshot in federate(model, records, asked.rounds, asked.every, asked.lr, seed):
        cosines.append(cosine_table(model, snapshot, records, 250 if asked.model == "alexnet" else 100).cpu())
        fits.append(torch.stack([-losses(model, after, records) for after in snapshot.after], 1).cpu())
        for layer, table in span_shares(model, snapshot, records).items():
            spans.setdefault(layer, []).append(standardised(table.cpu(), outsiders))
        fit = losses(model, snapshot.before, records).cpu()
        inside, outside = float(fit[~outsiders].mean()), float(fit[outsiders].mean())
        print(
            f"# {asked.model} seed {seed} round {snapshot.round}: loss inside {inside:.2f}, outside {outside:.2f}, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        if time.monotonic() - began > asked.seconds:
            break
    tables = {"cosine": torch.stack(cosines).double(), "loss": torch.stack(fits).double()}
    found: dict[str, dict[str, float]] = {"rounds": {"read": float(len(cosines))}}
    mean: Callable[[Tensor], Tensor] = lambda table: table.mean(0)  # noqa: E731
    published = (
        ("fedmia-ii", "cosine", against_others),
        ("fedmia-i", "loss", against_others),
        ("avg-cosine", "cosine", mean),
        ("loss-series", "loss", mean),
    )
    for attack, kind, how in published:
        found[f"{attack}, outsiders"] = over_targets(how(tables[kind]), records)
        found[f"{attack}, redrawn"] = redrawn(tables[kind], records, how, seed)
    layers = {layer: torch.stack(parts).mean(0) for layer, parts in spans.items()}
    for layer, scores in layers.items():
        found[f"soft span, {layer}"] = over_targets(scores, records)
    alike = [scores / scores[outsiders].std(0) for scores in layers.values()]
    found["soft span, all layers"] = over_targets(torch.stack(alike).mean(0), records)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=9020)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="which rounds are read")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after that, no more rounds of a federation")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    setting = Setting(asked.model, asked.rounds, asked.every, asked.lr, asked.device, asked.data_dir, asked.seconds)
    rows: list[dict[str, dict[str, float]]] = []
    for seed in range(asked.first, asked.first + asked.seeds):
        rows.append(attacked(setting, seed))
        for attack in rows[0]:
            print(f"{asked.model} {attack:45s} {said([row[attack] for row in rows])}", flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(rows))


def said(rows: list[dict[str, float]]) -> str:
    parts = []
    for figure in rows[0]:
        values = torch.tensor([row[figure] for row in rows], dtype=torch.double)
        n = len(values)
        half = float(stats.t.ppf(0.975, n - 1) * values.std() / n**0.5) if n > 1 else math.nan
        parts.append(f"{figure} {float(values.mean()):.4f} +- {half:.4f}")
    return f"{', '.join(parts)}, {len(rows)} federations"


if __name__ == "__main__":
    main()
