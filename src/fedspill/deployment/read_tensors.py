"""Which tensors a recording needs for attacks on certain leaks: `[record] leaks = ["labels"]`."""

from __future__ import annotations

import glob
from collections.abc import Iterator

from fedspill.deployment.plan import Plan
from fedspill.reads import EVERYTHING, Part, Reads, read_by_any
from fedspill.registry import entries, find, load

STATISTICS = "*running_mean"  # they stand still where clients do not normalise by their batches


def tensors_read(plan: Plan, head_weight: str | None, head_bias: str | None) -> dict[str, tuple[str, ...]]:
    """Patterns of tensors for each kind of message, of which something is left out."""
    reads = read_by_any(_reads_of(plan))
    head = tuple(glob.escape(name) for name in (head_weight, head_bias) if name is not None)
    parts: dict[str, Part] = {
        "model": reads.model,
        "update": reads.update,
        "gradient": reads.update,
        "aggregate": reads.aggregate,
    }
    if head_weight is None:  # nobody can tell what the last layer is
        parts = {kind: "all" if part == "head" else part for kind, part in parts.items()}
    patterns = {"none": (), "head": (*head, STATISTICS)}
    return {kind: patterns[part] for kind, part in parts.items() if part != "all"}


def _reads_of(plan: Plan) -> Iterator[Reads]:
    """Of each attack that the plan runs on the leaks it records for; code of others is not asked, and reads all."""
    names = [entry.name for entry in entries("attacks")] if plan.attacks is None else [one.name for one in plan.attacks]
    for name in names:
        if find("attacks", name).is_plugin:
            if plan.attacks is not None:
                yield EVERYTHING
            continue
        attack = load("attacks", name)
        if attack.leak.name in (plan.record.leaks or ()):
            yield attack.reads
