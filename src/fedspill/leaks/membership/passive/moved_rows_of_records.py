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
    # The first record by itself before all: what is looked up for three places is no row of three records.
    parts = (x[:1], *torch.split(x, AT_ONCE))
    try:
        with torch.no_grad():
            for part in parts:
                model(part)
    finally:
        for handle in handles:
            handle.remove()
    sizes = [len(part) for part in parts]
    return {f"{name}.weight": torch.cat(rows[1:]) for name, rows in used.items() if list(map(len, rows)) == sizes}


def odds_by_rows(observed: Observed, x: Tensor, others: Tensor) -> Tensor | None:
    """(records, senders) log odds that a client held a record rather than not; None where no rows stand still.

    A row moves by chance as often as others do that as many records use, `others` among them, its own one left out.
    """
    rows = rows_of_records(observed.at(observed.rounds[0].before), torch.cat([x, others]))
    senders, found = observed.senders, False
    total = torch.zeros(len(x), len(senders), dtype=torch.double)
    for name, uses in rows.items():
        counts = uses.sum(0)
        asked = counts > 0
        of_records, common = uses[: len(x), asked].double(), _class_of(counts)
        of_its_others = _class_of(counts[asked] - 1)
        many = torch.bincount(common)
        for column, sender in enumerate(senders):
            sent = [seen.changes[sender] for seen in observed.rounds if name in seen.changes.get(sender, {})]
            moved = torch.zeros(len(counts), dtype=torch.bool)
            for change in sent:
                moved |= change[name].cpu().abs().sum(1) > 0
            if not sent or int((~moved).sum()) < 2:  # one that stands still may be padding
                continue
            found = True
            share = (torch.bincount(common, moved.double(), minlength=len(many)) + 0.5) / (many + 1)
            by_chance = share[of_its_others]
            there, missing = (1 - _UNMOVED) / by_chance, _UNMOVED / (1 - by_chance)
            # That a row stood still never speaks for a record, also where nearly all rows move.
            total[:, column] += of_records @ torch.where(moved[asked], there, missing.clamp_max(1)).log()
    return total if found else None


def _class_of(counts: Tensor) -> Tensor:
    """(rows,) rows that nobody, one, up to three, up to seven records use, and so on."""
    return (counts + 1).double().log2().long()
