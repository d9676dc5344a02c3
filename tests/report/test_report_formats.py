"""JSON, SARIF, JUnit and Markdown: well-formed, complete, and of one mind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from audit_kit import answered, tiny, typed, write_plan

from fedspill.audit.run_audit import Request
from fedspill.cli.finish import exit_code
from fedspill.errors import ExitCode
from fedspill.report import html, junit, markdown, sarif, svg, text
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
                "state": "errored",
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
    shown = [finding for finding in result["findings"] if finding["status"] != "skipped"]
    assert len(run["results"]) == len(shown) < len(result["findings"])
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
    assert "llbg/curious-client" not in kinds
    every = json.loads(sarif.render(typed(result), with_skipped=True))["runs"][0]["results"]
    assert [r["kind"] for r in every if r["properties"]["id"] == "llbg/curious-client"] == ["notApplicable"]
    assert kinds["unscored/curious-server"] == kinds["errored/curious-server"] == "open"
    (llbg,) = (rule for rule in rules if rule["id"] == "llbg")
    assert "Which classes did a client train on" in llbg["help"]["text"]
    assert "fedspill explain labels" in llbg["help"]["text"]
    lists = {taxonomy["name"]: {taxon["id"] for taxon in taxonomy["taxa"]} for taxonomy in run["taxonomies"]}
    for related in llbg["relationships"]:
        assert related["target"]["id"] in lists[related["target"]["toolComponent"]["name"]]
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
    shown = markdown.render(typed(result))
    assert shown.startswith(f"## Fedspill: {markdown.text(result['headline']['sentence'])}")
    assert "which is not a pass" in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {2 + len(result["adversaries"])}


def with_check(result: dict[str, Any], on: bool | None) -> dict[str, Any]:
    return {**result, "defense_checks": [{"defense": "clip-noise", "on": on, "why": "no noise was seen"}]}


def test_a_configured_defense_that_is_off_fails_everywhere(written: Audited) -> None:
    _, result = written
    off = typed(with_check(result, False))
    assert exit_code(off) is ExitCode.FINDINGS
    assert exit_code(off.model_copy(update={"plan": {**off.plan, "fail_on": "critical"}})) is ExitCode.FINDINGS
    (failed,) = (r for r in json.loads(sarif.render(off))["runs"][0]["results"] if r["ruleId"] == "defense-off")
    assert (failed["kind"], failed["level"]) == ("fail", "error")
    case = fromstring(junit.render(off)).find(".//testcase[@name='clip-noise is on']")
    assert case is not None
    assert case.find("failure") is not None
    assert "configured defense is OFF" in html.render(off)
    assert "configured defense is OFF" in markdown.render(off)
    assert any("DEFENSE IS OFF" in line for line in text.lines(off))


def test_a_defense_that_is_on_is_said_too_and_one_that_nobody_can_see_is_no_pass(written: Audited) -> None:
    _, result = written
    on, unseen = typed(with_check(result, True)), typed(with_check(result, None))
    assert "clip-noise is on" in html.render(on)
    assert "configured defense is OFF" not in html.render(on)
    assert "clip-noise is cannot be verified" not in html.render(unseen)
    assert "cannot be verified" in html.render(unseen)
    assert fromstring(junit.render(unseen)).find(".//testcase[@name='clip-noise is on']/skipped") is not None


def test_accept_entries_that_accept_nothing_are_told_in_the_terminal(written: Audited) -> None:
    _, result = written
    entries = [
        {"id": name, "reason": "known", "until": "2020-01-01", "state": state}
        for name, state in (("a/b", "expired"), ("c/d", "no such finding"), ("e/f", "in force"))
    ]
    told = "\n".join(text.lines(typed({**result, "accepted": entries})))
    assert "'a/b' (2020-01-01) accepts nothing: expired" in told
    assert "'c/d' (2020-01-01) accepts nothing: no such finding" in told
    assert "'e/f'" not in told


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
    assert svg.clients({"title": "t", "values": [0.0, -2.0], "chance": [0.5, 5.0]})
    assert svg.dots(100, 0).count('class="read"') == 100
    assert svg.dots(10, 60).count('class="guess"') == 10
