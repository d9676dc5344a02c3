"""Targets: the records that a malicious server looks for, as far as it knows them (paper 004, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.messages import AGGREGATOR
from fedspill.trace import Origin, View


@dataclass(frozen=True, eq=False)
class Targets:
    """Records x (targets, columns) and labels y (targets,), one looked for after the other from round `first` on.

    Where a secret is asked for, its column and all columns that encode the same attribute are unknown and hold 0: a
    one-hot sibling would give the value away. Without a secret the whole record is known, and membership is asked.
    """

    x: Tensor
    y: Tensor
    first: int = 0
    column: int | None = None  # 1 or 0 there is what is asked
    masked: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def group(self, number: int, at_once: int) -> Tensor:
        """Indices of the targets that round `number` looks for."""
        start = max((number - self.first) * at_once, 0)
        return torch.arange(len(self))[start : start + at_once if number >= self.first else 0]

    def rounds(self, at_once: int) -> range:
        """The rounds that it takes to look for all of them."""
        return range(self.first, self.first - (-len(self) // at_once))

    def origin(self, index: int, at_once: int) -> Origin:
        return Origin(self.first + index // at_once, AGGREGATOR)

    def known(self) -> Tensor:
        """(columns,) 1 where the adversary knows the column, 0 where it is masked."""
        mask = torch.ones(self.x[0].numel(), device=self.x.device)
        mask[list(self.masked)] = 0
        return mask

    def completed(self, value: int, shadow: Tensor) -> Tensor:
        """(targets, columns) the records with that value; masked columns are the means of shadow records with it."""
        column = self.secret_column()
        alike = shadow.flatten(1)[(shadow.flatten(1)[:, column] > 0.5) == bool(value)]
        if len(alike) == 0:
            raise NotApplicable(f"No record at the adversary's hand has the value {value} of the attribute asked for.")
        whole = self.x.flatten(1).clone()
        whole[:, list(self.masked)] = alike[:, list(self.masked)].mean(0)
        return whole

    def secret_column(self) -> int:
        if self.column is None:
            raise NotApplicable(
                "The plan asks for no attribute.",
                remedy='Name one in the plan: [targets] attribute = "...", a yes-or-no column of a table.',
            )
        return self.column


def targets_of(view: View) -> Targets:
    found = view.knows("targets")
    if not isinstance(found, Targets):
        raise NotApplicable(f"Expected the records looked for as Targets, got {type(found).__name__}.")
    return found


def shadow_of(view: View) -> Tensor:
    """(records, columns) all records of the kind at the adversary's hand: the shadow set, else the auxiliary inputs."""
    if view.has("shadow_data"):
        shadow: Examples = view.knows("shadow_data")
        return shadow.x.flatten(1)
    inputs: Tensor = view.knows("unlabelled_aux")
    return inputs.flatten(1)
