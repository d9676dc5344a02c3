"""False alarms in benign federations: ordinary ones, and such with an event that makes models jump."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from fedspill.dataset import Examples
from fedspill.defenses.guard import Guard
from fedspill.federation.local import state_of
from fedspill.models.mlp import Mlp
from fedspill.partitions.shares import share_out
from fedspill.planting.dense_network import DenseNetwork, read_dense_network
from fedspill.seeds import generator, seed_of
from fedspill.training import Tensors

from .experiment import ADAM, next_round
from .settings import Case, load
from .trial import Trial, wadm_says
from .watching import Watchman, sent, values_of

Event: TypeAlias = Literal["none", "learning rate drops", "new cohort", "server restarts"]
WHEN = 12  # the round of an event
LOST = 3  # rounds that a restarted server forgets


def benign(
    case: Case, folder: Path, rounds: int, share: float, event: Event = "none", published: bool = True
) -> dict[str, Any]:
    """False alarms of our guard at every client of a benign federation; of the published ones where all take part."""
    began = time.time()
    dataset = load(case.data, case.seed, folder)
    setting = case.setting
    shares = share_out(
        dataset, setting.partition, setting.clients, shadow=setting.shadow, rng=generator(case.seed, "shares")
    )
    watchmen = [Watchman(Guard(), {}) for _ in shares.clients]
    alarms: list[tuple[int, int]] = []
    values: list[tuple[float, ...]] = []
    pairs, silent = 0, 0
    dense, models = _federation(case, shares.clients, rounds, share, event)
    trial, wadm, before = None, [0, 0], None
    for number, state, asked in models:
        together = len(asked) == len(watchmen)  # all have seen the same, and say the same
        message = sent(number, state)
        for index in asked[:1] if together else asked:
            if watchmen[index].previous is not None and together:
                values.append(values_of(watchmen[index], message))
            pairs += watchmen[index].previous is not None
            if watchmen[index].meet(message):
                alarms.append((number, index))
        silent = max(silent, _running(alarms, asked[0]) if together else 0)
        if together and event == "none" and published:
            trial = trial or Trial(dense, shares.clients, case.elu)
            trial.meet(state)
            said = (False, False) if before is None else wadm_says(dense, before, state)
            wadm = [many + alarm for many, alarm in zip(wadm, said, strict=True)]
            before = state
    return {
        **case.cells(),
        "share": share,
        "event": event,
        "rounds": rounds,
        "clients": len(watchmen),
        "pairs": pairs,
        "alarms": alarms,
        "values": values,
        "longest silence": silent,
        "wadm": wadm,
        "left": None if trial is None else [len(gone) for gone in trial.left],
        "asked": None if trial is None else trial.asked,
        "seconds": time.time() - began,
    }


def _running(alarms: Sequence[tuple[int, int]], index: int) -> int:
    """How many rounds in a row this client has now refused."""
    mine = [number for number, who in alarms if who == index]
    many = 0
    while many < len(mine) and mine[-1 - many] == mine[-1] - many:
        many += 1
    return many


def _federation(
    case: Case, clients: Sequence[Examples], rounds: int, share: float, event: Event
) -> tuple[DenseNetwork, Iterator[tuple[int, Tensors, list[int]]]]:
    """The network, and the models with their round and the clients that get them."""
    spec = Mlp(widths=case.setting.widths, activation="elu" if case.elu else "relu", alpha=-2.0, logits=1)
    model = spec.build(tuple(clients[0].x.shape[1:]), 2, seed=seed_of(case.seed, "model"))
    dense = read_dense_network(model)
    start = {name: tensor.to(case.device, copy=True) for name, tensor in state_of(model).items()}
    return dense, _rounds(dense, start, case.seed, clients, rounds, share, event)


def _rounds(
    dense: DenseNetwork, state: Tensors, seed: int, clients: Sequence[Examples], rounds: int, share: float, event: Event
) -> Iterator[tuple[int, Tensors, list[int]]]:
    rng, training = generator(seed, "participants"), ADAM
    half = len(clients) // 2
    there = list(range(half)) if event == "new cohort" else list(range(len(clients)))
    past: list[Tensors] = []
    number = 0
    for step in range(rounds):
        if event == "learning rate drops" and step == WHEN:
            training = replace(ADAM, lr=ADAM.lr / 10)
        if event == "new cohort" and step == WHEN:
            there = list(range(half // 2, half)) + list(range(half, len(clients)))
        if event == "server restarts" and step == WHEN:
            number, state = number - LOST, past[-LOST]
        asked = sorted(torch.randperm(len(there), generator=rng)[: max(1, round(share * len(there)))].tolist())
        everybody = [there[i] for i in asked]
        yield number, state, list(range(len(clients))) if share == 1 else everybody
        past.append(state)
        state = next_round(dense, state, [clients[i] for i in everybody], training, seed, step)
        number += 1
