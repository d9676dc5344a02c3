"""The result as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedspill.audit.result import AuditResult


def render(result: AuditResult) -> str:
    return as_text(result.as_json())


def as_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
