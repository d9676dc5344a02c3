"""The first screen over generated results: no contradiction, no figure of its own, no advice that was not measured."""

from __future__ import annotations

import html as markup
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspill.audit.advice import single_advice, unhelped
from fedspill.audit.defense_frontier import summarise_leaks
from fedspill.audit.leak_table import badness, headline_of, leak_rows, left_out_of
from fedspill.audit.result import (
    AccuracyFigures,
    AdversarySummary,
    Advice,
    AuditResult,
    ControlResult,
    DefenseCheck,
    DefensesTried,
    DefenseTrial,
    Finding,
    LeakChange,
    Provenance,
    ScoreFigures,
    TurnedAway,
    rounded,
)
from fedspill.audit.result_from_store import verdict
from fedspill.audit.severity import (
    NOTICEABLE,
    RULE,
    Severity,
    State,
    advantage,
    lowered_by,
    possible_advantage,
    repeats_to_decide,
    severity,
    state_of,
    sure_advantage,
)
from fedspill.audit.why_not import KNOWN_AS, OTHERS_RUN_IT
from fedspill.metric import Score
from fedspill.registry import load_leak
from fedspill.report import comparison, html, markdown, text
from fedspill.report.figures import percent, points
from fedspill.report.first_screen import first_screen, shown_advice, shown_cell
from fedspill.threat import ADVERSARIES, KNOWLEDGE

# Modules that are imported on the way start generators of their own, which hypothesis takes for ours.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")
LEAKS = ("labels", "composition", "inputs", "membership", "attributes", "presence", "quantity", "groups")
PEOPLE = ("curious-server", "curious-client", "eavesdropper", "malicious-server")
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("clip-noise", {"clip": 1.0, "sigma": 0.1}),
    ("mixed-classes", {"level": 1.0}),
    ("secure-aggregation", {}),
    ("guard", {"false_alarms": 0.01}),
)
numbers = st.floats(0, 1, allow_nan=False).map(lambda value: round(value, 4))


@st.composite
def scores(draw: st.DrawFn) -> Score:
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Score(value, low, high, draw(st.integers(1, 500)), draw(numbers))


@st.composite
def trials(draw: st.DrawFn, before: float) -> DefenseTrial:
    name, options = draw(st.sampled_from(SETTINGS))
    score, after = draw(scores()), draw(numbers)
    status = draw(st.sampled_from(["ok", "ok", "skipped", "errored"]))
    label = f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"
    return DefenseTrial(
        setting=label,
        defense=name,
        options=options,
        status=status,
        state=state_of(score, 1.0) if status == "ok" else "not tested",
        why="",
        severity=severity(score, 1.0) if status == "ok" else None,
        advantage=advantage(score, 1.0) if status == "ok" else None,
        score=ScoreFigures(),
        accuracy=AccuracyFigures(value=after, low=after, high=after, n=100),
        accuracy_change=after - before,
        epsilon=None,
        delta=None,
        adaptive=draw(st.booleans()),
    )


@st.composite
def findings(draw: st.DrawFn, leak: str, adversary: str, attack: str, accuracy: float) -> Finding:
    blank = Finding(id=f"{attack}/{adversary}", attack=attack, title=attack, adversary=adversary, family=leak)
    kind = draw(st.sampled_from(["scored", "scored", "cannot", "not tested", "errored"]))
    if kind != "scored":
        status = "errored" if kind == "errored" else "skipped"
        return blank.model_copy(update={"status": status, "state": kind, "why_short": "a reason", "why": "a reason"})
    metric, score = load_leak(leak).headline, draw(scores())
    used = draw(st.lists(st.sampled_from(["aux_data", "architecture", "local_lr"]), unique=True))
    does = ["alter_model"] if draw(st.booleans()) and adversary == "malicious-server" else []
    state = state_of(score, metric.perfect)
    tried = draw(st.lists(trials(accuracy), max_size=3, unique_by=lambda trial: trial.setting))
    return blank.model_copy(
        update={
            "status": "ok",
            "state": state,
            "severity": severity(score, metric.perfect, used, does),
            "lowered": lowered_by(used, does) if state == "found" else "",
            "advantage": advantage(score, metric.perfect),
            "sure": sure_advantage(score, metric.perfect),
            "score": ScoreFigures.of(metric, score),
            "used": sorted(used),
            "repeats_to_decide": repeats_to_decide(score, metric.perfect, 1) if state == "undecided" else None,
            "defenses": DefensesTried(tried=tried, best=None, advice="") if tried and state == "found" else None,
        }
    )


