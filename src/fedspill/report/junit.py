"""JUnit XML, for test dashboards: a suite per adversary, a case per attack; what did not run is never a pass."""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from fedspill.audit.result import AuditResult, Finding, may_be_at
from fedspill.audit.severity import Severity
from fedspill.report.clean import cleaned
from fedspill.report.first_screen import claim_words


def render(result: AuditResult) -> str:
    """A finding at or above the plan's `fail_on` is a failure; without one, whatever lies above chance is."""
    result = cleaned(result)
    bar = Severity[(result.plan["fail_on"] or "low").upper()]
    suites = Element("testsuites", name="fedspill")
    for adversary in result.adversaries:
        own = [finding for finding in result.findings if finding.adversary == adversary.name]
        suite = SubElement(suites, "testsuite", name=adversary.name, tests=str(len(own)))
        counts = Counter(_case(suite, finding, bar, fails=bool(result.plan["fail_on"])) for finding in own)
        for name in ("failures", "errors", "skipped"):
            suite.set(name, str(counts[name]))
    if result.defense_checks:
        _defense_suite(suites, result)
    if result.privacy_claims:
        _claim_suite(suites, result)
    indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _defense_suite(suites: Element, result: AuditResult) -> None:
    """Each configured defense: one that is off is a failure, one that nothing can show is no pass."""
    off = sum(check.on is False for check in result.defense_checks)
    unseen = sum(check.on is None for check in result.defense_checks)
    counts = {"tests": len(result.defense_checks), "failures": off, "errors": 0, "skipped": unseen}
    suite = SubElement(suites, "testsuite", {"name": "configured defenses"} | {k: str(v) for k, v in counts.items()})
    for check in result.defense_checks:
        case = SubElement(suite, "testcase", classname="fedspill.defenses", name=f"{check.defense} is on")
        if check.on is False:
            SubElement(case, "failure", message=f"configured but off: {check.why}", type="defense-off")
        elif check.on is None:
            SubElement(case, "skipped", message=f"cannot be verified: {check.why}")
        else:
            SubElement(case, "system-out").text = check.why


def _claim_suite(suites: Element, result: AuditResult) -> None:
    """Each claim of differential privacy: a violated one is a failure, one that was not tested is no pass."""
    claims = result.privacy_claims
    violated = sum(claim.verdict == "violated" for claim in claims)
    open_ = sum(claim.verdict == "not tested" for claim in claims)
    counts = {"tests": len(claims), "failures": violated, "errors": 0, "skipped": open_}
    suite = SubElement(suites, "testsuite", {"name": "claims of privacy"} | {k: str(v) for k, v in counts.items()})
    for claim in claims:
        name = f"no violation of what {claim.defense} claims is found"
        case = SubElement(suite, "testcase", classname="fedspill.privacy", name=name)
        if claim.verdict == "violated":
            SubElement(case, "failure", message=claim_words(claim), type="claim-violated")
        elif claim.verdict == "not tested":
            SubElement(case, "skipped", message=claim_words(claim))
        else:
            SubElement(case, "system-out").text = claim_words(claim)


def _case(suite: Element, finding: Finding, bar: Severity, *, fails: bool) -> str:
    """Adds the case; returns under what it counts."""
    name = finding.id.rpartition("/")[0]
    case = SubElement(suite, "testcase", classname=f"fedspill.{finding.family}", name=name)
    score = finding.score
    if finding.status == "skipped":
        SubElement(case, "skipped", message=finding.why)
        return "skipped"
    if finding.status == "read":
        read = finding.reading.summary if finding.reading else "an answer"
        SubElement(case, "skipped", message=f"read, and nothing is known to hold it against: {read}")
        return "skipped"
    if finding.status != "ok":
        SubElement(case, "error", message=f"{finding.status}: {finding.why}", type=finding.status)
        return "errors"
    words = (
        f"{finding.level.word}: {score.title} {score.value} [{score.low}, {score.high}], "
        f"chance {score.chance}, n {score.n}"
    )
    if finding.accepted:
        SubElement(case, "skipped", message=f"accepted until {finding.accepted.until}; {words}")
        return "skipped"
    if finding.level >= bar:
        helps = finding.defenses.advice if finding.defenses else ""
        SubElement(case, "failure", message=words, type=finding.level.word).text = helps
        return "failures"
    if fails and may_be_at(finding, bar):
        SubElement(case, "error", message=f"undecided, and at the bar if its value stays; {words}", type="undecided")
        return "errors"
    SubElement(case, "system-out").text = words
    return "passed"
