"""Trainers: a round's clients trained in this process or in worker processes, with equal results."""

from __future__ import annotations

import copy
import multiprocessing
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Literal, TypeAlias, final, get_args

import numpy as np
import torch
from torch import nn

from fedspill.dataset import Examples
from fedspill.errors import UnknownName, UsageError
from fedspill.federation.local import train
from fedspill.federation.replayed import CudaLane, Place, side_by_side, why_not_replayable
from fedspill.federation.stacked import is_stackable, train_stacked, why_not_stackable
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors

Engine: TypeAlias = Literal["auto", "loop", "stacked", "replayed"]

# Clients stacked at a time: more do not run faster, and beyond some 6 MB of parameters memory decides
# (benchmarks/stacking.py).
_CLIENTS_AT_ONCE = 32
_PARAMETERS_AT_ONCE = 1_500_000
# Clients replayed at a time on a GPU, and the parameters of all their models together (benchmarks/gpu_rounds.py).
_CLIENTS_SIDE_BY_SIDE = 4
_PARAMETERS_SIDE_BY_SIDE = 100_000_000


class Trainer(ABC):
    """Trains the named clients of a round from one start."""

    @abstractmethod
    def train(self, start: Tensors, number: int, clients: Sequence[int]) -> Iterator[tuple[int, Tensors]]:
        """Each client's index and what it sends, in the order of `clients`."""

    @abstractmethod
    def close(self) -> None:
        """Frees what the trainer holds."""


