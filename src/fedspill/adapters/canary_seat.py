"""A canary client's seat: what it sends is a direction that only it knows, and the next model tells how much is left.

After Andrew et al. 2024: a direction is drawn anew in every round. Along it, whatever a server adds that does not know
the direction is normal with a known spread, as long as the model has many numbers. So the client needs nothing of the
server but the models that it is sent anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspill.errors import InputRefused
from fedspill.files import dump_json, read_json, write_bytes
from fedspill.seeds import generator


@dataclass(frozen=True)
class CanaryScore:
    """One round: how far the model moved along the direction, in spreads of what else moved it."""

    round: int
    value: float
    numbers: int  # of the model


@dataclass(frozen=True)
class CanaryLog:
    """What one canary client saw. Its seed is a secret until the audit is over: it tells the directions."""

    seed: int
    clip: float
    scale: float
    scores: tuple[CanaryScore, ...] = field(default_factory=tuple)

    def direction(self, number: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A random direction of norm 1 over all tensors of floating-point numbers, the same for the same round."""
        rng = generator(self.seed, "canary", number)
        drawn = {n: torch.randn(t.shape, generator=rng) for n, t in sorted(like.items()) if t.is_floating_point()}
        norm = math.sqrt(sum(float(part.square().sum()) for part in drawn.values()))
        return {name: part / max(norm, 1e-30) for name, part in drawn.items()}

    def sent(self, number: int, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the client returns instead of a trained model."""
        along = self.direction(number, model)
        return {
            name: tensor + (self.scale * self.clip * along[name]).to(tensor.dtype) if name in along else tensor
            for name, tensor in model.items()
        }

    def scored(self, number: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> CanaryLog:
        """With the score of round `number`, in which the client sent a canary on top of `before`."""
        change = {n: (after[n] - before[n]).double() for n, t in before.items() if t.is_floating_point() and n in after}
        along = {name: part.double() for name, part in self.direction(number, before).items() if name in change}
        moved = sum(float((change[name] * part).sum()) for name, part in along.items())
        rest = sum(float((change[name] - moved * part).square().sum()) for name, part in along.items())
        numbers = sum(part.numel() for part in along.values())
        if numbers < 2 or not math.isfinite(moved) or not math.isfinite(rest) or moved == rest == 0:
            return self  # the model did not move, or is none: this round says nothing
        value = moved / math.sqrt(max(rest, 1e-30) / (numbers - 1))
        kept = [score for score in self.scores if score.round != number]
        return CanaryLog(self.seed, self.clip, self.scale, (*kept, CanaryScore(number, value, numbers)))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scores = [{"round": score.round, "value": score.value, "numbers": score.numbers} for score in self.scores]
        content = {"schema": 1, "seed": self.seed, "clip": self.clip, "scale": self.scale, "scores": scores}
        write_bytes(path, dump_json(content))

    @staticmethod
    def read(path: Path) -> CanaryLog:
        content = read_json(path)
        try:
            scores = tuple(_score(score) for score in content["scores"])
            return CanaryLog(int(content["seed"]), _number(content["clip"]), _number(content["scale"]), scores)
        except (KeyError, TypeError, ValueError):
            raise InputRefused(f"{path} is not what a canary client wrote.") from None


def _score(value: Mapping[str, Any]) -> CanaryScore:
    numbers = int(value["numbers"])
    if numbers < 2:
        raise ValueError
    return CanaryScore(int(value["round"]), _number(value["value"]), numbers)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number
