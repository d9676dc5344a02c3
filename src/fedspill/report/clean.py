"""Outside text made harmless once, before any format is made of it: no control characters, no lone surrogates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspill.audit.result import AuditResult
from fedspill.plain_text import plain


def cleaned(result: AuditResult) -> AuditResult:
    """The same result, as it is in the JSON, with every string, and every name of an entry, as plain text."""
    return AuditResult.model_validate(_clean(result.as_json()))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