@final
class InProcess(Trainer):
    """One model, updated in place by one client after the other; where that is faster, stacked for all or replayed."""

    def __init__(
        self, model: nn.Module, clients: Sequence[Examples], training: LocalTraining, seed: int, engine: Engine = "auto"
    ) -> None:
        self._model = copy.deepcopy(model)
        self._clients = clients
        self._training = training
        self._seed = seed
        _keep_freed_memory()
        self._stacked = is_to_be_stacked(self._model, clients[0], training, engine)
        self._replayed = not self._stacked and is_to_be_replayed(training, clients[0].x.device, engine)
        self._places: list[Place] = []  # made when they are needed

    def train(self, start: Tensors, number: int, clients: Sequence[int]) -> Iterator[tuple[int, Tensors]]:
        if self._replayed:
            work = [(index, self._clients[index], self._rng(number, index)) for index in clients]
            yield from side_by_side(self._places_for(len(clients)), start, work)
            return
        if not self._stacked:
            for index in clients:
                yield index, train(self._model, start, self._clients[index], self._training, self._rng(number, index))
            return
        waiting: dict[int, Tensors] = {}  # until those before them are there
        order = deque(clients)
        for group in self._groups(clients):
            examples = [self._clients[index] for index in group]
            rngs = [self._rng(number, index) for index in group]
            waiting.update(zip(group, train_stacked(self._model, start, examples, self._training, rngs), strict=True))
            while order and order[0] in waiting:
                yield order[0], waiting.pop(order.popleft())

    def close(self) -> None:
        pass

    def _places_for(self, clients: int) -> list[Place]:
        wanted = clients_side_by_side(self._model, clients)
        while len(self._places) < wanted:
            self._places.append(Place(self._model, self._training, CudaLane(self._clients[0].x.device)))
        return self._places[:wanted]

    def _groups(self, clients: Sequence[int]) -> Iterator[list[int]]:
        """Clients with equally many steps, evenly in groups; those with earlier clients first."""
        most = min(_CLIENTS_AT_ONCE, max(4, _PARAMETERS_AT_ONCE // sum(p.numel() for p in self._model.parameters())))
        by_steps: dict[int, list[int]] = defaultdict(list)
        for index in clients:
            by_steps[self._training.schedule(len(self._clients[index])).steps].append(index)
        place = {index: number for number, index in enumerate(clients)}
        groups = [group for same in by_steps.values() for group in _evenly(same, most)]
        yield from sorted(groups, key=lambda group: place[group[0]])

    def _rng(self, number: int, index: int) -> torch.Generator:
        return training_rng(self._seed, number, index)


def _evenly(clients: Sequence[int], most: int) -> list[list[int]]:
    """In their order, in as few groups of at most `most` as can be, all about as large."""
    count = -(-len(clients) // most)
    ends = [group * len(clients) // count for group in range(count + 1)]
    return [list(clients[first:last]) for first, last in pairwise(ends)]


def _keep_freed_memory() -> None:
    """glibc returns large freed blocks to the system, and every training step pays for getting them back, page by page.

    Freeing one block of almost 32 MiB raises the size above which it does so to 64 MiB; no other allocator is affected.
    """
    torch.empty(32 * 2**20 - 2**16, dtype=torch.uint8)


def is_to_be_stacked(model: nn.Module, examples: Examples, training: LocalTraining, engine: Engine) -> bool:
    """What the engine's name means for this model; `model` is put in training mode."""
    if engine not in get_args(Engine):
        raise UnknownName("engine", engine, get_args(Engine))
    if engine == "stacked":
        reason = why_not_stackable(model, examples, training)
        if reason is not None:
            raise UsageError(f"The clients cannot be stacked: {reason}.", remedy="Use engine 'auto' or 'loop'.")
    return engine == "stacked" or (engine == "auto" and is_stackable(model, examples, training))


def is_to_be_replayed(training: LocalTraining, device: torch.device, engine: Engine) -> bool:
    """What the engine's name means there, of a model that is not stacked."""
    reason = why_not_replayable(training, device)
    if engine == "replayed" and reason is not None:
        raise UsageError(f"The clients' steps cannot be replayed: {reason}.", remedy="Use engine 'auto' or 'loop'.")
    return engine in ("auto", "replayed") and reason is None


def clients_side_by_side(model: nn.Module, clients: int) -> int:
    """How many of a round's clients are replayed at a time."""
    most = _PARAMETERS_SIDE_BY_SIDE // max(1, sum(p.numel() for p in model.parameters()))
    return min(clients, _CLIENTS_SIDE_BY_SIDE, max(1, most))


def training_rng(seed: int, number: int, index: int) -> torch.Generator:
    """The generator of one client's local training in one round."""
    return generator(seed, "local training", number, index)


@final
class InWorkers(Trainer):
    """The same in worker processes, each with one torch thread."""

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[Examples],
        training: LocalTraining,
        seed: int,
        workers: int,
        engine: Engine = "auto",
    ) -> None:
        self._workers = workers
        # Decided here, so that a refusal is raised to the caller and not in the worker processes.
        decided: Engine = "stacked" if is_to_be_stacked(copy.deepcopy(model), clients[0], training, engine) else "loop"
        is_to_be_replayed(training, clients[0].x.device, engine)
        arguments = (model, list(clients), training, seed, decided)
        self._pool = ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=arguments
        )

    def train(self, start: Tensors, number: int, clients: Sequence[int]) -> Iterator[tuple[int, Tensors]]:
        if not clients:
            return
        arrays = {name: tensor.cpu().numpy() for name, tensor in start.items()}
        share = -(-len(clients) // self._workers)
        jobs = [
            self._pool.submit(_work, arrays, number, list(clients[first : first + share]))
            for first in range(0, len(clients), share)
        ]
        for job in jobs:
            for index, sent in job.result():
                yield index, {name: torch.from_numpy(array) for name, array in sent.items()}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class _Worker:
    """The one trainer of a worker process; processes of a pool have no other place to keep it."""

    trainer: InProcess


def _start_worker(
    model: nn.Module, clients: Sequence[Examples], training: LocalTraining, seed: int, engine: Engine
) -> None:
    torch.set_num_threads(1)
    _Worker.trainer = InProcess(model, clients, training, seed, engine)


def _work(start: dict[str, np.ndarray], number: int, clients: list[int]) -> list[tuple[int, dict[str, np.ndarray]]]:
    state = {name: torch.from_numpy(array) for name, array in start.items()}
    sent = _Worker.trainer.train(state, number, clients)
    return [(index, {name: tensor.numpy() for name, tensor in tensors.items()}) for index, tensors in sent]
