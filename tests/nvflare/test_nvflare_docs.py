"""The Python block of docs/nvflare.md adds its three filters to a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare.apis.filter", reason="needs NVFlare: pip install 'fedspill[nvflare]'")

from fedspill.nvflare import DefendUpdate, GuardModel, RecordRounds

TEXT = (Path(__file__).parents[2] / "docs" / "nvflare.md").read_text(encoding="utf-8")


class Recipe:
    """Takes filters as NVFlare's recipes do."""

    def __init__(self) -> None:
        self.added: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda obj, tasks: self.added.update({name: obj})


def test_the_block_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/nvflare.md", "exec"), names)
    recipe = Recipe()
    names["audited"](recipe)
    assert {name: type(added) for name, added in recipe.added.items()} == {
        "add_server_input_filter": RecordRounds,
        "add_client_input_filter": GuardModel,
        "add_client_output_filter": DefendUpdate,
    }