@st.composite
def results(draw: st.DrawFn) -> AuditResult:
    leaks = draw(st.lists(st.sampled_from(LEAKS), min_size=1, unique=True))
    people = draw(st.lists(st.sampled_from(PEOPLE), min_size=1, unique=True))
    accuracy = draw(numbers)
    found = [
        draw(findings(leak, person, f"{leak}-{number}", accuracy))
        for leak in leaks
        for person in people
        for number in range(draw(st.integers(1, 2)))
    ]
    rows, families = leak_rows(found), summarise_leaks(found)
    off = draw(st.sampled_from([None, True, False]))
    return AuditResult(
        fedspill="0",
        verdict=verdict(found),
        deployment="a federation",
        target="plan",
        accuracy=AccuracyFigures(value=accuracy, low=accuracy, high=accuracy, n=100),
        headline=headline_of(rows, found),
        leaks=rows,
        left_out=left_out_of(rows),
        findings=found,
        families=families,
        advice=single_advice(families, rows),
        unhelped=unhelped(families),
        controls=[],
        adversaries=[
            AdversarySummary(name=name, title=t.title, who=t.who, short=t.short, sees=[], knows=[], does=[])
            for name, t in ADVERSARIES.items()
            if name in people
        ],
        classes=[],
        defense_checks=[DefenseCheck(defense="clip-noise", on=off, why="looked at")],
        events=[],
        cannot_tell=[],
        severity_rule=RULE,
        accepted=[],
        provenance=Provenance(seeds=[7], code="c", plan="p", plan_file=None, traces=[], versions={}, show_data=False),
        plan={"fail_on": None},
        timing={"seconds": 1.0},
    )


lenient = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@lenient
@given(results())
def test_no_adversary_is_rated_below_a_weaker_one(result: AuditResult) -> None:
    for row in result.leaks:
        for stronger in row.cells:
            for weaker in row.cells:
                if ADVERSARIES[stronger.adversary].has_all_of(ADVERSARIES[weaker.adversary]):
                    assert badness(stronger)[:2] >= badness(weaker)[:2]


def test_what_only_a_weaker_one_runs_is_as_out_of_reach_for_the_stronger() -> None:
    def answer(adversary: str, state: str, why: str) -> Finding:
        told = {"status": "skipped", "state": state, "why_short": why}
        blank = Finding(id=adversary, attack="labels", title="labels", adversary=adversary, family="labels")
        return blank.model_copy(update=told)

    (row,) = leak_rows(
        [
            answer("curious-server", "cannot", "sees no single update"),
            answer("malicious-server-updates", "not tested", OTHERS_RUN_IT),
        ]
    )
    assert [(cell.state, cell.why) for cell in row.cells] == [("cannot", "sees no single update")] * 2


@lenient
@given(results())
def test_every_figure_of_the_first_screen_is_in_the_json(result: AuditResult) -> None:
    """Numbers in words are in the JSON as those words; accuracies are rounded from it."""
    written = json.dumps(result.as_json())
    accuracies = [result.accuracy, *(advice.accuracy for advice in result.advice)]
    allowed = tokens(written) | {"1", "2", "3", "95", "100"} | {str(len(result.provenance.seeds)), "0"}
    allowed |= tokens(" ".join(percent(rounded(figures.value)) for figures in accuracies if figures))
    allowed |= tokens(" ".join(points(rounded(advice.accuracy_change)) for advice in result.advice))
    shown = markup.unescape(re.sub(r"<[^>]*>", " ", html.first_screen(result)))
    assert tokens(shown) <= allowed
    assert tokens(text.render(result)) <= allowed
    assert all(len(token.strip("-+").replace(".", "").lstrip("0")) <= 3 for token in tokens(shown))


def tokens(said: str) -> set[str]:
    return {token.lstrip("+") for token in re.findall(r"[-+]?(?<![\w.])\d+(?:\.\d+)?|[-+]\d+(?:\.\d+)?", said)}


def test_what_a_defense_leaves_undecided_does_not_read_like_a_step_down() -> None:
    states: tuple[State, ...] = ("undecided", "not found")
    changes = [
        LeakChange(
            leak=state, title=state, before=Severity.MEDIUM, after=None, state=state, advantage=0.0, adaptive=True
        )
        for state in states
    ]
    advice = Advice(
        defenses=[],
        changes=changes,
        accuracy=None,
        accuracy_change=None,
        epsilon=None,
        plan_lines="",
        flower_lines="",
    )
    assert shown_advice(advice, None).effect == "undecided: medium, now undecided; not found: medium to not found"


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_a_self_check_that_failed_is_named(result: AuditResult) -> None:
    def check(name: str, passed: bool) -> ControlResult:
        return ControlResult(
            id=name, attack=name, adversary="curious-server", passed=passed, positive=None, negative=None, why=""
        )

    checks = [check("llg/curious-server", True), check("ebi/curious-server", False)]
    said = " ".join(text.render(result.model_copy(update={"controls": checks})).split())
    assert "1 of 2 self-checks passed, but not ebi/curious-server;" in said
    many = [check(f"a{number}", False) for number in range(9)]
    said = " ".join(text.render(result.model_copy(update={"controls": many})).split())
    assert "but not a0, a1, a2, a3, a4 and 4 more;" in said


