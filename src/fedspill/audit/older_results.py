"""Results that an earlier version wrote, with what has been added to the format since."""

from __future__ import annotations

import math

from fedspill.audit.advice import single_advice, unhelped
from fedspill.audit.leak_table import headline_of, leak_rows, left_out_of
from fedspill.audit.matrix import Pair
from fedspill.audit.result import AuditResult, Finding, LeakSummary
from fedspill.audit.severity import State, repeats_to_decide, state_of
from fedspill.audit.why_not import lacking, skipped
from fedspill.errors import FedspillError
from fedspill.metric import Score
from fedspill.threat import ADVERSARIES


def completed(result: AuditResult) -> AuditResult:
    """The same result with the table of leaks, where it was written before there was one."""
    if result.leaks or not result.findings:
        return result
    findings = [_with_state(finding, len(result.provenance.seeds)) for finding in result.findings]
    rows = leak_rows(findings)
    adversaries = [
        adversary.model_copy(update={"who": known.who, "short": known.short})
        if (known := ADVERSARIES.get(adversary.name))
        else adversary
        for adversary in result.adversaries
    ]
    return result.model_copy(
        update={
            "findings": findings,
            "leaks": rows,
            "headline": headline_of(rows, findings),
            "left_out": left_out_of(rows),
            "advice": single_advice(_named(result.families), rows),
            "unhelped": unhelped(result.families),
            "adversaries": adversaries,
        }
    )


def _named(families: list[LeakSummary]) -> list[LeakSummary]:
    """Settings with their defense's name, which earlier versions wrote into the label alone."""
    named = []
    for family in families:
        settings = []
        for setting in family.settings:
            name, _, given = setting.setting.removesuffix(")").partition("(")
            words = (word.partition("=") for word in given.split(", ") if word)
            options = {key: _value(value) for key, _, value in words}
            settings.append(setting.model_copy(update={"defense": name, "options": options}))
        named.append(family.model_copy(update={"settings": settings}))
    return named


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _with_state(finding: Finding, repeats: int) -> Finding:
    score, perfect = finding.score, finding.score.perfect
    if finding.status == "ok" and score.value is not None and score.chance is not None and perfect is not None:
        low = -math.inf if score.low is None else score.low
        high = math.inf if score.high is None else score.high
        whole = Score(score.value, low, high, score.n, score.chance)
        state = state_of(whole, perfect)
        decide = repeats_to_decide(whole, perfect, repeats) if state == "undecided" else None
        return finding.model_copy(update={"state": state, "repeats_to_decide": decide})
    if finding.status == "skipped" and finding.why.startswith("needs "):
        try:
            not_run = lacking(Pair(finding.attack, finding.adversary, finding.options))
        except FedspillError:
            return finding.model_copy(update={"state": "cannot", "why_short": skipped(finding.why)})
        return finding.model_copy(update={"state": not_run.state, "why_short": not_run.short, "lacks": not_run.lacks})
    tested: State = "not tested" if finding.status == "skipped" else "errored"
    return finding.model_copy(update={"state": tested, "why_short": skipped(finding.why)})
