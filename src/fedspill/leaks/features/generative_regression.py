"""Generative regression: a network that makes up features until the joint model says what it said (Luo et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.features.equality_solving import EqualitySolving, known_parts
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.features.leak import FEATURES
from fedspill.leaks.features.seen.answers import columns_of, joint_model, read_predictions, unknown_parties
from fedspill.models.vertical import VerticalNet
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class GenerativeRegression(Attack):
    """Trains a generator from the active party's own features and random numbers to the unknown ones.

    Over all predictions seen, the joint model must say of the made-up rows what it said of the true ones; values whose
    variance is large are penalised. It learns what correlates with the active party's features, and single values no
    further than the probabilities decide them. Three hidden layers with layer norms, as published; how many steps and
    how large the penalty is the paper leaves open.
    """

    name: ClassVar[str] = "generative-regression"
    title: ClassVar[str] = "Features by a generator that fits predictions"
    paper: ClassVar[str] = (
        "Luo et al. 2021, Feature Inference Attack on Model Predictions in Vertical Federated Learning"
    )
    needs = needs(sees=["prediction", "batch", "model"], knows=["architecture", "active_features", "feature_ranges"])
    leak = FEATURES
    control: ClassVar[Mapping[str, Any]] = {
        **EqualitySolving.control,
        "federation": {**EqualitySolving.control["federation"], "predictions": 100},
    }

    widths: tuple[int, ...] = (600, 200, 100)
    steps: int = 1000
    batch: int = 64
    lr: float = 1e-3
    variance: float = 0.1  # weight of the penalty

    def run(self, view: View, rng: torch.Generator) -> FeatureRows:
        asked, net = read_predictions(view), joint_model(view)
        parts = [part.float() for part in known_parts(net, view.knows("active_features"), asked.indices)]
        ranges = view.knows("feature_ranges").float()
        unknown = [parts[party].flatten(1).shape[1] for party in unknown_parties(net)]
        if ranges.shape != (2, unknown[0]):
            raise NotApplicable("The features' ranges are not those of the party.")
        known = parts[-1].flatten(1) if net.parties > len(unknown) else parts[-1].flatten(1)[:, :0]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(1 << 60, (1,), generator=rng)))
            generator = self._generator(known.shape[1], sum(unknown))
        low, high = _box(ranges, sum(unknown))
        self._train(generator, net, parts, known, asked.values.float(), (low, high), rng)
        with torch.no_grad():
            noise = torch.randn(len(known), sum(unknown), generator=rng)
            rows = low + (high - low) * generator(torch.cat([known, noise], 1))
        if not bool(torch.isfinite(rows).all()):
            raise NotApplicable("The generator does not converge.")
        rows = rows[:, : unknown[0]]
        return asked.guess(rows, torch.zeros(len(rows), dtype=torch.bool), columns_of(net))

    def _generator(self, known: int, unknown: int) -> nn.Module:
        layers: list[nn.Module] = []
        width = known + unknown
        for hidden in self.widths:
            layers += [nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, unknown), nn.Sigmoid())

    def _train(
        self,
        generator: nn.Module,
        net: VerticalNet,
        parts: list[Tensor],
        known: Tensor,
        said: Tensor,
        box: tuple[Tensor, Tensor],
        rng: torch.Generator,
    ) -> None:
        optimizer = torch.optim.Adam(generator.parameters(), self.lr)
        low, high = box
        sizes = [parts[party].flatten(1).shape[1] for party in unknown_parties(net)]
        for _ in range(self.steps):
            some = torch.randint(len(known), (min(self.batch, len(known)),), generator=rng)
            noise = torch.randn(len(some), len(low), generator=rng)
            made = generator(torch.cat([known[some], noise], 1))
            whole = [part[some] for part in parts]
            for party, rows in zip(unknown_parties(net), (low + (high - low) * made).split(sizes, 1), strict=True):
                whole[party] = rows.reshape(whole[party].shape)
            logits = net.top([tower(part) for tower, part in zip(net.towers, whole, strict=True)])
            loss = (logits.softmax(1) - said[some]).square().sum(1).mean()
            loss = loss + self.variance * (made.var(0) - 0.25).clamp_min(0).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _box(ranges: Tensor, unknown: int) -> tuple[Tensor, Tensor]:
    """The ranges of all unknown features; of further parties, whose ranges nobody said, the widest of those known."""
    more = unknown - ranges.shape[1]
    low = torch.cat([ranges[0], ranges[0].min().expand(more)])
    return low, torch.cat([ranges[1], ranges[1].max().expand(more)])
