"""A long search is written down as it goes, and taken up where it stood by whoever runs it again.

One file for each search, named and marked by what it belongs to: the recipe, gradients, labels, shape and seed.
It holds the adversary's picture of somebody's data, so it is readable by its owner only and gone when the search ends.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from fedspill.errors import InputRefused
from fedspill.files import read_tensors, write_tensors
from fedspill.leaks.inputs.search.optimizers import Memory
from fedspill.leaks.inputs.search.search import Recipe, State, Watch

PARTS = {"mark", "step", "at", "least", "best", "chance"}


@final
@dataclass(frozen=True)
class Keep:
    """Where searches are written down, and after how many seconds each."""

    folder: Path
    seconds: float = 20.0

    def page(
        self, recipe: Recipe, observed: Sequence[Tensor], shape: Sequence[int], targets: Tensor | None, chance: Tensor
    ) -> Page:
        """The page of that search, and of no other; `chance` is the state of the generator that it begins with."""
        digest = hashlib.sha256(f"{recipe} {tuple(shape)}".encode())
        for tensor in [*observed, chance, *([] if targets is None else [targets])]:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Page(self.folder / f"search-{digest.hexdigest()[:16]}.safetensors", digest.digest(), self.seconds)


@final
@dataclass(frozen=True)
class Page:
    """The file of one search."""

    path: Path
    mark: bytes
    seconds: float

    def read(self) -> State | None:
        """Where the search stood, None if it is new; a file that belongs to another one is refused."""
        if not self.path.exists():
            return None
        held = read_tensors(self.path)
        if not set(held) >= PARTS or bytes(held["mark"].tolist()) != self.mark:
            raise InputRefused(
                f"{self.path} was expected to hold a search for this gradient, and holds something else.",
                remedy="Remove it, or name another folder.",
            )
        return _state(held)

    def write(self, state: State) -> None:
        own = {f"own.{index}": tensor for index, tensor in enumerate(state.memory.tensors)}
        mark, step = torch.tensor(list(self.mark), dtype=torch.uint8), torch.tensor(state.memory.step)
        found = {"at": state.memory.at, "least": state.least, "best": state.best, "chance": state.chance}
        write_tensors(self.path, {"mark": mark, "step": step, **found, **own})

    def keeper(self) -> Watch:
        """To be called after every step; writes when it is time."""
        last = time.monotonic()

        def keep(state: State) -> None:
            nonlocal last
            if time.monotonic() - last >= self.seconds:
                self.write(state)
                last = time.monotonic()

        return keep

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _state(held: Mapping[str, Tensor]) -> State:
    own = tuple(held[f"own.{index}"] for index in range(sum(name.startswith("own.") for name in held)))
    return State(Memory(held["at"], int(held["step"]), own), held["least"], held["best"], held["chance"])
