"""A trial of the readings without rehearsal: how well they do on make-believe clients, whose labels are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import FedspillError
from fedspill.leaks.labels.counts.each_update import read_each_update
from fedspill.messages import EVERYONE, SERVER, Message, client
from fedspill.observe.drawn_clients import deal
from fedspill.observe.make_believe import Workshop
from fedspill.observe.rehearsal_plan import RehearsalPlan
from fedspill.trace import MemoryTrace, View

FIRST_TRIED = 8  # make-believe clients: a single one that is misread shows that updates are not exact (convention)
TRIED = 24  # make-believe clients of all rounds together: what they have right varies by a tenth (convention)


@dataclass(frozen=True)
class Tried:
    """What came of it."""

    right: float  # mean share of labels
    stated: float  # the same, as the reading expected it
    error: float = 0.0  # standard error of their difference

    @property
    def overstated(self) -> float:
        """How much more labels it expected to have right than it had."""
        return max(0.0, self.stated - self.right)


def tried_on_make_believe(
    view: View, stage: RehearsalPlan, counts: Sequence[Tensor], rng: torch.Generator, clients: int = TRIED
) -> Tried | None:
    """How well `read_each_update` does on clients with such counts; None where that cannot be tried.

    counts: of each update's stand-ins (n, classes). A third of the auxiliary samples are the make-believe clients', the
    model has learnt from them as it has from the real ones'; the reading is given the others.
    """
    auxiliary = next(iter(stage.scenes.values())).shop.auxiliary
    every = torch.arange(len(auxiliary))
    third = torch.cat([torch.arange(int((auxiliary.y == label).sum())) for label in range(stage.classes)]) % 3 == 0
    order = torch.cat([every[auxiliary.y == label] for label in range(stage.classes)])
    theirs, mine = order[third], order[~third]
    if len(theirs) == 0 or bool((torch.bincount(auxiliary.y[theirs], minlength=stage.classes) == 0).any()):
        return None
    trace, real = MemoryTrace(_protocol(view)), {}
    each = -(-clients // len(stage.scenes))
    for number, scene in stage.scenes.items():
        shop = Workshop(scene.shop.model, scene.shop.training, auxiliary.take(theirs), scene.shop.defenses)
        start = shop.learnt(scene.base, scene.passes * -(-len(theirs) // shop.training.batch_size), rng)
        trace.say(Message(number, SERVER, EVERYONE, "model", start))
        here = [index for index, update in enumerate(stage.updates) if update.round == number]
        for place, index in enumerate((here * -(-each // len(here)))[:each]):
            own = counts[index][torch.randint(len(counts[index]), (1,), generator=rng)]
            rows = deal(own, shop.auxiliary.y, rng, halves=False)
            names = [name for name in stage.updates[index].tensors if name in start]
            sent = {name: tensor[0] for name, tensor in shop.send(start, rows, names, rng).items()}
            kind = stage.messages[index].kind
            trace.say(Message(number, client(place), SERVER, kind, sent, {"examples": rows.shape[1]}))
            real[number, client(place)] = own[0]
    knowledge = {word: view.knows(word) for word in ("architecture", "defense") if view.has(word)}
    own_samples = auxiliary.take(mine)
    knowledge |= {"aux_data": own_samples, "unlabelled_aux": own_samples.x}
    try:
        guess = read_each_update(trace.view(view.threat, knowledge=knowledge), rng)
    except FedspillError:
        return None
    assert guess.confidence is not None
    truth = torch.stack([real[origin.round, origin.sender] for origin in guess.of])
    right = torch.minimum(guess.counts, truth).sum(1) / truth.sum(1)
    error = float((guess.confidence - right).std(correction=0)) / len(right) ** 0.5
    return Tried(float(right.mean()), float(guess.confidence.mean()), error)


def _protocol(view: View) -> dict[str, object]:
    words = ("batch_size", "local_lr", "local_epochs", "optimizer")
    return {**view.public, **{word: view.knows(word) for word in words if view.has(word)}}
