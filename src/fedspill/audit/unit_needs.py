"""What one unit of an audit needs of a machine, as a cluster counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedspill.errors import UsageError


@dataclass(frozen=True)
class UnitNeeds:
    """One core, a share of a GPU where the plan trains on one, and bytes of memory."""

    memory: int
    gpus: float = 0.0
    cpus: float = 1.0

    def times(self, resources: Mapping[str, float]) -> int:
        """How many such units a node with these resources, as Ray names them, could hold."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return min(int(resources.get(name, 0.0) / amount) for name, amount in wanted.items() if amount)

    def words(self) -> str:
        gpu = f", {self.gpus:g} of a GPU" if self.gpus else ""
        return f"it needs {self.cpus:g} core{gpu} and {self.memory / 2**20:,.0f} MB of memory"


def gpus_of(device: str, share: float) -> float:
    """Of a GPU, for a plan's device: Ray says which one, so that a plan on a cluster cannot."""
    if device == "cpu":
        return 0.0
    if device not in ("cuda", "cuda:0"):
        raise UsageError(f"On a cluster Ray chooses the GPU, not the plan ({device}).", remedy="Use --device cuda.")
    return share
