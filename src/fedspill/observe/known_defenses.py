"""What an attack makes of the defenses it knows: noise, clipping and sparsity of a message, in numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedspill.defense import Defense
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.frozen_head import FrozenHead
from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.defenses.mixed_classes import MixedClasses
from fedspill.defenses.quantization import Bits, Quantization, quantum
from fedspill.trace import View


@dataclass(frozen=True)
class KnownWire:
    """The public parameters of the defenses in place, as they act on a sum of step gradients."""

    step_noise: float = 0.0  # standard deviation on each step's gradient
    update_noise: float = 0.0  # on the update
    clipped: bool = False  # so that the scale is not known
    step_clip: float | None = None  # the norm that each step's gradient is clipped to
    update_clip: float | None = None  # that whole updates are clipped to
    dropped: float = 0.0  # share of each tensor that was set to zero
    smoothed: float = 0.0  # share of a target that is spread over all classes
    bits: Bits | None = None
    mixed: float = 0.0  # how far rare classes were topped up with public samples
    no_bias: bool = False
    no_head: bool = False

    @staticmethod
    def known_to(view: View) -> KnownWire | None:
        """None where the adversary does not know the defenses, or there is none that changes a reading."""
        if not view.has("defense"):
            return None
        defenses = view.knows("defense")
        found = KnownWire.of(defenses, int(view.knows("batch_size")))
        if found == KnownWire():
            view.used.discard("defense")  # it looked and has no answer to it: that is no attacker who knows the defense
            return None
        return found

    @staticmethod
    def of(defenses: Sequence[Defense], batch_size: int) -> KnownWire:
        found = KnownWire()
        for defense in defenses:
            if isinstance(defense, ClipNoise):
                clipped = found.clipped or defense.clip is not None
                if defense.per == "step":
                    step = math.hypot(found.step_noise, defense.sigma)
                    found = replace(found, clipped=clipped, step_noise=step, step_clip=defense.clip)
                else:
                    update = math.hypot(found.update_noise, defense.sigma)
                    found = replace(found, clipped=clipped, update_noise=update, update_clip=defense.clip)
            elif isinstance(defense, DpSgd):
                step = math.hypot(found.step_noise, defense.noise_multiplier * defense.clip / batch_size)
                found = replace(found, clipped=True, step_noise=step)
            elif isinstance(defense, Compression) and defense.of == "every-tensor":
                found = replace(found, dropped=max(found.dropped, defense.drop))
            elif isinstance(defense, LabelSmoothing):
                found = replace(found, smoothed=defense.amount)
            elif isinstance(defense, Quantization):
                found = replace(found, bits=defense.type)
            elif isinstance(defense, MixedClasses):
                found = replace(found, mixed=max(found.mixed, defense.level))
            elif isinstance(defense, FrozenHead):
                found = replace(found, no_bias=True, no_head=defense.what == "head")
        return found

    def noise(self, steps: int, passes: int, lr: float, is_update: bool) -> float:
        """Standard deviation on a coordinate of one pass's summed step gradients."""
        scale = lr * passes if is_update else 1.0
        over_passes = math.sqrt(steps * passes) / passes if is_update else 1.0
        return math.hypot(self.step_noise * over_passes, self.update_noise / scale)

    def rounding(self, tensor: Tensor) -> float:
        """Standard deviation that rounding leaves on a typical coordinate of a tensor."""
        if self.bits is None:
            return 0.0
        return float(quantum(tensor, self.bits).double().square().mean().sqrt()) / math.sqrt(12)

    def kept(self, tensor: Tensor) -> float:
        """The smallest absolute value that compression let through; 0 without compression."""
        if not self.dropped:
            return 0.0
        sent = tensor[tensor != 0].abs()
        return float(sent.min()) if sent.numel() else math.inf

    def left_whole(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether a message is too short to have been clipped, its noise taken off."""
        if self.update_clip is None or self.step_noise:
            return False
        numbers = sum(tensor.numel() for tensor in tensors.values())
        square = sum(float(tensor.double().square().sum()) for tensor in tensors.values())
        doubt = 4 * self.update_noise**2 * math.sqrt(2 * numbers)
        return square - numbers * self.update_noise**2 + doubt < (0.98 * self.update_clip) ** 2

    @property
    def noisy(self) -> bool:
        return bool(self.step_noise or self.update_noise)

    def words(self) -> str:
        """For the notes of a guess."""
        parts = []
        if self.noisy:
            parts.append("noise")
        if self.clipped:
            parts.append("clipping")
        if self.dropped:
            parts.append("compression")
        if self.smoothed:
            parts.append("smoothing")
        if self.bits:
            parts.append(self.bits)
        if self.mixed:
            parts.append("public samples")
        if self.no_bias:
            parts.append("no last layer" if self.no_head else "no last bias")
        return ", ".join(parts)
