"""Replayed training: clients side by side on a GPU, each local step recorded once as a CUDA graph and then replayed.

Launched one by one, the kernels of a small step take less time than their launches, and one client's step does not fill
a GPU. So a few clients train at a time, each in a place of its own with its own copy of the model and its own stream.
While the server looks at what one of them sent, the others go on.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import final

import torch
from torch import Tensor, nn

from fedspill.cuda_graphs import record_graph
from fedspill.dataset import Examples
from fedspill.federation.local import prepare, seed_dropout, state_of
from fedspill.placement import sent_to
from fedspill.training import LocalTraining, Tensors

LAUNCHED_FIRST = 2  # steps of a size that are launched before it is recorded: libraries initialise themselves in them
MOST_GRAPHS = 4  # sizes of step that are recorded; of clients with many sizes of data the odd last ones are launched


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
        self._graphs: dict[int, tuple[Examples, Callable[[], None]]] = {}
        self._may_record = True

    def launch(self, start: Tensors, examples: Examples, rng: torch.Generator) -> Tensors:
        """Queues the training of one client; the change of every float tensor will be there once it is joined."""
        batches = self._training.batches(len(examples), rng)
        # Made outside of the lane, where it will be used and freed.
        change = {name: torch.empty_like(self._state[name]) for name in self._floats}
        with self._lane.entered(), torch.random.fork_rng(devices=[]):
            self._begin(start)
            seed_dropout(rng.initial_seed(), examples.x.device)
            rows = sent_to(torch.cat(batches), examples.x.device)
            for batch in torch.split(rows, [len(batch) for batch in batches]):
                self._step(examples, batch)
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

    def _step(self, examples: Examples, rows: Tensor) -> None:
        size = len(rows)
        if size not in self._graphs and self._met[size] >= LAUNCHED_FIRST and self._may_record:
            self._record(examples, size)
        if size in self._graphs:
            batch, replay = self._graphs[size]
            torch.index_select(examples.x, 0, rows, out=batch.x)
            torch.index_select(examples.y, 0, rows, out=batch.y)
            replay()
            return
        self._met[size] += 1
        before = self._lane.random_state() if self._may_record else None
        self._descend(examples.take(rows))
        after = self._lane.random_state() if self._may_record else None
        if before is not None and after is not None and not torch.equal(before, after):
            self._may_record = False  # graphs on several streams would draw from one place of the generator

    def _record(self, examples: Examples, size: int) -> None:
        x = examples.x.new_empty((size, *examples.x.shape[1:]))
        batch = Examples(x, examples.y.new_empty(size), None, examples.vocabulary, examples.schema)
        replay = self._lane.recorded(lambda: self._descend(batch))
        self._optimizer.zero_grad()  # these gradients lie in the graph's memory
        if replay is not None:
            self._graphs[size] = (batch, replay)
        self._may_record = replay is not None and len(self._graphs) < MOST_GRAPHS

    def _descend(self, batch: Examples) -> None:
        self._optimizer.zero_grad()
        self._training.fill_gradients(self._model, batch, torch.default_generator)
        self._optimizer.step()


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
