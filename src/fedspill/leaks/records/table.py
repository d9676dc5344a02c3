"""What attacks on tables need to know: that there is a table, and how its records are encoded."""

from __future__ import annotations

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.observed_gradients import INPUT_NEEDS
from fedspill.table_schema import TableSchema
from fedspill.threat import Needs
from fedspill.trace import View

RECORD_NEEDS = Needs(INPUT_NEEDS.sees, INPUT_NEEDS.knows | {"table_schema"}, INPUT_NEEDS.does)


def known_schema(view: View) -> TableSchema:
    """The schema, or the sentence that there is none; nothing else is looked at first, so that this costs nothing."""
    if not view.has("table_schema"):
        raise NotApplicable("The columns have no schema: the data are no table of records.")
    return view.knows("table_schema")
