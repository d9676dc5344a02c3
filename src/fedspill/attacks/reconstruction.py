"""Inputs: our reconstruction attack, exact linear algebra where the network allows it, gradient matching elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attacks.base import Attack
from fedspill.attacks.inversion.cases import INPUT_NEEDS, cases_of, guess_of, sample_shape
from fedspill.attacks.inversion.exact import exact_answer
from fedspill.attacks.inversion.matching import classes_of, match
from fedspill.attacks.inversion.recover import Effort
from fedspill.guesses import Inputs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Reconstruction(Attack):
    """Recovers whole batches exactly from two leading linear layers, and single samples from convolutions too.

    Labels and batch order need not be known. Several local steps of plain SGD are walked one by one. Where no exact
    route applies and a batch has at most `most_matched` samples, gradients are matched by optimization instead. Each
    sample carries a certificate: whether the network, given it, sends back what was observed. Does not apply to more
    samples than the first two layers have units, to several local epochs, and to sums of clients.
    """

    name: ClassVar[str] = "inputs"
    title: ClassVar[str] = "Inputs, exact recovery where the network allows it"
    paper: ClassVar[str] = "fedspill"
    needs = INPUT_NEEDS
    guesses = Inputs

    origins: int = 6  # messages that are attacked, drawn at random
    starts: int = 32  # of the root search, at once
    peels: int = 12
    most_matched: int = 1  # samples of a batch that are left to gradient matching
    moves: int = 1200  # of gradient matching, by each of its two recipes

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        cases, notes = cases_of(view, self.origins, rng)
        effort, classes = Effort(self.starts, peels=self.peels), classes_of(view, cases[0])
        answers = []
        for case in cases:
            shape = sample_shape(view, case)
            answer = exact_answer(case, shape, classes, effort, rng)
            if not answer.tried and case.samples <= self.most_matched and shape is not None:
                answer = match(case, shape, classes, view, rng, moves=self.moves)
            answers.append(answer)
        return guess_of(cases, answers, notes)
