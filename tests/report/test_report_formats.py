"""JSON, SARIF, JUnit and Markdown: well-formed, complete, and of one mind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from audit_kit import answered, tiny, typed, write_plan

from fedspill.audit.run_audit import Request
from fedspill.report import html, junit, markdown, sarif, svg
from fedspill.report.json import as_text as as_json
from fedspill.report.outputs import NAMES, write_all

Audited = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A result of a plan in a file, with every status in it."""
    folder = tmp_path_factory.mktemp("written")
    plan_file = write_plan(folder / "plan.toml", attacks=["llbg"])
    request = Request(tiny(attacks=["llbg"]), folder / "out", plan_file=plan_file)
    result = answered(request)
    scored = next(finding for finding in result["findings"] if finding["status"] == "ok")
    for status, why in (("unscored", "its positive control failed"), ("errored", "raised ValueError")):
        empty = dict.fromkeys(("value", "low", "high", "chance"))
        result["findings"].append(
            {
                **scored,
                "id": f"{status}/curious-server",
                "attack": status,
                "status": status,
                "why": why,
                "severity": None,
                "advantage": None,
                "score": {**scored["score"], **empty, "n": 0},
                "other_scores": [],
                "evidence": [],
                "defenses": None,
            }
        )
    return plan_file, result


def test_json_has_the_documented_fields(audited: Audited) -> None:
    result = json.loads(as_json(audited[1]))
    assert result["schema"] == 1
    for finding in result["findings"]:
        assert {"id", "attack", "adversary", "family", "severity", "status", "score"} <= finding.keys()
        assert {"value", "low", "high", "n", "chance", "metric"} <= finding["score"].keys()
        scored = finding["status"] == "ok"
        assert (finding["severity"] is not None) is scored
        assert all((finding["score"][name] is not None) is scored for name in ("value", "low", "high", "chance"))
    for control in result["controls"]:
        assert control["passed"] is True
        assert control["positive"]["score"]["n"] > 0
    assert result["provenance"]["traces"]
    assert result["cannot_tell"]


def test_every_output_is_written_whole_and_for_the_owner_only(audited: Audited, tmp_path: Path) -> None:
    also = {"sarif": tmp_path / "elsewhere.sarif"}
    write_all(tmp_path, typed(audited[1]), also)
    for name in [*NAMES.values(), "elsewhere.sarif"]:
        assert (tmp_path / name).stat().st_size > 0
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert not list(tmp_path.glob("*.part"))


def test_sarif(written: Audited) -> None:
    plan_file, result = written
    document = json.loads(sarif.render(typed(result)))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(run["results"]) == len(result["findings"])
    kinds = {}
    for shown in run["results"]:
        assert rules[shown["ruleIndex"]]["id"] == shown["ruleId"]
        assert (shown["level"] == "none") is (shown["kind"] != "fail")
        (place,) = shown["locations"]
        line = place["physicalLocation"]["region"]["startLine"]
        assert 1 <= line <= len(plan_file.read_text().splitlines())
        kinds[shown["properties"]["id"]] = shown["kind"]
        if shown["ruleId"] == "llbg":
            assert "llbg" in plan_file.read_text().splitlines()[line - 1]
    assert kinds["llbg/curious-server"] == "fail"
    assert kinds["llbg/curious-client"] == "notApplicable"
    assert kinds["unscored/curious-server"] == kinds["errored/curious-server"] == "open"
    prints = [shown["partialFingerprints"]["fedspill/v1"] for shown in run["results"]]
    assert len(set(prints)) == len(prints)


def test_junit_never_passes_what_did_not_run(written: Audited) -> None:
    _, result = written
    root = fromstring(junit.render(typed(result)))
    cases = {(suite.get("name"), case.get("name")): case for suite in root for case in suite}
    assert len(cases) == len(result["findings"])
    assert cases["curious-server", "llbg"].find("failure") is not None
    assert cases["curious-client", "llbg"].find("skipped") is not None
    for name in ("unscored", "errored"):
        assert cases["curious-server", name].find("error") is not None
    suite = root.find("testsuite[@name='curious-server']")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "2")
    gated = {**result, "plan": {**result["plan"], "fail_on": "critical"}}
    level = next(f["severity"] for f in result["findings"] if f["status"] == "ok")
    again = fromstring(junit.render(typed(gated))).findall(".//failure")
    assert len(again) == (1 if level == "critical" else 0)


def test_markdown(written: Audited) -> None:
    _, result = written
    text = markdown.render(typed(result))
    assert text.startswith("## Fedspill: worst finding")
    assert "which is not a pass" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}


def test_the_page_has_no_script_and_a_policy(audited: Audited) -> None:
    page = html.render(typed(audited[1]))
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert " on" not in [part[:3] for part in page.split("<")[1:]]
    assert "http" not in page.replace("http-equiv", "")
    assert len(page) < 1_000_000


def test_plots_of_odd_numbers() -> None:
    assert svg.histogram({"title": "t", "edges": [0.0, 1.0], "counts": [0]})
    assert svg.bars({"title": "t", "true": [0.0], "guessed": [0.0]}, ["a"])
    assert svg.pairs({"title": "t", "true": [], "guessed": [], "count": []})
    flat = {"title": "t", "x": [1.0], "y": [5.0], "chance": [5.0], "x_title": "x", "y_title": "y", "beside": "chance"}
    assert "NaN" not in svg.curve(flat)
    assert svg.gauge({"value": 21.4, "low": 20.1, "high": 22.6, "chance": 9.8}) == ""
    assert svg.draw({"kind": "images"}, []) == ""
