"""A recording whose truth nobody knows: what is read is told, and neither a finding nor a pass is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_kit import record_without_truth, tiny

from fedspill.attack_run import Outcome
from fedspill.audit.leak_table import headline_of, leak_rows
from fedspill.audit.matrix import pairs_of
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.result import AuditResult, Finding, TwinFigures, TwinSummary
from fedspill.audit.run_audit import run_audit
from fedspill.audit.score_finding import score_finding
from fedspill.audit.severity import Severity
from fedspill.audit.twin_scores import believed
from fedspill.cli.finish import exit_code
from fedspill.errors import ExitCode
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.reading import read_counts
from fedspill.reading import Reading
from fedspill.report import outputs, text
from fedspill.trace import Origin


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditResult, Path]:
    folder = tmp_path_factory.mktemp("read")
    record_without_truth(tiny(), folder / "trace")
    plan = tiny(adversaries=["curious-server"], attacks=["labels", "ebi"])
    return run_audit(plan.model_copy(update={"data": plan.data}), folder / "audit", trace=folder / "trace"), folder


def by_attack(result: AuditResult, name: str) -> Finding:
    return next(finding for finding in result.findings if finding.attack == name)


def test_a_recording_without_truth_is_told_as_readings_with_an_exit_code_of_its_own(
    audited: tuple[AuditResult, Path],
) -> None:
    result, _ = audited
    assert {finding.status for finding in result.findings} == {"read"}
    assert result.headline.read
    assert "24 updates by 12 clients" in result.headline.sentence
    assert not result.verdict.complete
    assert exit_code(result) == ExitCode.READ


def test_every_output_shows_what_was_read_and_none_says_nan(audited: tuple[AuditResult, Path]) -> None:
    result, folder = audited
    written = outputs.write_all(folder, result, {})
    shown = {name: path.read_text(encoding="utf-8") for name, path in written.items()} | {"text": text.render(result)}
    for name, content in shown.items():
        assert "labels of 24 updates" in content.replace("\n", " "), name
        assert "nan" not in content.lower().replace("nance", "").split(), name


def test_the_attack_states_how_sure_it_is(audited: tuple[AuditResult, Path]) -> None:
    result, _ = audited
    reading = by_attack(result, "labels").reading
    assert reading is not None
    assert reading.expects is not None
    assert 0 < reading.expects <= 1
    assert f"expects {round(100 * reading.expects)} of 100" in result.leaks[0].cells[0].beside


def read_on_twins(leak: str, figure: str, severity: Severity) -> Finding:
    """A reading of the server's, and what such readings get on twins that are like the recording."""
    twin = TwinFigures(
        value=0.6, low=0.5, high=0.7, chance=0.5, twins=5, figure=figure, guessing="50 of 100", severity=severity
    )
    return Finding(
        id=f"{leak}/curious-server",
        attack=leak,
        title=leak,
        adversary="curious-server",
        family=leak,
        status="read",
        state="read",
        reading=Reading(summary=f"the {leak}", messages=1),
        twin=twin,
    )


def test_the_headline_of_a_recording_leaves_out_what_twins_show_to_be_no_better_than_guessing() -> None:
    twins = TwinSummary(possible=True, like=True, twins=5)
    found = [
        read_on_twins("labels", "97 of 100", Severity.HIGH),
        read_on_twins("membership", "40 of 100", Severity.INFO),
    ]
    sentence = headline_of(leak_rows(found, twins), found, twins).sentence
    assert sentence == (
        "The server reads the labels; on twins of this federation such readings get 97 of 100 (50 by guessing)."
    )
    assert believed(found[1], twins).startswith("not surely better than guessing: 40 of 100 on 5 twins")
    alone = headline_of(leak_rows(found[1:], twins), found[1:], twins).sentence
    assert alone.endswith("such readings are not surely better than guessing.")


def counts(*rows: list[int]) -> LabelCounts:
    return LabelCounts([Origin(0, f"client:{index}") for index in range(len(rows))], torch.tensor(rows))


def entries(reading: Reading) -> list[Any]:
    return [entry for table in reading.tables for row in table.rows for entry in row]


def test_counts_behind_which_few_samples_stand_are_not_told() -> None:
    reading = read_counts(counts([120, 3, 1]), False)
    assert entries(reading) == ["0", 120, "1", None, "2", None, "client:0", 1, 124, None, 97, None, None]


def test_a_client_of_few_samples_is_withheld_unless_data_may_be_shown() -> None:
    guess = counts([200, 50, 0], [10, 6, 3])
    closed, shown = read_counts(guess, False), read_counts(guess, True)
    assert "client:1" not in entries(closed)
    assert "1 client" in closed.withheld
    assert "client:1" in entries(shown)
    assert not shown.withheld


def test_an_attack_whose_controls_fail_is_not_believed_when_it_reads_either() -> None:
    pair = pairs_of(tiny(adversaries=["curious-server"], attacks=["ebi"]))[0]
    read = Outcome(status="read", reading=Reading(summary="something", messages=1))
    finding = score_finding(pair, "title", "labels", [read], ControlOutcome(status="errored", why="it broke"))
    assert finding.status == "unscored"
    assert finding.reading is None
