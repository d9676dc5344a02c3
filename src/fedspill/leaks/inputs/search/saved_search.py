"""A long search is saved while it runs, so that whoever starts it again resumes it where it was.

One file for each search, named and marked by what it belongs to: the recipe, gradients, labels, shape and seed.
It holds reconstructed data of somebody, so only its owner may read it and it is removed when the search ends.
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
from fedspill.leaks.inputs.search.optimizers import OptimizerState
from fedspill.leaks.inputs.search.search import Recipe, SearchState, StepWatcher

PARTS = {"mark", "step", "at", "least", "best", "chance"}


@final
@dataclass(frozen=True)
class SavedSearches:
    """The folder in which searches are saved, and how many seconds lie between two saves."""

    folder: Path
    seconds: float = 20.0

    def file_of(
        self,
        recipe: Recipe,
        observed: Sequence[Tensor],
        shape: Sequence[int],
        targets: Tensor | None,
        generator_state: Tensor,
    ) -> SavedSearch:
        """The file of that search alone; `generator_state` is the state of the generator that it begins with."""
        digest = hashlib.sha256(f"{recipe} {tuple(shape)}".encode())
        for tensor in [*observed, generator_state, *([] if targets is None else [targets])]:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SavedSearch(self.folder / f"search-{digest.hexdigest()[:16]}.safetensors", digest.digest(), self.seconds)


@final
@dataclass(frozen=True)
class SavedSearch:
    """The file of one search."""

    path: Path
    mark: bytes
    seconds: float

    def read(self) -> SearchState | None:
        """Where the search stood, None if it is new; a file that belongs to another one is refused."""
        if not self.path.exists():
            return None
        held = read_tensors(self.path)
        if not set(held) >= PARTS or bytes(held["mark"].tolist()) != self.mark:
            raise InputRefused(
                f"{self.path} was expected to hold a search for this gradient, and holds something else.",
                remedy="Remove it, or name another folder.",
            )
        return _state_from(held)

    def write(self, state: SearchState) -> None:
        own = {f"own.{index}": tensor for index, tensor in enumerate(state.optimizer.tensors)}
        mark, step = torch.tensor(list(self.mark), dtype=torch.uint8), torch.tensor(state.optimizer.step)
        found = {
            "at": state.optimizer.points,
            "least": state.least,
            "best": state.best,
            "chance": state.generator_state,
        }
        write_tensors(self.path, {"mark": mark, "step": step, **found, **own})

    def writer(self) -> StepWatcher:
        """To be called after every step; writes once `seconds` have passed since the last time."""
        last = time.monotonic()

        def write_in_time(state: SearchState) -> None:
            nonlocal last
            if time.monotonic() - last >= self.seconds:
                self.write(state)
                last = time.monotonic()

        return write_in_time

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _state_from(held: Mapping[str, Tensor]) -> SearchState:
    own = tuple(held[f"own.{index}"] for index in range(sum(name.startswith("own.") for name in held)))
    return SearchState(OptimizerState(held["at"], int(held["step"]), own), held["least"], held["best"], held["chance"])
