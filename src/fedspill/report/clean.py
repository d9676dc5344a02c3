"""Outside text made harmless once, before any format is made of it: no control characters, no lone surrogates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspill.terminal import plain


def cleaned(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same result with every string, and every name of an entry, as plain text."""
    return {plain(str(key)): _clean(value) for key, value in result.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return cleaned(value)
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
