"""Numbers of all records of a batch solved for together, by all that was sent.

Once records are known but for the last digits of their numbers, these are few unknowns, and each value of the gradient
or update is an equation for all of them. How much float32 rounds away of each value is known, and it counts by that.
What is left tells the error of each number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.error_bars import INDEPENDENT, NO_PART
from fedspill.leaks.inputs.exact.explained_update import ROUNDING, can_be_trained_again, explain_update, trained_again
from fedspill.leaks.inputs.exact.slopes import slopes
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.table_schema import NumberField, TableSchema

FINE = 1e-2  # steps of a number, in deviations, from which on records that were found may have it wrong
MOVES = 4  # by the same slopes: digits are all that is missing
OUTLYING = 12.0  # medians of what is left: more is a rectifier that float32 had on the other side
MOST_SLOPES = 30_000_000  # values of what was sent, times unknowns, that are held in memory
CERTAIN = 8.0  # standard errors of a number that its next value must be away


@dataclass(frozen=True, eq=False)
class TogetherSolved:
    """Valid records (B, columns) that explain all that was sent, and which cells of them are certain by that."""

    rows: Tensor
    cells: Tensor  # (B, columns) bool
    told: (
        Tensor  # (B,) bool, whether all numbers of a record are: it then sends what it must, and is not known by heart
    )


def solved_together(
    attacked: AttackedMessage, rows: Tensor, schema: TableSchema, classes: int
) -> TogetherSolved | None:
    """From valid records (k, columns), nearly right; None where they are not all of a batch that can be trained again,
    where no number is fine, or where they do not explain what was sent.
    """
    fine = [field for field in schema.fields if isinstance(field, NumberField) and field.spacing() < FINE]
    unknown = torch.zeros(rows.shape, dtype=torch.bool)
    for field in fine:
        unknown[:, field.column] = True if field.missing is None else rows[:, field.missing] < 0.5
    count = int(unknown.sum())
    values = sum(part.numel() for part in attacked.gradient_list)
    whole = len(rows) == attacked.samples and can_be_trained_again(attacked)
    if not whole or not 0 < count <= MOST_SLOPES / values:
        return None
    try:
        labels = explain_update(attacked, rows, classes).labels
    except CannotRecover:  # labels are read off the last layer of a chain only
        return None
    targets, trained = one_hot(labels, classes).double(), trained_again(attacked)
    seen, noise = _flat(attacked.gradient_list), _rounding(attacked, rows, targets)
    told = noise > 0

    def missed(numbers: Tensor) -> Tensor:
        x = rows.masked_scatter(unknown, numbers)
        found = _flat([part[0] for part in trained(x[None], targets[None])])
        return (found - seen)[told] / noise[told]

    numbers = rows[unknown]
    slope, kept = slopes(missed, numbers), torch.ones(int(told.sum()), dtype=torch.bool)
    for _ in range(MOVES):
        sizes, directions = torch.linalg.eigh(slope[kept].T @ slope[kept])
        held = sizes > INDEPENDENT * sizes[-1]
        downhill = directions.T @ (slope[kept].T @ missed(numbers).detach()[kept])
        numbers = numbers - directions @ torch.where(held, downhill / sizes, 0.0)
        left = missed(numbers).detach().abs()
        kept = left <= OUTLYING * left.median()
    solved = schema.nearest(rows.masked_scatter(unknown, numbers))
    if not explain_update(attacked, solved, classes, labels).explained:
        return None
    part = directions.square()
    spread = torch.where(held, part / sizes, torch.where(part > NO_PART, torch.inf, 0.0)).sum(1)
    variance = left[kept].square().sum() / max(1, int(kept.sum()) - count)
    errors = torch.zeros_like(rows).masked_scatter(
        unknown, (spread * variance + (ROUNDING * numbers).square() / 3).sqrt()
    )
    cells = torch.zeros(rows.shape, dtype=torch.bool)
    for field in fine:
        cells[:, field.column] = field.is_discrete & (CERTAIN * errors[:, field.column] < field.spacing())
    cells &= unknown
    return TogetherSolved(solved, cells, (cells == unknown).all(1) & unknown.any(1))


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _rounding(attacked: AttackedMessage, x: Tensor, targets: Tensor) -> Tensor:
    """(values,) what float32 rounds away of all that was sent: of each sample's part, and of weights in an update.

    None of values that no sample has a part in, such as those of a category that none has: they tell nothing.
    """
    parts = gradients_of(attacked.as_client_ran)(x[:, None], targets[:, None])
    summed = _flat([part.detach().square().sum(0) for part in parts]) * (attacked.step_weight / len(x)) ** 2
    if attacked.lr is None:
        return ROUNDING * summed.sqrt()
    weights = _flat([p.detach().double() for p in attacked.model.parameters() if p.requires_grad])
    return ROUNDING * torch.where(summed > 0, summed + attacked.steps * (weights / attacked.lr).square(), 0.0).sqrt()
