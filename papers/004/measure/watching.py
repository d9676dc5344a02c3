"""What guards say of planted models, ours and the published ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from fedspill.attacks.active.experiment import FOR_SGD, PUBLISHED, Recipes, plants
from fedspill.defenses.base import Site, Verdict
from fedspill.defenses.guard import Guard, recalled
from fedspill.defenses.watch.statistics import read_change
from fedspill.federation.local import Tensors
from fedspill.messages import EVERYONE, SERVER, Message

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
        return self.guard.incoming(message, self.previous, Site(self.memory))

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


def detect(
    case: Case, folder: Path, kinds: Sequence[str], rounds: Sequence[int], recipes: Recipes = PUBLISHED
) -> dict[str, Any]:
    """Verdicts of all guards on every planted model, for attacks after so many benign rounds."""
    began = time.time()
    rep = trained(case, folder, max(rounds))
    line: dict[str, Any] = {**case.cells(), "attacks": {}}
    for after in rounds:
        ours, trial = watchman(rep.history[:after]), Trial(rep.dense, rep.clients, case.elu)
        for state in rep.history[:after]:
            trial.meet(state)
        for kind in kinds:
            planted = plants(rep, kind, after, FOR_SGD, recipes)
            wadm = [wadm_says(rep.dense, rep.history[after - 1], state) for state in planted]
            tried = [trial.share(state) for state in planted[::4]]  # 93 clients each
            line["attacks"].setdefault(kind, {})[str(after)] = {
                "guard": [ours.judge(sent(after, state)).action != "accept" for state in planted],
                "wadm": [published for published, _ in wadm],
                "wadm, corrected": [corrected for _, corrected in wadm],
                "badacc": [errors for errors, _ in tried],
                "badauc": [areas for _, areas in tried],
                "values": [values_of(ours, sent(after, state)) for state in planted[::8]],
            }
    return {**line, "seconds": time.time() - began}


def values_of(ours: Watchman, message: Message) -> tuple[float, ...]:
    assert ours.previous is not None
    usual = recalled(ours.memory["guard"])[1] if "guard" in ours.memory else None
    return read_change(ours.previous.tensors, message.tensors, message.round - ours.previous.round, usual).values
