"""The published schemas say what is accepted and what is written: real plans and a real result keep to them."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedspill.report.schema import plan_schema, result_schema

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
ROOT = Path(__file__).parents[2]
PLANS = sorted(
    [*ROOT.glob("examples/plans/*.toml"), ROOT / "examples/ci/audit.toml", *ROOT.glob("examples/own/*/plan.toml")]
)


def problems(schema: dict[str, Any], content: Any) -> list[str]:
    found = jsonschema.Draft202012Validator(schema).iter_errors(content)
    return [f"{'/'.join(map(str, error.path))}: {error.message[:120]}" for error in found]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_plan_of_the_examples_keeps_to_the_schema(path: Path) -> None:
    assert problems(plan_schema(), tomllib.loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "content",
    [
        {"federation": {"clients": 0}},
        {"sed": 7},
        {"data": 3},
        {"fail_on": "awful"},
        {"candidates": [{"strengths": []}]},
    ],
)
def test_a_plan_that_is_refused_does_not_keep_to_the_schema(content: dict[str, Any]) -> None:
    assert problems(plan_schema(), content)


def test_a_real_result_keeps_to_the_schema_and_an_altered_one_does_not(audited: tuple[Path, dict[str, Any]]) -> None:
    result = json.loads(json.dumps(audited[1]))
    assert problems(result_schema(), result) == []
    for place, value in (("findings", None), ("target", "guess"), ("surplus", 1)):
        altered = copy.deepcopy(result) | {place: value}
        assert problems(result_schema(), altered), place
