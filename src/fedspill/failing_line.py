"""Where code failed, without what it said: an error's text may quote data, its type and line do not."""

from __future__ import annotations

from pathlib import Path


def place_of(error: BaseException) -> str:
    """The innermost line of code, as file and number."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""


def failed_with(error: BaseException) -> str:
    """ "IndexError at embedding.py:12"."""
    return f"{type(error).__name__} {place_of(error)}".strip()
