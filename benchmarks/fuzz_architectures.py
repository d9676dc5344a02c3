"""Generated networks times all attacks: every outcome must be a score, a reading or a sentence.

    python benchmarks/fuzz_architectures.py [networks] [seconds an attack] [first seed]

Networks have random layers, norms, activations, residual connections, attention, shared weights, frozen parts and
heads, on tables, images and tokens. Prints how many outcomes of each kind there were, and every crash by type and line.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch._dynamo  # optimizers import it at their first use, which a time limit must not cut in two
from torch import Tensor, nn

from fedspill.attack import ActiveAttack, Attack
from fedspill.attack_run import run_attack
from fedspill.audit.planted_run import run_planted
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import FedspillError, NoHead
from fedspill.failing_line import failed_with
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.membership.passive.asked_records import AskedRecords
from fedspill.models.heads import last_linear
from fedspill.registry import entries, make, options_of
from fedspill.threat import ADVERSARIES
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

CLASSES = 4
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.ELU, nn.SiLU, nn.Identity)
KINDS = ("table", "image", "tokens")
FEW = {
    "steps": 5, "iterations": 5, "epochs": 5, "moves": 20, "starts": 2, "peels": 2, "rehearsals": 6, "origins": 2,
    "passes": 1, "tries": 1, "unsort": 5,
}  # fmt: skip


class Network(nn.Module):
    """What a seed makes of one kind of input."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        width = draw.choice((8, 12, 16))
        self.kind = kind
        self.table = nn.Linear(10, width, bias=draw.random() < 0.8)
        self.tokens = nn.Embedding(30, width, padding_idx=draw.choice((None, 0)))
        norm = draw.choice((nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Identity()))
        self.image = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=draw.choice((0, 1)), groups=1),
            norm,
            draw.choice(ACTIVATIONS)(),
            nn.AdaptiveAvgPool2d(3) if draw.random() < 0.5 else nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(width),
        )
        self.norms = nn.ModuleList(
            draw.choice((nn.LayerNorm(width), nn.BatchNorm1d(width), nn.Identity())) for _ in range(3)
        )
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=draw.random() < 0.7) for _ in range(3))
        self.activations = nn.ModuleList(draw.choice(ACTIVATIONS)() for _ in range(3))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES, bias=draw.random() < 0.8)
        self.depth = draw.randint(0, 3)
        self.residual, self.shared = draw.random() < 0.5, draw.random() < 0.2
        self.attends, self.recurs = draw.random() < 0.3, draw.random() < 0.2
        self.decides, self.dropout = draw.random() < 0.1, draw.choice((0.0, 0.0, 0.2))
        self.frozen = draw.random() < 0.3
        self.rectifies = draw.random() < 0.5
        self._build(kind)

    def _build(self, kind: str) -> None:
        """Fixes lazy shapes, drops what this kind does not use, and freezes."""
        with torch.no_grad():
            self.eval()(inputs_of(kind, 2, 0))
            self.train()
        for other in {"table", "tokens", "image"} - {kind}:
            delattr(self, other)
        if self.frozen:
            for parameter in self.get_submodule(kind).parameters():
                parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = getattr(self, self.kind)(x)
        h = torch.relu(h) if self.rectifies else h
        if self.kind == "tokens":
            if self.attends:
                h = h + self.attention(h, h, h, need_weights=False)[0]
            h = self.recurrent(h)[0][:, -1] if self.recurs else h.mean(1)
        if self.decides and h.sum() > 1e9:
            h = -h
        for number in range(self.depth):
            layer = self.layers[0 if self.shared else number]
            out = self.activations[number](self.norms[number](layer(h)))
            h = h + out if self.residual else out
        logits: Tensor = self.head(nn.functional.dropout(h, self.dropout, self.training))
        return logits


