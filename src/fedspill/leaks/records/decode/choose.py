"""Which of the records that a row space holds were trained on, with which labels, and whether they explain everything.

If two records differ from two others in the same way, their sums and differences are valid records too. The second
layer tells them apart: what a record makes the first layer put out must lie in the row space of the second layer's
change, exactly so after one step and nearly so after a few.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import leading_pair
from fedspill.leaks.inputs.observed_gradients import AttackedMessage

APART = 1e-3  # share of a record that the records before it must leave over, for it to be a new one


def choose_records(attacked: AttackedMessage, found: Tensor, rows: TruncatedSvd, rng: torch.Generator) -> Tensor:
    """Of `found` (k, columns) as many as there were samples, the likeliest first.

    First those that fill the row space, each of them new; records that depend on each other make it smaller than their
    number, and then the likeliest of the others are among them too.
    """
    order = _by_likelihood(attacked, found, rng)
    chosen: list[int] = []
    known = rows.right.new_zeros(rows.rank, 0)
    for index in order:
        q = found[index] @ rows.right
        rest = q - known @ (known.T @ q)
        if float(rest.norm()) > APART * float(q.norm()):
            chosen.append(index)
            known = torch.cat([known, (rest / rest.norm())[:, None]], 1)
        if len(chosen) == rows.rank:
            break
    others = [index for index in order if index not in set(chosen)]
    return found[[*chosen, *others[: attacked.samples - len(chosen)]]]


def _by_likelihood(attacked: AttackedMessage, found: Tensor, rng: torch.Generator) -> list[int]:
    """Which record is likeliest by the second layer, then the next; in any order where there is no such layer."""
    try:
        pair = leading_pair(attacked.model, mixing=bool(attacked.norms.by_batch))
    except CannotRecover:
        return list(range(len(found)))
    second = truncated_svd(attacked.gradients[pair.second.weight_name].double(), attacked.samples, rng)
    if second is None or second.rank >= pair.second.weight.shape[1]:
        return list(range(len(found)))
    bias = 0 if pair.first.bias is None else pair.first.bias
    put_out = pair.between.value(found @ pair.first.weight.T + bias)
    missed = put_out - (put_out @ second.right) @ second.right.T
    order: list[int] = (missed.norm(dim=1) / put_out.norm(dim=1).clamp_min(1e-300)).argsort().tolist()
    return order