def found_by(attack: str, leak: str, score: Score) -> Finding:
    metric = load_leak(leak).headline
    blank = Finding(id=f"{attack}/curious-server", attack=attack, title=attack, adversary="curious-server", family=leak)
    return blank.model_copy(
        update={
            "status": "ok",
            "state": state_of(score, metric.perfect),
            "severity": severity(score, metric.perfect),
            "advantage": advantage(score, metric.perfect),
            "sure": sure_advantage(score, metric.perfect),
            "score": ScoreFigures.of(metric, score),
        }
    )


@pytest.mark.parametrize(
    ("leak", "low", "sentence"),
    [
        ("membership", 0.97, "The server can tell nearly always whether a person's record was trained on."),
        (
            "membership",
            0.65,
            "The server can tell often whether a person's record was trained on, perhaps nearly always.",
        ),
        (
            "labels",
            0.55,
            "The server can read a little of the labels that a client trained on in a round, perhaps nearly all.",
        ),
    ],
)
def test_the_headline_is_as_sure_as_the_lower_end_of_its_interval(leak: str, low: float, sentence: str) -> None:
    found = [found_by(leak, leak, Score(0.98, low, 1.0, 20, 0.5))]
    assert headline_of(leak_rows(found), found).sentence == sentence


def test_where_guessing_is_always_right_there_is_nothing_to_find() -> None:
    """An attack that does worse than a guess that cannot fail is no figure that anybody should read."""
    found = [found_by("presence", "presence", Score(0.73, 0.7, 0.76, 400, 1.0))]
    cell = shown_cell(leak_rows(found)[0].cells[0], AuditResult.model_construct())
    assert (cell.tag, cell.main) == ("nothing to find", "")
    assert cell.sub == "guessing alone gets 100 of 100 classes"
    found = [found_by("presence", "presence", Score(0.73, 0.7, 0.76, 400, 0.9))]
    cell = shown_cell(leak_rows(found)[0].cells[0], AuditResult.model_construct())
    assert (cell.tag, cell.main) == ("not found", "73 of 100 classes")
    assert cell.sub == "no better than guessing, which gets 90"


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_what_a_reader_must_know_of_the_data_stands_on_every_first_screen(result: AuditResult) -> None:
    noted = result.model_copy(update={"data_note": "Only 10 of the original 70 images are here."})
    for page in (html.render(noted), text.render(noted), markdown.render(noted).replace("\\", "")):
        shown = " ".join(page.split())
        assert "Only 10 of the original 70 images are here." in shown
    assert "About the data" not in text.render(result)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_a_candidate_that_was_named_and_not_tried_is_told(result: AuditResult) -> None:
    asked = result.model_copy(update={"untried": ["guard"], "plan": {**result.plan, "candidates": ["guard"]}})
    said = "Not tried, because what was found here is found without what they change: guard."
    assert said in " ".join(text.render(asked).split())
    of_all = asked.model_copy(update={"plan": {**result.plan, "candidates": None}})
    assert "Not tried, because" not in " ".join(text.render(of_all).split())


def test_the_screen_is_as_wide_as_a_terminal_within_reason() -> None:
    assert [text.fitting(width) for width in (None, 20, 90, 300)] == [100, 72, 90, 120]


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_what_adversaries_know_is_said_in_words(result: AuditResult) -> None:
    first, *others = result.adversaries
    server = first.model_copy(update={"knows": ["asked_records"]})
    page = markup.unescape(html.render(result.model_copy(update={"adversaries": [server, *others]})))
    assert f"knows {KNOWLEDGE['asked_records']} (asked_records)" in page


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_false_alarms_of_a_configured_defense_stand_on_every_first_screen(result: AuditResult) -> None:
    alarms = TurnedAway(defense="guard", refused=3, repaired=1, clients=2, rounds=2, first="round 1, client:0: guard")
    alarmed = result.model_copy(update={"turned_away": [alarms]})
    said = "guard refused 3 and repaired 1 models of an honest server, at 2 clients in 2 rounds: who refuses does not"
    assert any(line.startswith("! FALSE ALARMS: guard refused 3") for line in text.lines(alarmed)[:12])
    page = markup.unescape(html.render(alarmed))
    assert page.index(said) < page.index("What leaks, and to whom")
    assert said in markdown.render(alarmed).replace("&#58;", ":")
    assert "FALSE ALARMS" not in text.render(result)


