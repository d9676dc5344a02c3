"""Records: our attack on tables. Exact recovery of inputs, decoded to valid records, or records of the row space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.explained_update import explain_update
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import LinearLayer, first_layer
from fedspill.leaks.inputs.exact.read_by_layers import layer_that_reads_inputs
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.gradient_matching import classes_of
from fedspill.leaks.inputs.inputs import exact_answer, is_complete
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, attacked_messages
from fedspill.leaks.records.decode.annealed import annealed_records
from fedspill.leaks.records.decode.choose import choose_records
from fedspill.leaks.records.decode.joint import decode
from fedspill.leaks.records.decode.row_space import records_in_row_space
from fedspill.leaks.records.decode.together import solved_together
from fedspill.leaks.records.guess import Records
from fedspill.leaks.records.leak import RECORDS
from fedspill.leaks.records.table import RECORD_NEEDS, known_schema
from fedspill.table_schema import TableSchema
from fedspill.trace import View

MOST_TAIL = 0.05  # of the least direction of the records that noise beside them may have


@dataclass(frozen=True, eq=False)
class ReadRecords:
    """What came of one message; where it is nothing, why."""

    rows: Tensor  # (k, columns)
    proven: Tensor  # (k,) bool, by the network, but for what float32 does not carry
    cells: Tensor  # (k, columns) bool, which of them float32 carries
    why: str = ""
    tried: bool = True  # false where the network or the message does not allow to try

    @staticmethod
    def none(columns: int, why: str, *, tried: bool) -> ReadRecords:
        rows = torch.zeros(0, columns, dtype=torch.float64)
        return ReadRecords(
            rows, torch.zeros(0, dtype=torch.bool), torch.zeros(0, columns, dtype=torch.bool), why, tried
        )

    @property
    def certified(self) -> Tensor:
        """(k,) bool"""
        return self.proven & self.cells.all(1)

    def filled(self, row: Tensor, lacking: int) -> ReadRecords:
        """With that row for records that are lacking."""
        rows = torch.cat([self.rows, row.expand(lacking, -1)])
        unsure = torch.zeros(rows.shape, dtype=torch.bool)[len(self.rows) :]
        return replace(
            self, rows=rows, proven=torch.cat([self.proven, unsure.any(1)]), cells=torch.cat([self.cells, unsure])
        )


@final
@dataclass(frozen=True)
class TableRecords(Attack):
    """Reads the records of a table out of updates and gradients, each field of them.

    Batches that the attack `inputs` recovers exactly are decoded to valid records. Elsewhere, and after any number of
    local epochs of SGD with or without momentum, records are sought in the row space of the first layer's change by
    what makes a row a record. That needs a first linear layer that reads the table, categories or yes-or-no columns,
    and fewer records than these have values. A record is vouched for if the update proves it, and if float32 carries
    every digit of it. Records that are not found are filled with modes and medians of the adversary's own data.
    """

    name: ClassVar[str] = "records"
    title: ClassVar[str] = "Records of a table, exact where the update holds them"
    paper: ClassVar[str] = "fedspill"
    needs = RECORD_NEEDS
    leak = RECORDS

    origins: int = 6  # messages that are attacked, drawn at random
    starts: int = 32  # of the root search, at once
    peels: int = 12

    def run(self, view: View, rng: torch.Generator) -> Records:
        schema = known_schema(view)
        messages, notes = attacked_messages(view, self.origins, rng)
        effort, answers = RootSearchEffort(self.starts, peels=self.peels), []
        typical = schema.typical(view.knows("unlabelled_aux").double()) if view.has("unlabelled_aux") else None
        for attacked in messages:
            found = read_message(attacked, view, schema, effort, rng)
            if found.tried and typical is not None and len(found.rows) < attacked.samples:
                lacking = attacked.samples - len(found.rows)
                notes.append("records that were not found are filled with what is typical of the adversary's own data")
                found = found.filled(typical, lacking)
            answers.append(found)
        return Records(
            [attacked.of for attacked in messages],
            [answer.rows for answer in answers],
            [answer.certified for answer in answers],
            torch.tensor([answer.tried for answer in answers]),
            tuple(dict.fromkeys([*notes, *(answer.why for answer in answers if answer.why)])),
        )


def read_message(
    attacked: AttackedMessage, view: View, schema: TableSchema, effort: RootSearchEffort, rng: torch.Generator
) -> ReadRecords:
    """The records of one message; where all of them are found, their numbers are solved for together once more."""
    classes = classes_of(view, attacked)
    found = _found_one_by_one(attacked, view, schema, classes, effort, rng)
    together = solved_together(attacked, found.rows, schema, classes)
    if together is None:
        return found
    kept = found.cells & (schema.nearest(found.rows) == together.rows)
    return replace(found, rows=together.rows, proven=found.proven | together.told, cells=kept | together.cells)


def _found_one_by_one(
    attacked: AttackedMessage,
    view: View,
    schema: TableSchema,
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> ReadRecords:
    """Inputs that were recovered exactly, else records of the row space.

    After several epochs the row space is looked at first, since inputs are then recovered by long simulations.
    """
    layer, rows, why = None, None, ""
    try:
        layer = _first_layer(attacked.model, schema.width)
        rows = _row_space(attacked, layer, rng)
        if attacked.schedule.epochs > 1:
            return _of_row_space(attacked, layer, rows, schema, classes, rng)
    except CannotRecover as refusal:
        why = f"records are not sought in the row space: {refusal.problem}"
    exact = exact_answer(attacked, view, classes, effort, rng)
    if layer is not None and rows is not None and not why and not is_complete(exact, attacked):
        try:
            known = view.knows("unlabelled_aux") if view.has("unlabelled_aux") else None
            annealed = annealed_records(attacked, rows, schema, known, rng)
            if len(annealed.rows) > int(exact.certified.sum()):
                return ReadRecords(annealed.rows, torch.ones(len(annealed.rows), dtype=torch.bool), annealed.cells)
        except CannotRecover:
            pass  # the row space of the first layer alone may still tell them
        try:
            told = _of_row_space(attacked, layer, rows, schema, classes, rng)
            # What was found and is vouched for outweighs records that lie in the same space.
            if int(told.certified.sum()) >= int(exact.certified.sum()):
                return told
        except CannotRecover as refusal:
            why = refusal.problem
    samples = exact.samples.flatten(1).double()
    if not len(samples):
        reasons = "; ".join(part for part in (exact.why, why) if part)
        return ReadRecords.none(schema.width, reasons, tried=exact.tried or rows is not None)
    decoded = decode(samples, schema, None if rows is None else rows.right)
    return ReadRecords(decoded.rows, exact.certified, decoded.cells, "" if is_complete(exact, attacked) else why)


def _first_layer(model: nn.Module, columns: int) -> LinearLayer:
    """The first layer of a chain, else the widest one that reads records."""
    try:
        return first_layer(model)
    except CannotRecover as refusal:
        try:
            return layer_that_reads_inputs(model, columns)
        except CannotRecover:
            raise refusal from None


def _row_space(attacked: AttackedMessage, layer: LinearLayer, rng: torch.Generator) -> TruncatedSvd:
    """The directions that the first layer moved along, one for each record."""
    if layer.weight_name not in attacked.gradients:
        raise CannotRecover("the first layer is frozen")
    units, columns = layer.weight.shape
    if attacked.samples >= min(units, columns):
        raise CannotRecover(f"{attacked.samples} records fill the first layer ({units} units, {columns} columns)")
    rows = truncated_svd(attacked.gradients[layer.weight_name].double(), attacked.samples, rng)
    if rows is None or rows.tail > MOST_TAIL or rows.rank > attacked.samples:
        raise CannotRecover("the first layer's change has more directions than there are records: noise, or no SGD")
    return rows


def _of_row_space(
    attacked: AttackedMessage,
    layer: LinearLayer,
    rows: TruncatedSvd,
    schema: TableSchema,
    classes: int,
    rng: torch.Generator,
) -> ReadRecords:
    """Valid records among the directions; vouched for where training on them gives the whole update."""
    bias = None if layer.bias_name is None else attacked.gradients.get(layer.bias_name)
    equation = None if bias is None else (rows.left.T @ bias.double()) / rows.sizes
    found = records_in_row_space(rows.right, equation, schema)
    chosen = choose_records(attacked, found, rows, rng)
    if not len(chosen):
        raise CannotRecover("no row that the first layer moved along is a record of the table")
    decoded = decode(chosen, schema, rows.right)
    try:
        explained = explain_update(attacked, decoded.rows, classes).explained
    except CannotRecover:  # labels are read off the last layer of a chain only
        explained = False
    return ReadRecords(decoded.rows, torch.full((len(decoded.rows),), explained), decoded.cells)
