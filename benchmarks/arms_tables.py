"""Guards on tables: how often honest federations of tables are accused, and how often plants on tables are seen.

    python benchmarks/arms_tables.py [--seeds 100] [--first-seed 9000] [--rounds 100] [--only made-up adult ...]

Every seed is a federation of its own, drawn by that seed: the table, the network, the way of training, and 24 clients
of 24 to 400 rows. Half-way other clients come and the learning rate drops, as in `arms.py --benign`. Four clients with
a guard look at its models, each as one that comes in every round, in one of four, and late.

    python benchmarks/arms_tables.py --plants [--seeds 10] [--arrivals 1 10] [--guard "gate over pairs"]

The plants of `arms.py` in perceptrons that read a table, brought in over so many rounds, as there. A client has 48 to
400 rows.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from arms import GUARDS, HONEST, KINDS, PLANTS, UNSEEN, Federation, Watcher, benign_states, race, watch
from torch import Tensor, nn

from fedspill.dataset import Dataset, Examples
from fedspill.errors import NotApplicable
from fedspill.registry import make
from fedspill.training import LocalTraining

REAL = ("adult", "location30", "android-permissions")
MADE_UP = "made-up"
CLIENTS = 24
FEWEST, MOST = 24, 400  # rows of a client
SHORTEST = 8  # rows of a step: batch normalisation over four made neurons five times as large in one (docs/guards.md)
BATCH = 48  # of a client that is read
TRAININGS = (
    LocalTraining(lr=0.1, batch_size=20),
    LocalTraining(lr=0.3, batch_size=32),
    LocalTraining(lr=0.05, momentum=0.9, batch_size=16),
    LocalTraining(lr=0.1, batch_size=20, epochs=3),
    LocalTraining(optimizer="adam", lr=0.003, batch_size=20),
)
ACTIVATIONS: dict[str, type[nn.Module]] = {"ReLU": nn.ReLU, "GELU": nn.GELU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class Setting:
    """One federation of a table."""

    words: str
    train: Examples
    test: Examples
    classes: int
    model: nn.Module
    clients: list[Examples]
    training: LocalTraining


class Draw:
    """Choices that a seed makes."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)

    def below(self, many: int) -> int:
        return int(torch.randint(many, (1,), generator=self.rng))

    def rows(self) -> int:
        """Small clients as often as large ones, by the logarithm."""
        return round(FEWEST * (MOST / FEWEST) ** float(torch.rand(1, generator=self.rng)))


