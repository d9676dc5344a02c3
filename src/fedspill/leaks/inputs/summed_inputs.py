"""Inputs behind sums of clients, and which of them are one client's (after SRATTA, Marchand et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.exact.gather_by_rounds import Gathered, gather_by_rounds
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.gradient_matching import classes_of
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.inputs import exact_answer
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.observed_gradients import RecoveredInputs, attacked_messages, guess_of
from fedspill.messages import Kind, Message
from fedspill.threat import needs
from fedspill.trace import Origin, View

SINGLE: tuple[Kind, ...] = ("update", "gradient")


@final
@dataclass(frozen=True)
class SummedInputs(Attack):
    """Recovers the samples behind a round's sum, and puts those of one client together.

    Clients that make one step each from the same model send, in sum, the step of one larger batch, so that the exact
    routes of `inputs` apply, up to as many samples as they tell apart. A sample that was found is then looked for in
    the sums of all other rounds: it took part where it lies in the row space of the first layer's gradient. Clients
    that train on all of their samples whenever they are chosen have all of them in the same rounds, and samples of the
    same rounds are put together, as far as that is no coincidence. Does not apply where clients make several steps, and
    tells no clients apart where all of them take part in every round, or always the same ones together.
    """

    name: ClassVar[str] = "summed-inputs"
    title: ClassVar[str] = "Inputs behind sums, put together by client"
    paper: ClassVar[str] = "fedspill, after Marchand et al. 2023"
    needs = needs(sees=["aggregate", "model"], knows=["architecture"])
    leak = INPUTS
    # Two clients a round with a few digits each out of many, so that no two rounds have much in common.
    control: ClassVar[Mapping[str, Any] | None] = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [48, 48], "activation": "tanh"},
        "partition": "iid",
        "federation": {"clients": 2, "rounds": 4, "secure_aggregation": True},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 3},
    }

    rounds_read: int = 24  # drawn at random, where there are more
    starts: int = 32  # of the root search, at once
    peels: int = 12

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        sums = view.get("aggregate")
        if not sums:
            raise NotApplicable("No sum of clients was recorded for this adversary.")
        if any(view.sees(kind) and view.get(kind) for kind in SINGLE):
            return _unanswered(sums, "single messages are seen, which the attack inputs reads")
        try:
            messages, notes = attacked_messages(view, self.rounds_read, rng, kinds=("aggregate",))
        except NotApplicable as refusal:
            return _unanswered(sums, refusal.problem)
        effort, classes = RootSearchEffort(self.starts, peels=self.peels), classes_of(view, messages[0])
        answers = [exact_answer(attacked, view, classes, effort, rng) for attacked in messages]
        gathered = gather_by_rounds(messages, answers, rng)
        if gathered.note:
            notes = [*notes, gathered.note]
        merged = [_with_others(answer, gathered, number) for number, answer in enumerate(answers)]
        guess = guess_of(messages, [answer for answer, _ in merged], notes)
        return replace(guess, groups=[groups for _, groups in merged])


def _unanswered(sums: Sequence[Message], why: str) -> Inputs:
    """No sample of any sum, and the reason."""
    none = RecoveredInputs.none("", tried=False)
    return Inputs(
        [Origin(message.round, message.sender) for message in sums],
        [none.samples] * len(sums),
        [none.certified] * len(sums),
        torch.zeros(len(sums), dtype=torch.bool),
        notes=(why,),
    )


def _with_others(answer: RecoveredInputs, gathered: Gathered, number: int) -> tuple[RecoveredInputs, Tensor]:
    """The samples of a round, with those found in other rounds that took part in it too, and all of their groups.

    What was found in this round and is not vouched for stays, in no group.
    """
    present = gathered.present[:, number]
    known = gathered.found_in[:, number] & present
    added = present & ~known
    if not bool(present.any()):
        return answer, torch.full((len(answer.samples),), -1)
    unsure = answer.samples[~answer.certified]
    samples = torch.cat([gathered.samples[known], gathered.samples[added], unsure])
    certified = torch.zeros(len(samples), dtype=torch.bool)
    certified[: int(known.sum())] = True
    nobody = torch.full((len(unsure),), -1)
    groups = torch.cat([gathered.groups[known], gathered.groups[added], nobody])
    return replace(answer, samples=samples, certified=certified, labels=None), groups
