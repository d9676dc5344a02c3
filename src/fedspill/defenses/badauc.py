"""BADAUC as published (paper 004, section 4.2.2): leaves the federation when the local ROC area jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch

from fedspill.defense import ACCEPT, ClientContext, Defense, Verdict
from fedspill.defenses.model_checks.own_data_trial import logits_of, roc_area
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class BadAuc(Defense):
    """Alarm when the area on the client's own data changes by `threshold` or more; after it the client is gone.

    The text takes the change in either direction, the authors' code a drop only: `direction`.
    """

    name: ClassVar[str] = "badauc"
    title: ClassVar[str] = "BADAUC: leave when the ROC area drops"
    paper: ClassVar[str] = "004"

    threshold: float = 0.02
    direction: Literal["drop", "either"] = "drop"

    def incoming(self, message: Message, previous: Message | None, client: ClientContext) -> Verdict:
        if "left" in client.memory:
            return Verdict("refuse", "this client has left the federation")
        area = roc_area(*logits_of(message, client, self.name))
        if area is None:
            return ACCEPT  # one class only: no area
        now, before = torch.tensor([area], dtype=torch.float64), client.memory.get("area")
        if before is not None:
            drop = float(before) - area
            if (abs(drop) if self.direction == "either" else drop) >= self.threshold:
                gone = {**client.memory, "left": torch.ones(1)}
                return Verdict("refuse", f"the local ROC area went from {float(before):.3f} to {area:.3f}", memory=gone)
        return Verdict("accept", memory={"area": now})