def inputs_of(kind: str, samples: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    if kind == "tokens":
        return torch.randint(30, (samples, 7), generator=rng)
    return torch.rand(samples, *((10,) if kind == "table" else (1, 8, 8)), generator=rng)


def built(kind: str, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(kind, seed)


def shortened(name: str) -> Attack:
    """The attack with few steps: whether it crashes shows in the first ones."""
    own = options_of(make("attacks", name))
    few: dict[str, object] = {option: min(most, int(own[option])) for option, most in FEW.items() if option in own}
    if own.get("labels_from") == "labels":
        few["labels_from"] = "llg"  # the labels of the default attack cost more than the rest together
    attack: Attack = make("attacks", name, few)
    return attack


def tried(
    seed: int, limit: float, rounds: int = 2, adversaries: Sequence[str] = ("curious-server", "curious-client")
) -> tuple[Counter[str], list[str]]:
    """How all passive attacks on one federation of one network end, and the crashes among them in words."""
    draw = random.Random(seed)
    kind, algorithm = draw.choice(KINDS), draw.choice(("fedavg", "fedsgd"))
    samples = draw.choice((2, 3, 8, 24))
    labels = [torch.randint(CLASSES, (samples,), generator=torch.Generator().manual_seed(n)) for n in range(3)]
    clients = [Examples(inputs_of(kind, samples, seed + n), own) for n, own in enumerate(labels)]
    training = LocalTraining(algorithm=algorithm, lr=0.05, batch_size=draw.choice((2, 4, 8)))  # type: ignore[arg-type]
    architecture = partial(built, kind, seed)
    model = architecture()
    try:
        head = last_linear(model, clients[0].x[:2])
        names = {"head_weight": head.weight, "head_bias": head.bias}
    except NoHead:
        names = {"head_weight": None, "head_bias": None}
    trace = MemoryTrace(
        {
            **names,
            "classes": CLASSES,
            "algorithm": algorithm,
            "weighting": "examples",
            "batch_size": training.batch_size,
            "local_lr": 0.05,
            "local_epochs": 1,
            "optimizer": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0},
            "client_count": 3,
        }
    )
    found: Counter[str] = Counter()
    crashes = []
    try:
        Horizontal(model, clients, Settings(rounds=rounds, training=training), seed, CLASSES, trace).run()
    except FedspillError:
        return Counter({"refused": 1}), []  # batch norm on a step of one sample, in a sentence
    aux = Examples(inputs_of(kind, 12, 99), torch.arange(12) % CLASSES)
    known = {
        "architecture": architecture, "aux_data": aux, "unlabelled_aux": aux.x, "shadow_data": aux,
        "labels_per_client": (1, 2), "asked_records": AskedRecords(aux.x, aux.y),
    }  # fmt: skip
    for entry in entries("attacks"):
        attack = shortened(entry.name)
        for adversary in adversaries:
            threat = ADVERSARIES[adversary]
            if isinstance(attack, ActiveAttack) or threat.missing(attack.needs):
                continue
            try:
                truth = trace.truth().beside(clients)
                outcome = run_attack(attack, trace, threat, knowledge=known, seed=1, truth=truth, limit=limit)
                found[outcome.status] += 1
            except FedspillError as error:
                crashed = error.__cause__ is not None and "failed with" in str(error)
                found["crashed" if crashed else "sentence"] += 1
                if crashed:
                    crashes.append(f"{seed} {kind} {algorithm} {error}")
    return found, crashes


def planted(seed: int, limit: float) -> tuple[Counter[str], list[str]]:
    """How all attacks that plant end in a federation of the seed's network, and the crashes among them in words."""
    kind = random.Random(seed).choice(KINDS)
    plan = check_plan(
        {
            "data": {"name": "custom", "factory": f"fuzz_architectures:data_{kind}_0"},
            "model": {"name": "custom", "factory": f"fuzz_architectures:network_{kind}_{seed}"},
            "partition": "iid",
            "federation": {"clients": 3, "rounds": 1},
            "training": {"lr": 0.05, "batch_size": 8},
            "adversary_data": {"per_class": 3, "shadow": 24},
            "targets": {"members": 3, "others": 3},
        },
        "a generated plan",
    )
    found: Counter[str] = Counter()
    crashes: list[str] = []
    try:
        deployment = Deployment.of(plan)
    except FedspillError:
        return Counter({"refused": 1}), []
    for entry in entries("attacks"):
        attack = shortened(entry.name)
        for adversary in ("malicious-server", "malicious-server-updates"):
            threat = ADVERSARIES[adversary]
            if not isinstance(attack, ActiveAttack) or threat.missing(attack.needs):
                continue
            try:
                trace, known = run_planted(attack, threat, deployment)
                truth = trace.truth().beside(deployment.shares.clients)
                outcome = run_attack(attack, trace, threat, knowledge=known, seed=1, truth=truth, limit=limit)
                found[outcome.status] += 1
            except Exception as error:
                known_end = isinstance(error, FedspillError) and "failed with" not in str(error)
                found["sentence" if known_end else "crashed"] += 1
                if not known_end:
                    crashes.append(f"{seed} {kind} planted {entry.name} by {adversary}: {failed_with(error)} {error}")
    return found, crashes


def __getattr__(name: str) -> Callable[[], object]:
    """`network_<kind>_<seed>` and `data_<kind>_<seed>`: factories by name, as a plan names its own."""
    what, _, rest = name.partition("_")
    kind, _, seed = rest.partition("_")
    if what not in ("network", "data") or kind not in KINDS:
        raise AttributeError(name)
    return partial(built, kind, int(seed)) if what == "network" else partial(data_of, kind, int(seed))


def data_of(kind: str, seed: int) -> tuple[Tensor, ...]:
    x = inputs_of(kind, 140, seed)
    y = torch.arange(140) % CLASSES
    return x[:110], y[:110], x[110:], y[110:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    networks = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    total: Counter[str] = Counter()
    for seed in range(first, first + networks):
        (found, crashes), (more, others) = tried(seed, limit), planted(seed, limit)
        total += found + more
        crashes += others
        if crashes:
            print(*crashes, sep="\n", flush=True)
        if seed % 10 == 9:
            print(seed + 1, dict(total), flush=True)
    print(networks, "networks:", dict(total))
