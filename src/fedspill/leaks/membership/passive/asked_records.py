"""The records that a passive adversary asks about: did a client train on them?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.trace import View


@dataclass(frozen=True, eq=False)
class AskedRecords:
    """Whole records x (records, ...) with their labels y (records,); some were trained on, others nobody holds."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


def asked_of(view: View) -> AskedRecords:
    found = view.knows("asked_records")
    if not isinstance(found, AskedRecords) or len(found) == 0:
        raise NotApplicable(f"Expected records to ask about as AskedRecords, got {type(found).__name__}.")
    return found
