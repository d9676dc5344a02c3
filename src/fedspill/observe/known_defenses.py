"""What an attack makes of the defenses it knows: noise, clipping and sparsity of a message, in numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError
from fedspill.trace import View


@dataclass(frozen=True)
class KnownDefenses:
    """The defenses in place together, as they act on a sum of step gradients."""

    effect: WireEffect

    @staticmethod
    def known_to(view: View) -> KnownDefenses | None:
        """None where the adversary does not know the defenses, or there is none that a reading can reckon with."""
        if not view.has("defense"):
            return None
        found = KnownDefenses.of(view.knows("defense"), int(view.knows("batch_size")))
        if not found.words():
            view.used.discard("defense")  # it looked and has no answer to it: that is no attacker who knows the defense
            return None
        return found

    @staticmethod
    def of(defenses: Sequence[Defense], batch_size: int) -> KnownDefenses:
        """What all defenses declare, in order; noise on a sum of samples becomes noise on the mean of a step."""
        effect = WireEffect()
        for defense in defenses:
            declared = defense.effect()
            if not isinstance(declared, WireEffect):
                came = type(declared).__name__
                raise UsageError(f"The defense {defense.name} must declare a WireEffect as its effect, got {came}.")
            on_mean = math.hypot(declared.step_noise, declared.sample_sum_noise / batch_size)
            effect = effect.then(replace(declared, step_noise=on_mean, sample_sum_noise=0.0))
        return KnownDefenses(effect)

    def noise(self, steps: int, passes: int, lr: float, is_update: bool) -> float:
        """Standard deviation on a coordinate of one pass's summed step gradients."""
        scale = lr * passes if is_update else 1.0
        over_passes = math.sqrt(steps * passes) / passes if is_update else 1.0
        return math.hypot(self.effect.step_noise * over_passes, self.effect.update_noise / scale)

    def rounding(self, tensor: Tensor) -> float:
        """Standard deviation that rounding leaves on a typical coordinate of a tensor."""
        if self.effect.rounding is None:
            return 0.0
        return float(self.effect.rounding.step(tensor).double().square().mean().sqrt()) / math.sqrt(12)

    def kept(self, tensor: Tensor) -> float:
        """The smallest absolute value that compression let through; 0 without compression."""
        if not self.effect.dropped:
            return 0.0
        sent = tensor[tensor != 0].abs()
        return float(sent.min()) if sent.numel() else math.inf

    def left_whole(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether a message is too short to have been clipped, its noise taken off."""
        clip, noise = self.effect.update_clip, self.effect.update_noise
        if clip is None or self.effect.step_noise:
            return False
        numbers = sum(tensor.numel() for tensor in tensors.values())
        square = sum(float(tensor.double().square().sum()) for tensor in tensors.values())
        doubt = 4 * noise**2 * math.sqrt(2 * numbers)
        return square - numbers * noise**2 + doubt < (0.98 * clip) ** 2

    @property
    def noisy(self) -> bool:
        return bool(self.effect.step_noise or self.effect.update_noise)

    def words(self) -> str:
        """What readings reckon with, for the notes of a guess; empty where that is nothing."""
        effect = self.effect
        parts = {
            "noise": self.noisy,
            "clipping": effect.scale_unknown,
            "compression": effect.dropped,
            "smoothing": effect.smoothed,
            "" if effect.rounding is None else effect.rounding.name: effect.rounding,
            "public samples": effect.topped_up,
            "no last layer" if effect.no_last_layer else "no last bias": effect.no_last_bias or effect.no_last_layer,
        }
        return ", ".join(word for word, there in parts.items() if there)


def effect_on_returned(view: View) -> WireEffect | None:
    """What all known defenses do to the gradients that go back to a vertical party; None where nothing is known."""
    if not view.has("defense"):
        return None
    effect = WireEffect()
    for defense in view.knows("defense"):
        effect = effect.then(defense.effect())
    if not (effect.returned_noise or effect.returned_coarse or effect.labels_redrawn):
        view.used.discard("defense")
        return None
    return effect


def noise_on_embeddings(view: View) -> float:
    """The deviation of noise on embeddings, as a share of their own; 0 where none is known of."""
    if not view.has("defense"):
        return 0.0
    effect = WireEffect()
    for defense in view.knows("defense"):
        effect = effect.then(defense.effect())
    if not effect.embedding_noise:
        view.used.discard("defense")
    return effect.embedding_noise
