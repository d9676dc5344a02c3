"""What jobs come to, as they are stored; what an attack comes to is `fedspill.attack_run.Outcome`."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

from fedspill.attack_run import Outcome, Status
from fedspill.audit.result import ControlPart, DefenseCheck, PrivacyClaim, TurnedAway


class RecordOutcome(BaseModel):
    """A federation that was run and recorded, or the reason why it was not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    why: str = ""
    right: int = 0  # test samples that its model has right
    tested: int = 0
    epsilon: float | None = None
    delta: float | None = None
    checks: list[DefenseCheck] = []
    events: list[str] = []
    turned_away: list[TurnedAway] = []
    trace: str = ""  # a hash over everything in the recording
    seconds_per_round: float = 0.0


class ControlOutcome(BaseModel):
    """Both controls of an attack, or the reason why they did not run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    why: str = ""
    positive: ControlPart | None = None
    negative: ControlPart | None = None
    own_model: ControlPart | None = None  # the positive one with the user's own model; decides nothing

    def failure(self) -> str:
        """Which control failed and how; empty when both passed."""
        if self.status != "ok":
            return f"its controls gave nothing: {self.why}"
        for name, part in (("positive", self.positive), ("negative", self.negative)):
            if part is None or not part.passed:
                return f"its {name} control failed: it {part.why if part else 'did not run'}"
        return ""


class TwinsOutcome(BaseModel):
    """The twins of a recording: the same quantities of it and of each, or the reason why there are none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    why: str = ""
    mix: float | None = None
    chained: bool = True
    recorded: dict[str, float] = {}
    twins: list[dict[str, float]] = []


class ClaimOutcome(BaseModel):
    """A defense's claim that was tested, or that it claims nothing, or the reason why the test failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    why: str = ""
    claim: PrivacyClaim | None = None


JobOutcome: TypeAlias = RecordOutcome | Outcome | ControlOutcome | TwinsOutcome | ClaimOutcome
