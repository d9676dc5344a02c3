"""Mixed classes: public samples top up the classes that a client has few of, so that its update shows them alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.dataset import Examples
from fedspill.defense import Check, Defense, SentMessages, WireEffect
from fedspill.errors import UsageError


@final
@dataclass(frozen=True)
class MixedClasses(Defense):
    """Every class is filled with public samples up to `level` times the client's commonest class.

    At level 1 a client trains on equally many samples of every class, whatever it holds: composition and presence are
    those of the public samples. It tells the server the number of its own samples. What it does not hide is how private
    and public samples of a class differ, to an attacker who has the public ones and looks for them.
    """

    name: ClassVar[str] = "mixed-classes"
    title: ClassVar[str] = "Top up rare classes with public samples"
    paper: ClassVar[str] = ""
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"level": 1.0},)

    level: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.level <= 1:
            raise UsageError(f"level is a share in [0, 1], got {self.level}.")

    def data(self, own: Examples, public: Examples | None, rng: torch.Generator) -> Examples:
        if public is None or not len(public):
            raise UsageError(
                f"{self.name} needs public samples, and there are none.",
                remedy="Set adversary_data.per_class: what the adversary holds is taken as public.",
            )
        classes = int(torch.maximum(public.y.max(), own.y.max())) + 1
        held = torch.bincount(own.y, minlength=classes)
        wanted = int(self.level * int(held.max()))
        parts = []
        for label in range(classes):
            pool = (public.y == label).nonzero().flatten()
            lacking = wanted - int(held[label])
            if lacking > 0 and len(pool):
                parts.append(pool[torch.randint(len(pool), (lacking,), generator=rng).to(pool.device)])
        if not parts:
            return own
        added = public.take(torch.cat(parts))
        return Examples(torch.cat([own.x, added.x]), torch.cat([own.y, added.y]))

    def effect(self) -> WireEffect:
        return WireEffect(topped_up=self.level)

    def verify(self, sent: SentMessages) -> Check:
        if self.level == 0:
            return Check(self.name, False, "adds nothing: level is 0")
        return Check(self.name, None, "public samples in a batch leave no mark on a message that can be checked")
