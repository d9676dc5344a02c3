"""Inputs: our reconstruction attack, exact linear algebra where the network allows it, gradient matching elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.inputs.exact.peel_honest import peel_honest
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.gradient_matching import classes_of, labels_from_attack, match_gradients
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.most_likely_batch import InputDistribution, may_be_sought, most_likely_batch
from fedspill.leaks.inputs.observed_gradients import (
    INPUT_NEEDS,
    AttackedMessage,
    RecoveredInputs,
    attacked_messages,
    guess_of,
    sample_shape,
)
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Reconstruction(Attack):
    """Recovers whole batches exactly from two leading linear layers, and single samples from convolutions too.

    One softmax layer alone gives batches of up to 0.4 samples a class, and two linear layers behind convolutions give
    what these determine. Batches too large for that are read in part, row by row, where the first layer is rectified
    and inputs of the kind are at hand. Labels and batch order need not be known. Several local steps of plain SGD are
    followed one by one; several epochs, with momentum too, are simulated where every step is on all samples of a small
    client, without a certificate where the network begins with convolutions.
    Where no exact route applies and a batch has at most `most_matched` samples, gradients are matched by optimization
    instead. Each sample carries a certificate: whether the network, given it, sends back what was observed. An
    adversary that knows of a defense and has inputs of the kind takes the most likely batch where no exact one is
    found. Does not apply to several epochs of several steps each, and to sums of clients.
    """

    name: ClassVar[str] = "inputs"
    title: ClassVar[str] = "Inputs, exact recovery where the network allows it"
    paper: ClassVar[str] = "fedspill"
    needs = INPUT_NEEDS
    leak = INPUTS

    origins: int = 6  # messages that are attacked, drawn at random
    starts: int = 32  # of the root search, at once
    peels: int = 12
    seconds: float = 120.0  # of the search for one message's samples, reckoned for one core
    most_matched: int = 1  # samples of a batch that are left to gradient matching
    moves: int = 1200  # of gradient matching, by each of its two recipes

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        messages, notes = attacked_messages(view, self.origins, rng)
        effort, classes = (
            RootSearchEffort(self.starts, peels=self.peels, seconds=self.seconds),
            classes_of(view, messages[0]),
        )
        knows_defense = KnownDefenses.known_to(view) is not None
        distribution = InputDistribution.known_to(view, classes) if knows_defense else None
        sought = distribution is not None and any(map(may_be_sought, messages))
        labels = labels_from_attack("labels", view, rng) if sought else {}
        answers = []
        for attacked in messages:
            shape = sample_shape(view, attacked)
            answer = exact_answer(attacked, view, classes, effort, rng)
            if distribution is not None and shape is not None and not is_complete(answer, attacked):
                answer = most_likely_batch(
                    attacked, shape, classes, view, labels.get(attacked.of), distribution, answer.samples, rng
                )
            elif unsure(answer) and attacked.samples <= self.most_matched and shape is not None:
                matched = match_gradients(attacked, shape, classes, view, rng, moves=self.moves)
                answer = matched if not answer.tried else min(answer, matched, key=lambda one: one.unexplained)
            answers.append(answer)
        return guess_of(messages, answers, notes)


def exact_answer(
    attacked: AttackedMessage, view: View, classes: int, effort: RootSearchEffort, rng: torch.Generator
) -> RecoveredInputs:
    """What exact recovery finds of one message; a batch that it does not find whole is peeled where that finds more."""
    answer = recover_exactly(attacked, sample_shape(view, attacked), classes, effort, rng)
    if not is_complete(answer, attacked) and attacked.samples > 1 and view.has("unlabelled_aux"):
        peeled = peel_honest(attacked, view.knows("unlabelled_aux"))
        if peeled is not None and len(peeled.samples) > int(answer.certified.sum()):
            return peeled
    return answer


def is_complete(answer: RecoveredInputs, attacked: AttackedMessage) -> bool:
    """Whether every sample of a batch was found and vouched for."""
    return len(answer.samples) == attacked.samples and bool(answer.certified.all())


def unsure(answer: RecoveredInputs) -> bool:
    """Whether exact recovery did not apply, or found samples that it does not vouch for."""
    return not answer.tried or (len(answer.samples) > 0 and not bool(answer.certified.all()))
