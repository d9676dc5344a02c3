"""One tiny audit that many tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_kit import audit_once


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the result of a tiny audit with defenses tried."""
    return audit_once(tmp_path_factory.getbasetemp() / "audited")
