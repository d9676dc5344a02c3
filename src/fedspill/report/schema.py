"""JSON schemas of what goes in and what comes out: a plan, and the result of an audit."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from fedspill.audit.result import SCHEMA, AuditResult
from fedspill.deployment.plan import Candidate, Choice, Plan

Document: TypeAlias = Literal["plan", "result"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAN_SCHEMA = 1  # fields are added within a version, never changed or taken away


def schema(of: Document) -> dict[str, Any]:
    """The schema of a plan file (TOML read as JSON), or of audit.json."""
    return plan_schema() if of == "plan" else result_schema()


def plan_schema() -> dict[str, Any]:
    """What a plan may hold. Names of data sets, attacks and so on are not in it: `fedspill list` knows them."""
    found = _titled(Plan.model_json_schema(mode="validation"), "plan", PLAN_SCHEMA)
    for short in (Choice, Candidate):  # a bare name stands for the table with that name and no options
        table = found["$defs"][short.__name__]
        found["$defs"][short.__name__] = {"anyOf": [{"type": "string"}, table], "description": table["description"]}
    return found


def result_schema() -> dict[str, Any]:
    """What audit.json holds."""
    return _titled(AuditResult.model_json_schema(mode="serialization", by_alias=True), "result", SCHEMA)


def _titled(found: dict[str, Any], name: Document, version: int) -> dict[str, Any]:
    return {"$schema": DIALECT, "$id": f"urn:fedspill:{name}:{version}", **found, "title": f"Fedspill {name}"}
