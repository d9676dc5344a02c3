"""Removing the last bias (003, Table 14): an audit does not call the label leak closed, frozen or left out."""

from pathlib import Path

import pytest
from audit_kit import audit, tiny

from fedspill.audit.defense_frontier import GOOD_ENOUGH


@pytest.mark.slow
def test_a_frozen_bias_is_not_recommended(tmp_path: Path) -> None:
    candidates = [{"name": "frozen-head", "strengths": [{"what": "bias"}]}]
    result = audit(tiny(attacks=["labels"], candidates=candidates, try_from="low"), tmp_path / "audit")
    (finding,) = [finding for finding in result["findings"] if finding["status"] == "ok"]
    (point,) = finding["defenses"]["tried"]
    assert point["adaptive"]
    assert point["advantage"] > GOOD_ENOUGH
    assert finding["defenses"]["best"] is None
    assert "None of the 1 settings tried" in finding["defenses"]["advice"]


def test_a_model_without_a_last_bias_still_has_the_finding(tmp_path: Path) -> None:
    model = {"name": "mlp", "widths": [16], "last_bias": False}
    result = audit(tiny(attacks=["labels"], model=model), tmp_path / "audit")
    (finding,) = [finding for finding in result["findings"] if finding["status"] == "ok"]
    assert finding["advantage"] > GOOD_ENOUGH
    assert finding["severity"] not in (None, "none")
