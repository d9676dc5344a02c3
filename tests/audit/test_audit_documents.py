"""The documents of the audit say what is so: plans that load, codes, fields and examples that work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from fedspill.audit.accepted import read_accepted
from fedspill.audit.severity import MOST, NEARLY_ALL, NOTICEABLE
from fedspill.deployment.plan import Plan, check_plan, read_plan
from fedspill.errors import ExitCode

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_the_plan_in_the_document_is_a_plan_and_names_every_key(tmp_path: Path) -> None:
    plan, accept = blocks("toml")
    check_plan(tomllib.loads(plan), "docs/audit.md", plan)
    missing = {name for name in Plan.model_fields if name not in DOCUMENT}
    assert missing == set()
    (tmp_path / "accept.toml").write_text(accept)
    assert len(read_accepted(tmp_path / "accept.toml").entries) == 1


def test_the_python_in_the_document_is_sound() -> None:
    (code,) = blocks("python")
    compile(code, "docs/audit.md", "exec")
    for module, name in re.findall(r"^from (\S+) import (\w+)$", code, re.MULTILINE):
        assert getattr(__import__(module, fromlist=[name]), name)


def test_the_document_names_every_field_and_code(audited: tuple[Path, dict[str, Any]]) -> None:
    _, result = audited
    for name in [*result, *result["findings"][0], *result["provenance"]]:
        assert f"`{name}`" in DOCUMENT, name
    for code in ExitCode:
        assert re.search(rf"^\| {code.value}\b", DOCUMENT, re.MULTILINE), code
    for bar in (NOTICEABLE, MOST, NEARLY_ALL):
        assert f"{bar} and more" in DOCUMENT


def test_the_ci_examples_fit_together() -> None:
    folder = ROOT / "examples" / "ci"
    plan = read_plan(folder / "audit.toml")
    accepted = read_accepted(folder / "accept.toml")
    assert plan.attacks is not None
    assert {entry.id.partition("/")[0] for entry in accepted.entries} <= {choice.name for choice in plan.attacks}
    action = (folder / ".github" / "workflows" / "fedspill.yml").read_text(encoding="utf-8")
    assert "fedspill audit audit.toml" in action
    compile((folder / "test_audit.py").read_text(encoding="utf-8"), "test_audit.py", "exec")