def made_up_table(draw: Draw) -> tuple[str, Examples, Examples, int]:
    """4, 12 or 40 columns, numbers from 0 to 1 or standardised, half of the time with categories; 2 to 5 classes."""
    rng, columns, classes = draw.rng, (4, 12, 40)[draw.below(3)], 2 + draw.below(4)
    unit, mixed, many = bool(draw.below(2)), bool(draw.below(2)), 6000
    # Columns of tables hang together, and few are normal.
    hidden = torch.randn(many, max(2, columns // 3), generator=rng)
    values = hidden @ torch.randn(hidden.shape[1], columns, generator=rng) + torch.randn(many, columns, generator=rng)
    values = values / values.std(0)
    skewed = torch.rand(columns, generator=rng) < 0.3
    values = torch.where(skewed, values.exp(), values)
    numbers = columns // 2 if mixed else columns  # the other half says which of at most four kinds a row is of
    hot = [_one_hot(values[:, i], min(4, columns - i)) for i in range(numbers, columns, 4)]
    part = values[:, :numbers]
    scaled = (part - part.amin(0)) / (part.amax(0) - part.amin(0)) if unit else (part - part.mean(0)) / part.std(0)
    values = torch.cat([scaled, *hot], 1)
    teacher = nn.Sequential(nn.Linear(values.shape[1], 16), nn.Tanh(), nn.Linear(16, classes))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
        scores = teacher((values - values.mean(0)) / values.std(0).clamp_min(1e-6))
        noise = torch.randn(scores.shape, generator=rng)
        y = ((scores - scores.mean(0)) / scores.std(0) + 0.5 * noise).argmax(1)
    every = Examples(values, y)
    words = f"{columns} columns, {'0 to 1' if unit else 'standardised'}{', one-hot' if mixed else ''}"
    return words, every.take(torch.arange(5000)), every.take(torch.arange(5000, many)), classes


def _one_hot(values: Tensor, kinds: int) -> Tensor:
    """(n, kinds) by quantiles that are not alike: kinds of real tables are not equally frequent."""
    place = (values.argsort().argsort() + 0.5) / len(values)
    return nn.functional.one_hot((kinds * place**2).long(), kinds).float()


@cache
def real_table(name: str) -> Dataset:
    found: Dataset = make("datasets", name).load(None)
    return found


def network(draw: Draw, columns: int, classes: int, *, plain: bool) -> tuple[str, nn.Module]:
    """One or two hidden layers of 16 to 128, with or without normalisation; `plain`: rectified, without."""
    widths = [16 * 2 ** draw.below(4) for _ in range(1 + draw.below(2))]
    name = list(ACTIVATIONS)[0 if plain else draw.below(3)]
    norm = 0 if plain else draw.below(3)
    parts: list[nn.Module] = []
    before = columns
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.below(2**31))
        for width in widths:
            parts.append(nn.Linear(before, width))
            parts += [[], [nn.BatchNorm1d(width)], [nn.LayerNorm(width)]][norm]
            parts.append(ACTIVATIONS[name]())
            before = width
        parts.append(nn.Linear(before, classes))
    words = f"{'-'.join(map(str, widths))} {name}{['', ', batch norm', ', layer norm'][norm]}"
    return words, nn.Sequential(*parts)


def clients_of(train: Examples, classes: int, batch: int, draw: Draw) -> list[Examples]:
    """Of unlike sizes; half of the time of unlike classes too. No step of an epoch has fewer than SHORTEST rows."""
    skewed = bool(draw.below(2))
    found = []
    for _ in range(CLIENTS):
        weights = torch.ones(classes)
        if skewed:
            weights = -torch.rand(classes, generator=draw.rng).clamp_min(1e-6).log()  # Dirichlet of ones
        chances = weights[train.y] / torch.bincount(train.y, minlength=classes)[train.y]
        rows = draw.rows()
        rows += max(0, SHORTEST - rows % batch) if rows % batch else 0
        found.append(train.take(torch.multinomial(chances, rows, generator=draw.rng)))
    return found


def setting(source: str, seed: int, *, plain: bool = False) -> Setting:
    draw = Draw(seed)
    if source == MADE_UP:
        words, train, test, classes = made_up_table(draw)
    else:
        data = real_table(source)
        words, train, test, classes = source, data.train, data.test, len(data.classes)
    title, model = network(draw, train.x.shape[1], classes, plain=plain)
    training = TRAININGS[draw.below(len(TRAININGS))]
    clients = clients_of(train, classes, training.batch_size, draw)
    return Setting(f"{words}, {classes} classes; {title}", train, test, classes, model, clients, training)


def benign(asked: argparse.Namespace) -> None:
    print(f"{asked.rounds} benign rounds, {asked.seeds} federations each, seeds from {asked.first_seed} on")
    print("| table | takes part | alarms | rounds seen | clients with an alarm | ms a round |")
    print("|---|---|---|---|---|---|")
    for source in asked.only or (MADE_UP, *REAL):
        every: list[Watcher] = []
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            made = setting(source, seed)
            rng = torch.Generator().manual_seed(seed)
            mine = [Watcher(kind, own, rng, {}) for own in made.clients[10:14] for kind in KINDS]
            states = benign_states(made.model, made.clients, made.training, seed, asked.rounds)
            watch(states, mine, copy.deepcopy(made.model), asked.rounds)
            every += mine
            for one in mine:
                if one.why:
                    print(f"seed {seed}, {made.words}, {one.kind}, {one.alarms} alarms: {one.why}", flush=True)
        for kind in KINDS:
            all_of = [one for one in every if one.kind == kind]
            alarms, rounds = sum(one.alarms for one in all_of), sum(one.rounds for one in all_of)
            accused = sum(one.alarms > 0 for one in all_of)
            cost = 1000 * sum(one.seconds for one in all_of) / max(rounds, 1)
            print(f"| {source} | {kind} | {alarms} | {rounds} | {accused}/{len(all_of)} | {cost:.2f} |", flush=True)


def planted(asked: argparse.Namespace) -> None:
    """One row for each plant and arrival: seen, in which round, and what was read before."""
    print(f"plants on tables, {asked.guard}, batches of {BATCH}")
    print(f"{asked.seeds} federations each, seeds from {asked.first_seed} on")
    print("| table | plant | arrival | stopped | in round | read before, mean (most) | honest | gained where missed |")
    print("|---|---|---|---|---|---|---|---|")
    for source in asked.only or (MADE_UP, *REAL):
        made = [
            federation(source, seed, max(asked.arrivals))
            for seed in range(asked.first_seed, asked.first_seed + asked.seeds)
        ]
        for plant in UNSEEN if asked.unseen else PLANTS:
            for arrival in asked.arrivals:
                races = []
                for number, one in enumerate(made):
                    with suppress(NotApplicable):  # too few columns to sort by
                        races.append(race(one, plant, arrival, asked.guard, BATCH, number, "sphere", 0))
                gained = [one.before - one.honest for one in races if one.stopped is None]
                rounds = [one.stopped for one in races if one.stopped is not None]
                when = f"{statistics.median(rounds):g}" if rounds else ""
                print(
                    f"| {source} | {plant} | {arrival} | {len(rounds)}/{len(races)} | {when} | "
                    f"{_spread([one.before for one in races])} | {_spread([one.honest for one in races])} | "
                    f"{_spread(gained) if gained else ''} |",
                    flush=True,
                )


def federation(source: str, seed: int, rounds: int) -> Federation:
    """With a client that has a batch to be read."""
    made = setting(source, seed, plain=True)
    own = next(client for client in made.clients if len(client) >= BATCH)
    model = copy.deepcopy(made.model)
    states = list(
        islice(benign_states(made.model, made.clients, made.training, seed, 2 * (HONEST + rounds)), HONEST + rounds)
    )
    return Federation(states, model, own, _some(made.test.x, seed))


def _some(x: Tensor, seed: int) -> Tensor:
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:600]]


def _spread(shares: Sequence[float]) -> str:
    return f"{statistics.fmean(shares):.2f} ({max(shares):.2f})" if shares else "does not apply"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[], choices=[MADE_UP, *REAL])
    parser.add_argument("--plants", action="store_true")
    parser.add_argument("--unseen", action="store_true", help="plants that no bar was set on")
    parser.add_argument("--guard", default="guard", choices=list(GUARDS), help="that the plants meet")
    parser.add_argument("--arrivals", type=int, nargs="+", default=[1, 10])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.plants:
        planted(asked)
    else:
        benign(asked)


if __name__ == "__main__":
    main()
