"""BADAcc as published (paper 004, Figure 20): leaves the federation when the local error rises out of control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch

from fedspill.defense import ClientContext, Defense, Verdict
from fedspill.defenses.model_checks.own_data_trial import errors_of, logits_of
from fedspill.messages import Message

PublishedRule: TypeAlias = Literal["text", "code"]


@final
@dataclass(frozen=True)
class BadAcc(Defense):
    """The three-sigma rule of process control on the client's own training error; after an alarm the client is gone.

    The text recomputes the smallest deviation from the smallest error, the authors' code keeps the current one:
    `reading`.
    """

    name: ClassVar[str] = "badacc"
    title: ClassVar[str] = "BADAcc: leave when accuracy drops"
    paper: ClassVar[str] = "004"

    sigmas: float = 3.0
    threshold: float = 0.5  # of the predicted probability; the authors use 0.2 for ELU networks
    reading: PublishedRule = "text"

    def incoming(self, message: Message, previous: Message | None, client: ClientContext) -> Verdict:
        if "left" in client.memory:
            return Verdict("refuse", "this client has left the federation")
        logits, y = logits_of(message, client, self.name)
        n = len(y)
        p = errors_of(logits, y, self.threshold) / n
        least = client.memory.get("least")
        alarm, kept = rose(p, n, None if least is None else least.tolist(), self.sigmas, self.reading)
        if alarm:
            gone = {**client.memory, "left": torch.ones(1)}
            return Verdict("refuse", f"the local error rose from {kept[0]:.3f} to {p:.3f}", memory=gone)
        return Verdict("accept", memory={"least": torch.tensor(kept, dtype=torch.float64)})


def rose(
    p: float, n: int, least: Sequence[float] | None, sigmas: float = 3.0, reading: PublishedRule = "text"
) -> tuple[bool, tuple[float, float]]:
    """Whether the error p of n samples is out of control, and the smallest error and deviation so far."""
    s = math.sqrt(p * (1 - p) / n)
    if least is None:
        return False, (p, s)
    p_min, s_min = least
    if p + s >= p_min + sigmas * s_min and p > p_min:
        return True, (p_min, s_min)
    if p + s < p_min + s_min:
        p_min = min(p, p_min)
        s_min = math.sqrt(p_min * (1 - p_min) / n) if reading == "text" else s
    return False, (p_min, s_min)
