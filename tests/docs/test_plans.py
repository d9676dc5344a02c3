"""The plans in examples/plans are sound, and each has the leak that it is there for."""

from pathlib import Path

import pytest
from audit_kit import audit

from fedspill.deployment.plan import Plan, read_plan

PLANS = Path(__file__).parents[2] / "examples" / "plans"
LEAKS = {
    "single-gradients": ("inputs", "inputs"),
    "people": ("planted", "attributes"),
    "vertical": ("cafe", "inputs"),
    "sentiment": ("words", "words"),
    "keyboard": ("next-words", "words"),
    "bank_and_shop": ("cone", "sample_labels"),
}


def test_every_plan_is_tested_and_told() -> None:
    found = {path.stem for path in PLANS.glob("*.toml")}
    assert found == LEAKS.keys()
    assert all(f"`{name}.toml`" in (PLANS / "README.md").read_text(encoding="utf-8") for name in found)


ALWAYS = {"people", "single-gradients"}  # the others take longer


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ALWAYS)) for name in sorted(LEAKS)]
)
def test_the_plan_has_its_leak(name: str, tmp_path: Path) -> None:
    attack, family = LEAKS[name]
    written = read_plan(PLANS / f"{name}.toml").model_dump(mode="json")
    result = audit(Plan.model_validate({**written, "attacks": [attack], "candidates": []}), tmp_path / "out")
    scored = [finding for finding in result["findings"] if finding["status"] == "ok"]
    assert [finding["family"] for finding in scored] == [family]
    assert scored[0]["score"]["low"] > scored[0]["score"]["chance"]
