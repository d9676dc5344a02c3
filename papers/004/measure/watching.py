"""What guards say of planted models, ours and the published ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from fedspill.defense import ClientContext, Verdict
from fedspill.defenses.guard import Guard, recalled
from fedspill.defenses.model_checks.change_statistics import read_change
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.training import Tensors

from .experiment import FOR_SGD, PUBLISHED, Recipes, Repetition, plants
from .settings import Case, on_cpu, trained
from .trial import Trial, wadm_says


@final
@dataclass
class Watchman:
    """One client's guard over time: what it remembers and the model it trained on last."""

    guard: Guard
    memory: dict[str, Tensor]
    previous: Message | None = None

    def judge(self, message: Message) -> Verdict:
        return self.guard.incoming(message, self.previous, ClientContext(self.memory))

    def meet(self, message: Message) -> bool:
        """Looks at a model and goes on from it; whether there was an alarm."""
        verdict = self.judge(message)
        if verdict.memory is not None:
            self.memory = dict(verdict.memory)
        self.previous = message if verdict.action == "accept" else verdict.model
        return verdict.action != "accept"


def sent(number: int, state: Tensors) -> Message:
    return Message(number, SERVER, EVERYONE, "model", on_cpu(state))


def watchman(history: Sequence[Tensors], guard: Guard | None = None) -> Watchman:
    """After these benign models."""
    made = Watchman(guard or Guard(), {})
    for number, state in enumerate(history):
        made.meet(sent(number, state))
    return made


@final
class _Published:
    """The published guards after so many benign models."""

    def __init__(self, rep: Repetition, after: int, elu: bool) -> None:
        self.rep, self.before, self.trial = rep, rep.history[after - 1], Trial(rep.dense, rep.clients, elu)
        for state in rep.history[:after]:
            self.trial.meet(state)

    def say(self, planted: Sequence[Tensors]) -> dict[str, Any]:
        wadm = [wadm_says(self.rep.dense, self.before, state) for state in planted]
        tried = [self.trial.share(state) for state in planted[::4]]  # 93 clients each
        return {
            "wadm": [published for published, _ in wadm],
            "wadm, corrected": [corrected for _, corrected in wadm],
            "badacc": [errors for errors, _ in tried],
            "badauc": [areas for _, areas in tried],
        }


def detect(
    case: Case,
    folder: Path,
    kinds: Sequence[str],
    rounds: Sequence[int],
    recipes: Recipes = PUBLISHED,
    published: bool = True,
) -> dict[str, Any]:
    """Verdicts of our guard and of the published ones on every planted model, after so many benign rounds."""
    began = time.time()
    rep = trained(case, folder, max(rounds))
    line: dict[str, Any] = {**case.cells(), "attacks": {}}
    for after in rounds:
        ours = watchman(rep.history[:after])
        others = _Published(rep, after, case.elu) if published else None
        for kind in kinds:
            planted = plants(rep, kind, after, FOR_SGD, recipes)
            line["attacks"].setdefault(kind, {})[str(after)] = {
                "guard": [ours.judge(sent(after, state)).action != "accept" for state in planted],
                "values": [values_of(ours, sent(after, state)) for state in planted[::8]],
                **(others.say(planted) if others else {}),
            }
    return {**line, "seconds": time.time() - began}


def values_of(ours: Watchman, message: Message) -> tuple[float, ...]:
    assert ours.previous is not None
    usual = recalled(ours.memory["guard"])[1] if "guard" in ours.memory else None
    return read_change(ours.previous.tensors, message.tensors, usual).values
