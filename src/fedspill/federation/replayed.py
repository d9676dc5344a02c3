"""Replayed training: clients side by side on a GPU, their local steps recorded once as CUDA graphs and then replayed.

Launched one by one, the kernels of a small step take less time than their launches, and one client's step does not fill
a GPU. So a few clients train at a time, each in a place of its own with its own copy of the model and its own stream,
and several steps are replayed at once. While the server looks at what one of them sent, the others go on.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from typing import final

import torch
from torch import Tensor, nn

from fedspill.cuda_graphs import record_graph
from fedspill.dataset import Examples
from fedspill.federation.local import prepare, seed_dropout, state_of
from fedspill.placement import sent_to
from fedspill.training import LocalTraining, Tensors

LAUNCHED_FIRST = 2  # steps of a size that are launched before it is recorded: libraries initialise themselves in them
BLOCKS = (8, 4, 2, 1)  # steps that are replayed at once; more would save little, and recording takes its time
MOST_GRAPHS = 8  # that are recorded; of clients with many sizes of data the odd last steps are launched


class Lane(ABC):
    """Where the work of one place is queued, beside that of the others."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[object]:
        """What is launched within waits for what was launched outside before."""

    @abstractmethod
    def joined(self) -> None:
        """What is launched outside from now on waits for the work of this lane."""

    @abstractmethod
    def recorded(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """The work, which is not done now, to be replayed; None where it cannot be."""

    @abstractmethod
    def random_state(self) -> Tensor | None:
        """Of the generator that random layers of a model draw from; None where nothing is recorded anyway."""


@final
class CudaLane(Lane):
    """A stream, and the memory that its graphs share: they run one after the other and leave nothing there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def entered(self) -> AbstractContextManager[object]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def joined(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def recorded(self, work: Callable[[], None]) -> Callable[[], None] | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        except RuntimeError:  # it waits for the device somewhere: control flow on values, or a copy to the CPU
            torch.cuda.synchronize(self._device)
            scratch = torch.zeros(1, device=self._device)
            record_graph(
                lambda: scratch.zero_()
            )  # one that ends well, or random numbers are taken to be recorded still
            return None
        return graph.replay

    def random_state(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self._device)


@final
class Place:
    """One client at a time: a model, an optimizer, and the steps that are recorded on them."""

    def __init__(self, model: nn.Module, training: LocalTraining, lane: Lane) -> None:
        self._model = copy.deepcopy(model)
        prepare(self._model, training)
        self._training, self._lane = training, lane
        self._state = state_of(self._model)
        self._floats = [name for name, tensor in self._state.items() if tensor.is_floating_point()]
        self._optimizer = training.optimizer_for(self._model.parameters())
        for group in self._optimizer.param_groups:  # counters of steps on the device, where a graph can move them
            if "capturable" in group and next(iter(self._state.values())).is_cuda:
                group["capturable"] = True
        self._met: Counter[int] = Counter()  # sizes of steps
        self._graphs: dict[tuple[int, int], tuple[Examples, Callable[[], None]]] = {}  # of so many steps of that size
        self._may_record = True

    def launch(self, start: Tensors, examples: Examples, rng: torch.Generator) -> Tensors:
        """Queues the training of one client; the change of every float tensor will be there once it is joined."""
        batches = self._training.batches(len(examples), rng)
        # Made outside of the lane, where it will be used and freed.
        change = {name: torch.empty_like(self._state[name]) for name in self._floats}
        # What is recorded draws no random numbers, and seeds take as long as a small step.
        kept = nullcontext() if self._graphs else torch.random.fork_rng(devices=[])
        with self._lane.entered(), kept:
            self._begin(start)
            if not self._graphs:
                seed_dropout(rng.initial_seed(), examples.x.device)
            rows = sent_to(torch.cat(batches), examples.x.device)
            self._train(examples, rows, [len(batch) for batch in batches])
            with torch.no_grad():
                torch._foreach_copy_(list(change.values()), [self._state[name] for name in change])
                torch._foreach_sub_(list(change.values()), [start[name] for name in change])
        return change

    def join(self) -> None:
        self._lane.joined()

    @torch.no_grad()
    def _begin(self, start: Tensors) -> None:
        """The model as it was handed out, the optimizer as if new: zeros are what all of them begin with."""
        assert self._state.keys() == start.keys()
        torch._foreach_copy_(list(self._state.values()), [start[name] for name in self._state])
        kept = [value for state in self._optimizer.state.values() for value in state.values()]
        used = [value for value in kept if isinstance(value, Tensor)]
        if used:
            torch._foreach_zero_(used)

    def _train(self, examples: Examples, rows: Tensor, sizes: Sequence[int]) -> None:
        """All local steps; `rows` are the samples of one after the other."""
        first = 0
        for size, steps in runs(sizes):
            while steps:
                many = self._replay(examples, rows, first, size, steps) or self._launch(examples, rows, first, size)
                first += many * size
                steps -= many

    def _replay(self, examples: Examples, rows: Tensor, first: int, size: int, steps: int) -> int:
        """As many of these equal steps as a graph has; how many that are."""
        many = next(block for block in BLOCKS if block <= steps)
        if (size, many) not in self._graphs:
            if self._met[size] < LAUNCHED_FIRST or not self._may_record or len(self._graphs) == MOST_GRAPHS:
                return 0
            self._record(examples, size, many)
            if not self._may_record:
                return 0
        batch, replay = self._graphs[size, many]
        chosen = rows[first : first + many * size]
        torch.index_select(examples.x, 0, chosen, out=batch.x)
        torch.index_select(examples.y, 0, chosen, out=batch.y)
        replay()
        return many

    def _launch(self, examples: Examples, rows: Tensor, first: int, size: int) -> int:
        """One step, kernel by kernel."""
        self._met[size] += 1
        before = self._lane.random_state() if self._may_record else None
        self._descend(examples.take(rows[first : first + size]))
        after = self._lane.random_state() if self._may_record else None
        if before is not None and after is not None and not torch.equal(before, after):
            self._may_record = False  # graphs on several streams would draw from one place of the generator
        return 1

    def _record(self, examples: Examples, size: int, many: int) -> None:
        x = examples.x.new_empty((many * size, *examples.x.shape[1:]))
        batch = Examples(x, examples.y.new_empty(many * size), None, examples.vocabulary, examples.schema)

        def work() -> None:
            for x, y in zip(torch.split(batch.x, size), torch.split(batch.y, size), strict=True):
                self._descend(replace(batch, x=x, y=y))

        replay = self._lane.recorded(work)
        self._optimizer.zero_grad()  # these gradients lie in the graph's memory
        self._may_record = replay is not None
        if replay is not None:
            self._graphs[size, many] = (batch, replay)

    def _descend(self, batch: Examples) -> None:
        self._optimizer.zero_grad()
        self._training.fill_gradients(self._model, batch, torch.default_generator)
        self._optimizer.step()


def runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Each size with how many times it comes in a row."""
    return [(size, len(list(same))) for size, same in groupby(sizes)]


def side_by_side(
    places: Sequence[Place], start: Tensors, work: Sequence[tuple[int, Examples, torch.Generator]]
) -> Iterator[tuple[int, Tensors]]:
    """What each client sends, in the order of `work`. A place gets its next client when its last one is handed on."""
    launched: deque[tuple[int, Place, Tensors]] = deque()
    try:
        for number, (index, examples, rng) in enumerate(work):
            if len(launched) == len(places):
                yield _joined(*launched.popleft())
            place = places[number % len(places)]
            launched.append((index, place, place.launch(start, examples, rng)))
        while launched:
            yield _joined(*launched.popleft())
    finally:
        for place in places:  # what they read must not be freed before they did
            place.join()


def _joined(index: int, place: Place, change: Tensors) -> tuple[int, Tensors]:
    place.join()
    return index, change


def why_not_replayable(training: LocalTraining, device: torch.device) -> str | None:
    """What speaks against replaying, as far as that is known before a step was made; None if nothing does."""
    if device.type != "cuda":
        return "graphs are recorded on a GPU"
    if training.algorithm != "fedavg":
        return f"{training.algorithm} makes one step for each client"
    return None if type(training) is LocalTraining else "a defense changes the local steps"