@lenient
@given(results())
def test_every_defense_that_was_tried_is_named_in_the_terminal(result: AuditResult) -> None:
    tried = {trial.defense for finding in result.findings if finding.defenses for trial in finding.defenses.tried}
    helps = {defense.name for advice in result.advice for defense in advice.defenses}
    shown = " ".join(text.render(result).split())
    _, _, told = shown.partition("No gain worth 2 points of accuracy: ")
    told = told.partition(". ")[0]
    assert set(filter(None, re.split(", | and ", told))) == tried - helps


def test_what_an_attacker_needs_is_said_in_words() -> None:
    assert KNOWN_AS.keys() == KNOWLEDGE.keys()


@lenient
@given(results())
def test_advice_names_only_what_was_run(result: AuditResult) -> None:
    ran = {trial.setting for finding in result.findings if finding.defenses for trial in finding.defenses.tried}
    for advice in result.advice:
        assert {defense.setting for defense in advice.defenses} <= ran
        assert advice.accuracy is not None
        assert advice.accuracy.value is not None
        assert result.accuracy is not None
        assert result.accuracy.value is not None
        assert advice.accuracy.value >= result.accuracy.value - 0.0201
    page = html.render(result)
    named = {defense.title for advice in result.advice for defense in advice.defenses}
    others = {"Clip the update, add noise", "Secure aggregation: show the server sums only"} - named
    lines = re.sub(r"<[^>]*>", " ", page[page.index("What to do") : page.index("How sure.")])
    assert not any(title in lines for title in others)


@lenient
@given(results())
def test_nothing_is_green_that_is_not_at_chance_with_a_narrow_interval(result: AuditResult) -> None:
    by_id = {finding.id: finding for finding in result.findings}
    for shown, row in zip(first_screen(result).rows, result.leaks, strict=True):
        for cell_shown, adversary in zip(shown.cells, result.adversaries, strict=True):
            cell = row.cell(adversary.name)
            assert cell is not None
            if cell_shown.kind == "not-found":
                figures = by_id[cell.finding].score
                assert None not in (figures.value, figures.low, figures.high, figures.chance, figures.perfect)
                score = Score(figures.value, figures.low, figures.high, figures.n, figures.chance)  # type: ignore[arg-type]
                assert sure_advantage(score, figures.perfect or 0.0) == 0
                assert possible_advantage(score, figures.perfect or 0.0) < NOTICEABLE
            assert (cell_shown.kind == "not-found") == (cell.state == "not found")


@lenient
@given(results())
def test_every_format_renders_and_the_terminal_takes_a_screen(result: AuditResult) -> None:
    markdown.render(result)
    said = text.lines(result)
    assert max(map(len, said)) <= text.WIDTH
    if any(check.on is False for check in result.defense_checks):
        assert any("DEFENSE IS OFF" in line for line in said)


@lenient
@given(results(), results())
def test_two_results_compare_as_a_page(before: AuditResult, after: AuditResult) -> None:
    page = comparison.render(before, after)
    assert "<script" not in page
    assert before.headline.sentence in markup.unescape(page)
    assert after.headline.sentence in markup.unescape(page)
    assert "two different deployments" not in comparison.render(before, before)
    other = after.model_copy(update={"plan": {"fail_on": None, "training": {"lr": 0.5}}})
    assert "two different deployments" in comparison.render(before, other)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_where_all_is_undecided_the_screen_says_to_measure_more(result: AuditResult) -> None:
    open_ = [
        found_by(f"labels-{number}", "labels", Score(0.6, 0.4, 0.9, 5, 0.5)).model_copy(update={"repeats_to_decide": 6})
        for number in range(2)
    ]
    rows = leak_rows(open_)
    undecided = {"findings": open_, "leaks": rows, "headline": headline_of(rows, open_), "families": [], "advice": []}
    result = result.model_copy(update={**undecided, "unhelped": [], "after": None})
    said = first_screen(result)
    assert said.sentence == "No leak was found, and some could not be ruled out."
    assert "repeats = 6 in the plan" in said.unhelped
    assert "measure more" in " ".join(text.render(result).split())
