"""Records as an embedding sees them: each is some of its rows, and only rows of what a client holds move.

A sentence with a word whose row stood still was hardly among the client's; one of rare words that all moved was likely
there. How much each word tells follows from how often a client of this size has it by chance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedspill.leaks.membership.passive.observed import Observed
from fedspill.leaks.membership.passive.record_losses import AT_ONCE

_UNMOVED = 0.05  # share of a client's rows that do not move since it knows the record by heart; docs/words.md has .06


def rows_of_records(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """(records, rows) by each embedding that is trained and used once: whether a record uses a row, padding apart."""
    layers = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.weight.requires_grad
    }
    x = x.to(next(model.parameters()).device)
    used: dict[str, list[Tensor]] = {name: [] for name in layers.values()}

    def catch(module: nn.Embedding, inputs: tuple[Any, ...], output: Tensor) -> None:
        numbers = inputs[0].reshape(len(inputs[0]), -1)
        rows = torch.zeros(len(numbers), module.num_embeddings, dtype=torch.bool)
        rows.scatter_(1, numbers.cpu(), torch.ones((), dtype=torch.bool).expand(numbers.shape))
        if module.padding_idx is not None:
            rows[:, module.padding_idx] = False
        used[layers[module]].append(rows)

    handles = [layer.register_forward_hook(catch) for layer in layers]
    parts = torch.split(x, AT_ONCE)
    try:
        with torch.no_grad():
            for part in parts:
                model(part)
    finally:
        for handle in handles:
            handle.remove()
    found = {f"{name}.weight": torch.cat(rows) for name, rows in used.items() if len(rows) == len(parts)}
    return {name: rows for name, rows in found.items() if len(rows) == len(x)}


def odds_by_rows(observed: Observed, x: Tensor, others: Tensor) -> Tensor | None:
    """(records, senders) log odds that a client held a record rather than not; None where no rows stand still.

    A row moves by chance as often as others do that as many records use, `others` among them, its own one left out.
    """
    rows = rows_of_records(observed.at(observed.rounds[0].before), torch.cat([x, others]))
    senders, found = observed.senders, False
    total = torch.zeros(len(x), len(senders), dtype=torch.double)
    for name, uses in rows.items():
        counts, of_records = uses.sum(0), uses[: len(x)].double()
        common, of_its_others = _class_of(counts), _class_of((counts - 1).clamp_min(0))
        for column, sender in enumerate(senders):
            sent = [seen.changes[sender] for seen in observed.rounds if sender in seen.changes]
            moved = torch.stack([change[name].cpu().abs().sum(1) > 0 for change in sent if name in change])
            if not len(moved) or int((~moved.any(0)).sum()) < 2:  # one that stands still may be padding
                continue
            found = True
            there = moved.any(0).double()
            many = torch.bincount(common, minlength=int(common.max()) + 1)
            share = (torch.bincount(common, there, minlength=len(many)) + 0.5) / (many + 1)
            by_chance = share[of_its_others]
            row = torch.where(
                there > 0, ((1 - _UNMOVED) / by_chance).log(), (_UNMOVED / (1 - by_chance)).log().clamp_max(0)
            )
            total[:, column] += of_records @ row
    return total if found else None


def _class_of(counts: Tensor) -> Tensor:
    """(rows,) rows that nobody, one, up to three, up to seven records use, and so on."""
    return (counts + 1).double().log2().long()
