"""TabLeak as published: gradients matched by valid-looking records, from many starts that are then pooled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.inputs.gradient_matching import candidate_gradients, classes_of, labels_from_attack
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, attacked_messages
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction
from fedspill.leaks.inputs.search.objectives import CosineDistance
from fedspill.leaks.inputs.search.optimizers import Adam
from fedspill.leaks.inputs.search.search import Recipe, one_hot, reconstruct
from fedspill.leaks.records.guess import Records
from fedspill.leaks.records.leak import RECORDS
from fedspill.leaks.records.table import RECORD_NEEDS, known_schema
from fedspill.table_schema import CategoryField, NumberField, TableSchema
from fedspill.threat import Needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class TabLeak(Attack):
    """Categories are softmaxes, numbers are sigmoids between their bounds; cosine distance, signed Adam at 0.06.

    Thirty starts are matched with the best of them, record by record, and pooled by the median of every cell. Published
    with the labels given: here they come from the attack `labels`, since no adversary has them, and are sought jointly
    where it gives none. Several local steps are simulated in the order of the candidates. An audit makes fewer starts
    and steps; the published numbers are 30 and 1,500. It vouches for nothing.
    """

    name: ClassVar[str] = "tableak"
    title: ClassVar[str] = "TabLeak: gradient matching by valid records"
    paper: ClassVar[str] = "Vero et al., TabLeak: Tabular Data Leakage in Federated Learning, 2023"
    needs = Needs(RECORD_NEEDS.sees, RECORD_NEEDS.knows | {"batch_size", "local_lr"}, RECORD_NEEDS.does)
    leak = RECORDS

    origins: int = 6  # messages that are attacked, drawn at random
    most_samples: int = 64  # larger batches are not tried
    starts: int = 8
    steps: int = 400
    lr: float = 0.06
    labels_from: str = "labels"  # a label attack; empty: sought together with the records

    def run(self, view: View, rng: torch.Generator) -> Records:
        schema = known_schema(view)
        messages, notes = attacked_messages(view, self.origins, rng)
        small = [attacked for attacked in messages if attacked.samples <= self.most_samples]
        labels = labels_from_attack(self.labels_from, view, rng) if self.labels_from and small else {}
        rows = []
        for attacked in messages:
            if attacked.samples > self.most_samples:
                rows.append(torch.zeros(0, schema.width, dtype=torch.float64))
                notes.append(f"batches of more than {self.most_samples} records are not tried (option most_samples)")
            else:
                rows.append(self._pooled(attacked, schema, classes_of(view, attacked), labels.get(attacked.of), rng))
        return Records(
            [attacked.of for attacked in messages],
            rows,
            [torch.zeros(len(one), dtype=torch.bool) for one in rows],
            torch.tensor([len(one) > 0 for one in rows]),
            tuple(dict.fromkeys(notes)),
        )

    def _pooled(
        self, attacked: AttackedMessage, schema: TableSchema, classes: int, labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        usable = labels is not None and len(labels) == attacked.samples and int(labels.max()) < classes
        targets = one_hot(labels, classes) if labels is not None and usable else None
        adam = Adam(self.lr, self.steps, signed=True)
        recipe = Recipe(CosineDistance(), adam, self.steps, restarts=self.starts, start="uniform")
        found = reconstruct(
            recipe,
            by_valid_records(candidate_gradients(attacked, torch.float32), schema),
            [tensor.float() for tensor in attacked.gradient_list],
            (attacked.samples, schema.width),
            classes,
            rng=rng,
            targets=targets,
        )
        x = as_records(found.x, schema).double().nan_to_num(0.0)
        return schema.nearest(pooled(x, found.best, schema))


def by_valid_records(gradients: GradientFunction, schema: TableSchema) -> GradientFunction:
    """The same gradients as a function of free numbers, of which records are made."""
    return lambda z, targets: gradients(as_records(z, schema), targets)


def as_records(z: Tensor, schema: TableSchema) -> Tensor:
    """(R, B, columns) records of free numbers z (R, B, columns): softmax of categories, sigmoid of bounded numbers."""
    x = z.clone()
    for field in schema.fields:
        places = list(field.places)
        if isinstance(field, CategoryField):
            x[..., places] = z[..., places].softmax(-1)
        elif isinstance(field, NumberField):
            low, high = ((end - field.shift) / field.scale for end in (field.low, field.high))
            if abs(low) < torch.inf and abs(high) < torch.inf:
                x[..., field.column] = low + (high - low) * z[..., field.column].sigmoid()
            if field.missing is not None:
                x[..., field.missing] = z[..., field.missing].sigmoid()
    return x


def pooled(x: Tensor, best: int, schema: TableSchema) -> Tensor:
    """(B, columns) the median over starts x (R, B, columns), each start in the order that fits the best one."""
    ordered = [x[best]]
    for number, one in enumerate(x):
        if number != best:
            agree = schema.are_near(
                schema.nearest(one).repeat_interleave(len(one), 0), schema.nearest(x[best]).repeat(len(one), 1)
            )
            worth: Any = agree.sum(1).reshape(len(one), len(one)).numpy()
            order = linear_sum_assignment(-worth.T)[1]
            ordered.append(one[torch.from_numpy(order)])
    return torch.stack(ordered).median(0).values
