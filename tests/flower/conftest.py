"""The example app afresh, and a small federation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspill[flower]'")

from little import Little

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture(autouse=True)
def quiet_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")


@pytest.fixture
def digits_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[ModuleType, ModuleType]]]:
    """Imports the example: (client_app, server_app)."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield lambda: (
        importlib.import_module("digits_app.client_app"),
        importlib.import_module("digits_app.server_app"),
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "digits_app"]:
        del sys.modules[name]


@pytest.fixture
def little() -> Little:
    return Little()
