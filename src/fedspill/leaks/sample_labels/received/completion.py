"""Model completion: a party's trained tower and a new head, fitted to few labels by MixMatch (Fu et al. 2022)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.errors import FedspillError, NotApplicable
from fedspill.federation.local import state_of
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.sample_rounds import (
    known_labels,
    read_batches,
    require_every_class,
    sample_rounds,
)
from fedspill.models.vertical import Tower, vertical_net
from fedspill.threat import needs
from fedspill.trace import View

COMPLETION_SEES = ("batch", "model")
COMPLETION_KNOWS = ("architecture", "party_features", "few_labels")
COMPLETION_NEEDS = needs(sees=COMPLETION_SEES, knows=COMPLETION_KNOWS)

# Where completion must find something: twenty known labels of each class, and towers that move as the paper's do.
COMPLETION_CONTROL: Mapping[str, Any] = {
    **SAMPLE_LABELS.control,
    "federation": {**SAMPLE_LABELS.control["federation"], "rounds": 160},
    "training": {"batch_size": 20, "lr": 0.1},
    "adversary_data": {"per_class": 0, "known_labels": 20},
}


@dataclass(frozen=True)
class MixMatchEffort:
    """The constants of MixMatch (Berthelot et al. 2019), with the values of the paper's released code.

    That code takes thousands of steps and says the accuracy of its best epoch, which an attacker cannot tell; here the
    last step counts.
    """

    steps: int = 1000
    batch: int = 64
    lr: float = 2e-3
    temperature: float = 0.8
    mixing: float = 0.75  # alpha of the Beta distribution that samples are mixed by
    unlabelled: float = 50.0  # weight of the unlabelled loss at the end; it rises evenly
    averaging: float = 0.999  # how much of the averaged weights, which are what is used, each step keeps


def complete_model(view: View, effort: MixMatchEffort, rng: torch.Generator, name: str) -> SampleLabels:
    """Labels of all samples from the party's own features, its own tower and the labels that it knows."""
    rounds = sample_rounds(view, read_batches(view))
    known = known_labels(view, rounds)
    require_every_class(known, rounds.classes, name)
    features = view.knows("party_features")
    if features.ndim != 2 or int(rounds.indices.max()) >= len(features) or not bool(torch.isfinite(features).all()):
        raise NotApplicable("The party's own features are not those of the samples that rounds use.")
    tower, shape = _own_tower(view)
    own = features[rounds.indices].reshape(len(rounds.indices), *shape)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(1 << 60, (1,), generator=rng)))
        with torch.no_grad():
            width = int(tower.eval()(own[:1]).shape[1])
        head = [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, rounds.classes)]  # the released code's
        model = _mixmatch(
            nn.Sequential(tower, *head), own, own[known.samples], known.labels, rounds.classes, effort, rng
        )
    with torch.no_grad():
        scores = model(own)
    if not bool(torch.isfinite(scores).all()):
        raise NotApplicable("The completed model does not converge.")
    return rounds.guess(scores, known.samples, f"completed from {len(known.labels)} known labels")


def _own_tower(view: View) -> tuple[Tower, tuple[int, ...]]:
    """Party 0's trained tower, and the shape of what it takes of one sample."""
    sent = [message.tensors for message in view.get("model")]
    try:
        net = vertical_net(view.knows("architecture")())
    except FedspillError as error:
        raise NotApplicable(str(error)) from None
    tower = copy.deepcopy(net.tower(0))
    state = state_of(tower)
    for tensors in reversed(sent):
        own = {key.removeprefix("towers.0."): tensor for key, tensor in tensors.items() if key.startswith("towers.0.")}
        if own.keys() == state.keys() and all(own[key].shape == state[key].shape for key in state):
            if not all(bool(torch.isfinite(tensor).all()) for tensor in own.values()):
                continue
            tower.load_state_dict(own)
            return tower, net.part_shapes[0]
    raise NotApplicable("The party's own tower is not in the recording.")


def _mixmatch(
    model: nn.Module,
    every: Tensor,
    labelled: Tensor,
    labels: Tensor,
    classes: int,
    effort: MixMatchEffort,
    rng: torch.Generator,
) -> nn.Module:
    """The model with weights averaged over the steps."""
    targets = nn.functional.one_hot(labels, classes).float()
    optimizer = torch.optim.Adam(model.parameters(), effort.lr)
    model.train()
    average = copy.deepcopy(model)
    for step in range(effort.steps):
        some = torch.randint(len(labelled), (effort.batch,), generator=rng)
        others = torch.randint(len(every), (effort.batch,), generator=rng)
        with torch.no_grad():
            sharp = model(every[others]).softmax(1) ** (1 / effort.temperature)
            sharp = sharp / sharp.sum(1, keepdim=True)
        x = torch.cat([labelled[some], every[others]])
        y = torch.cat([targets[some], sharp])
        share = torch.distributions.Beta(effort.mixing, effort.mixing).sample().item()
        share = max(share, 1 - share)
        order = torch.randperm(len(x), generator=rng)
        logits = model(share * x + (1 - share) * x[order])
        mixed = share * y + (1 - share) * y[order]
        of_labelled = -(mixed[: len(some)] * logits[: len(some)].log_softmax(1)).sum(1).mean()
        of_others = (logits[len(some) :].softmax(1) - mixed[len(some) :]).square().mean()
        loss = of_labelled + effort.unlabelled * (step / effort.steps) * of_others
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                kept.copy_(torch.lerp(new, kept, effort.averaging) if kept.is_floating_point() else new)
    return average.eval()
