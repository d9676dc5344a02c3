"""Data Leakage in Federated Averaging (Dimitrov et al. 2022): local epochs are simulated, each with its own images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.inputs.gradient_matching import MATCH_NEEDS, classes_of, labels_from_attack
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.observed_gradients import (
    AttackedMessage,
    RecoveredInputs,
    attacked_messages,
    guess_of,
    sample_shape,
)
from fedspill.leaks.inputs.search.candidate_gradients import local_steps_of
from fedspill.leaks.inputs.search.recipes import fedavg_leakage
from fedspill.leaks.inputs.search.search import one_hot, reconstruct
from fedspill.placement import moved
from fedspill.threat import Needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class FedAvgLeakage(Attack):
    """Seeks one set of images for every local epoch, since batches are cut anew in each; their means must agree.

    Squared distance with less weight for later layers, total variation, a range, Adam, 400 steps. The sets are then put
    into one order and averaged. The released weights go with the gradients of its network for FEMNIST: a rate of 0.4
    and an agreement of 1000. The defaults are for small networks, whose gradients are smaller. Labels come from the
    attack `labels`, where the paper interpolates between the weights before and after; they are sought jointly where it
    gives none. The released code lets the weight of the distance rise from one to two over the first half, which is two
    from the start here. Needs several epochs of SGD at a known learning rate, and vouches for nothing.
    """

    name: ClassVar[str] = "fedavg-leakage"
    title: ClassVar[str] = "Data leakage in federated averaging"
    paper: ClassVar[str] = "Dimitrov et al., Data Leakage in Federated Averaging, 2022"
    needs = Needs(MATCH_NEEDS.sees, MATCH_NEEDS.knows | {"local_epochs"}, MATCH_NEEDS.does)
    leak = INPUTS
    control: ClassVar[Mapping[str, Any] | None] = {
        **INPUTS.control,
        "partition": {"name": "uniform-batch", "batch": 1},
        "model": {"name": "mlp", "widths": [32, 32], "activation": "tanh", "last_activation": "sigmoid"},
        "training": {"lr": 0.1, "batch_size": 1, "epochs": 2},
    }

    origins: int = 3  # messages that are attacked, drawn at random
    most_samples: int = 4  # larger clients are not tried
    steps: int = 400
    lr: float = 0.1
    variation: float = 1e-3
    agreement: float = 10.0  # weight of the distance between the means of epochs
    labels_from: str = "labels"  # a label attack; empty: sought together with the inputs

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        messages, notes = attacked_messages(view, self.origins, rng)
        refusals = [self._refusal(attacked, sample_shape(view, attacked)) for attacked in messages]
        labels = labels_from_attack(self.labels_from, view, rng) if self.labels_from and not all(refusals) else {}
        known = view.knows("unlabelled_aux") if view.has("unlabelled_aux") else None
        answers = []
        for attacked, refusal in zip(messages, refusals, strict=True):
            shape = sample_shape(view, attacked)
            if refusal or shape is None:
                answers.append(RecoveredInputs.none(refusal, tried=False))
                continue
            placed = moved(attacked, view.device)
            answers.append(
                self.reconstructed(placed, shape, classes_of(view, attacked), labels.get(attacked.of), known, rng)
            )
        return guess_of(messages, answers, notes)

    def _refusal(self, attacked: AttackedMessage, shape: tuple[int, ...] | None) -> str:
        if attacked.lr is None or attacked.schedule.epochs < 2 or not (attacked.plain or attacked.momentum):
            return "it is not an update of several epochs of SGD"
        if attacked.samples > self.most_samples:
            return f"clients of more than {self.most_samples} samples are not tried (option most_samples)"
        return "" if shape is not None else "the shape of an input is not known"

    def reconstructed(
        self,
        attacked: AttackedMessage,
        shape: tuple[int, ...],
        classes: int,
        labels: Tensor | None,
        known: Tensor | None,
        rng: torch.Generator,
    ) -> RecoveredInputs:
        """The images of one message; `known` are inputs at hand, which say between which values inputs lie."""
        assert attacked.lr is not None
        size, epochs, sizes = attacked.samples, attacked.schedule.epochs, attacked.schedule.sizes()
        cuts = [
            size * epoch + attacked.schedule.batch_size * part for epoch in range(epochs) for part in range(len(sizes))
        ]
        steps = [slice(cut, cut + own) for cut, own in zip(cuts, sizes * epochs, strict=True)]
        usable = labels is not None and len(labels) == size and int(labels.max()) < classes
        targets = None
        if labels is not None and usable:
            targets = one_hot(labels[torch.randperm(size, generator=rng)].repeat(epochs), classes)
        between = (float(known.min()), float(known.max())) if known is not None else None
        found = reconstruct(
            fedavg_leakage(self.steps, self.lr, self.variation, self.agreement, epochs, len(steps), between),
            local_steps_of(attacked.as_client_ran.float(), steps, attacked.lr, attacked.momentum),
            [tensor.float() for tensor in attacked.gradient_list],
            (epochs * size, *shape),
            classes,
            rng=rng,
            targets=targets,
        )
        x = found.x[0].cpu().double().nan_to_num(0.0).reshape(epochs, size, *shape)
        soft = found.targets[0].cpu()[:size]
        return RecoveredInputs(averaged(x), torch.zeros(size, dtype=torch.bool), soft.argmax(1))


def averaged(x: Tensor) -> Tensor:
    """(N, *shape) the mean over epochs of sets x (E, N, *shape), each in the order that fits the first one best."""
    ordered = [x[0]]
    for one in x[1:]:
        apart: Any = torch.cdist(x[0].flatten(1), one.flatten(1)).numpy()
        ordered.append(one[torch.from_numpy(linear_sum_assignment(apart)[1])])
    return torch.stack(ordered).mean(0)
