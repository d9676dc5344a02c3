"""Which samples of several epochs are certain: what training on all of them leaves could not move these."""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.leaks.inputs.exact.error_bars import MOST_OFF, UsedAt, error_bars
from fedspill.leaks.inputs.exact.explained_update import EXPLAINED, room_for_rounding
from fedspill.leaks.inputs.exact.front import Front
from fedspill.leaks.inputs.exact.mean_weights import one_step_after
from fedspill.leaks.inputs.observed_gradients import AttackedMessage


def certain_over_epochs(
    attacked: AttackedMessage, x: Tensor, labels: Tensor, classes: int, missed: float, rng: torch.Generator
) -> Tensor:
    """(k,) for all samples x (k, *shape), which leave the share `missed` of the update.

    All steps together are nearly one step at the mean of the weights that they ran through.
    """
    mean = one_step_after(attacked, x, labels, classes)[0]
    front = Front.of(mean.model, x.shape[1:], mixing=bool(attacked.norms.by_batch))
    first = front.pair.first.weight_name.rpartition(".")[0]
    used = UsedAt(mean.model, first, front.features(x), labels, 1 / len(x))
    sent = torch.stack([part.square().sum() for part in mean.gradient_list]).sum().sqrt()
    # What rounding left is seen only as far as samples do not explain it too.
    left = max(missed, room_for_rounding(attacked) / EXPLAINED)
    return error_bars([used], left * float(sent), rng) < MOST_OFF
