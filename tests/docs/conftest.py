"""The longest tests come first, so that no worker starts one when the others are about to end."""

from __future__ import annotations

import pytest

LONGEST = (
    "test_commands_run[docs/audit.md]",
    "test_commands_run[docs/start.md]",
    "test_readme_commands_run",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those named above, in that order; the others stay as they are."""

    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(LONGEST) if item.name.startswith(name)), len(LONGEST))

    items.sort(key=place)
