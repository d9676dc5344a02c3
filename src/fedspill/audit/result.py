"""AuditResult: what an audit came to, as typed values. `audit.json` is its dump, report/ its reader."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fedspill.attack_run import Status
from fedspill.audit.severity import Severity, State
from fedspill.dp_audit.result import DpResult, DpTest
from fedspill.intervals import CLIENTS, Interval, OverFederations
from fedspill.metric import Metric, Score
from fedspill.reading import Reading
from fedspill.registry import report_format

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
ClaimVerdict: TypeAlias = Literal["violated", "no violation found", "not tested"]  # there is no "passed"


def rounded(value: float | None) -> float | None:
    """Four decimals, or three digits of a small number: what is printed is what is in the JSON. Infinite is null."""
    if value is None or not math.isfinite(value):
        return None
    short = round(value, 4) if abs(value) >= 0.001 or value == 0 else float(f"{value:.3g}")
    return short + 0.0  # no minus zero


def _severity(value: Any) -> Any:
    return Severity[value.upper()] if isinstance(value, str) else value


Rounded: TypeAlias = Annotated[float | None, PlainSerializer(rounded)]
SeverityWord: TypeAlias = Annotated[
    Severity, BeforeValidator(_severity), PlainSerializer(lambda level: level.word, return_type=str)
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ScoreFigures(_Model):
    """A score with its interval, its n, chance, and what would be perfect; of an unscored one the numbers are null."""

    metric: str = ""
    title: str = ""
    perfect: float | None = None
    value: Rounded = None
    low: Rounded = None
    high: Rounded = None
    chance: Rounded = None
    n: int = 0
    population: str = ""  # of what the interval speaks
    clusters: int = 0  # how many independent parts it is made of: federations, clients or rounds
    federations: list[float] = Field(default_factory=list)  # the value of each
    by_clients: tuple[float | None, float | None] = (None, None)  # between which ends its clients alone leave the mean
    proven: str = ""  # "24 of 40 samples", where an attack can prove what it read

    @staticmethod
    def of(metric: Metric[Any], score: Score) -> ScoreFigures:
        named = ScoreFigures(metric=metric.name, title=metric.title, perfect=metric.perfect, n=score.n)
        if score.status != "ok":
            return named
        ends = score.by_clients or (None, None)
        proof = score.proof if score.proof is not None and score.proof.holds else None
        return named.model_copy(
            update={
                "value": score.value,
                "low": score.low,
                "high": score.high,
                "chance": score.chance,
                "population": score.population,
                "clusters": score.clusters,
                "federations": [float(f"{value:.9g}") for value in score.federations],
                "by_clients": (rounded(ends[0]), rounded(ends[1])),
                "proven": f"{proof.proven} of {proof.total}" if proof else "",
            }
        )

    def over_federations(self) -> OverFederations | None:
        """What the test of a difference needs; None where this result does not say, as those before 0.2 do not."""
        if not self.federations or self.perfect is None:
            return None
        low, high = self.by_clients
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        return OverFederations(tuple(self.federations), Interval(*ends, CLIENTS, self.clusters), ends)

    @property
    def unnumbered(self) -> ScoreFigures:
        """The same without its numbers, for a score that its controls do not bear out."""
        return ScoreFigures(metric=self.metric, title=self.title, perfect=self.perfect, n=self.n)


class AccuracyFigures(_Model):
    """Share of test samples that the model has right, with Wilson's interval."""

    value: Rounded
    low: Rounded
    high: Rounded
    n: int


class DefenseTrial(_Model):
    """One setting of a defense: what the attack still gets, and what the model is still worth."""

    setting: str
    defense: str
    options: dict[str, Any]
    status: Status
    state: State = "not tested"
    why: str
    severity: SeverityWord | None
    advantage: Rounded
    score: ScoreFigures
    accuracy: AccuracyFigures | None
    accuracy_change: Rounded
    epsilon: Rounded
    delta: float | None
    adaptive: bool  # whether the attack asked for the defense's parameters and got them


class DefensesTried(_Model):
    """Every setting that was tried against one finding, and the advice."""

    tried: list[DefenseTrial]
    best: str | None
    advice: str


class LikenessCheck(_Model):
    """One quantity of the recording, and between which limits that of one more twin would lie."""

    name: str
    title: str
    recorded: Rounded
    low: Rounded
    high: Rounded
    twins: list[float]
    alike: bool


class TwinSummary(_Model):
    """Twins: the recorded federation run again with proxy data whose truth is known, and whether they are like it."""

    possible: bool
    why: str = ""  # there are none, or they are unlike the recording
    like: bool | None = None
    twins: int = 0
    mix: Rounded = None  # how unlike clients are: concentration of a Dirichlet law
    chained: bool = True  # whether a twin's rounds follow from each other; not where the server has its own optimizer
    checks: list[LikenessCheck] = Field(default_factory=list)


class TwinFigures(_Model):
    """What the attack gets on twins, and where the score of one more federation would lie in 95 % of cases."""

    value: Rounded
    low: Rounded
    high: Rounded
    chance: Rounded
    twins: int
    figure: str  # "87 of 100 labels"
    guessing: str
    severity: SeverityWord | None = None  # by the twins' score, where they are like the recording


class AcceptedBecause(_Model):
    reason: str
    until: str


class Finding(_Model):
    """What one attack by one adversary came to, over all repeats: a score, or the reason why there is none."""

    id: str
    attack: str
    title: str
    adversary: str
    family: str  # the leak
    severity: SeverityWord | None = None
    status: Status = "skipped"
    state: State = "not tested"
    lowered: str = ""  # why it counts one level less than its advantage
    advantage: Rounded = None
    sure: Rounded = None  # the same at the cautious end of the interval
    likely: SeverityWord | None = None  # of one that is undecided, its level by the value alone
    borderline: bool = False  # whether the interval holds a bar between two severities
    score: ScoreFigures = ScoreFigures()
    other_scores: list[ScoreFigures] = Field(default_factory=list)
    why: str = ""  # of one that is not scored
    why_short: str = ""  # the same in a few words
    repeats_to_decide: int | None = None  # about how many would tell, of one that is undecided
    notes: list[str] = Field(default_factory=list)
    used: list[str] = Field(default_factory=list)  # the knowledge that the attack asked for
    options: dict[str, Any] = Field(default_factory=dict)
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    reading: Reading | None = None  # of a recording: what was read, in words and tables
    twin: TwinFigures | None = None  # how far such readings are right on twins of the recording
    accepted: AcceptedBecause | None = None
    defenses: DefensesTried | None = None
    repeat: str = ""  # the command that runs it again
    errors: int = Field(default=0, exclude=True)  # repeats that gave nothing
    lacks: int = Field(default=0, exclude=True)  # how many things its adversary would need besides

    @property
    def level(self) -> Severity:
        """Its severity; that of an unscored one is the least, and `status` tells them apart."""
        return Severity.INFO if self.severity is None else self.severity

    @property
    def gained(self) -> float:
        return self.advantage or 0.0


def may_be_at(finding: Finding, level: Severity) -> bool:
    """Whether an undecided finding is at that level by its value; it must not look like a pass."""
    return finding.state == "undecided" and finding.likely is not None and finding.likely >= level


class LeakCell(_Model):
    """What one adversary can do about one leak: the worst of its own attacks and of any weaker adversary's."""

    adversary: str
    state: State
    severity: SeverityWord | None = None  # of one that is found, or that follows from one that is
    advantage: Rounded = None
    finding: str = ""  # the id of the finding that says so
    by_weaker: str = ""  # the weaker adversary whose attack it is
    figure: str = ""  # "87 of 100 labels"
    guessing: str = ""  # "57 of 100 labels"
    between: str = ""  # "84 to 90 of 100 labels", where the figure lies in 95 % of cases
    sentence: str = ""
    of_100: int | None = None
    of_100_by_guessing: int | None = None
    n: int = 0
    why: str = ""  # of one without a figure, in a few words
    reading: str = ""  # what was read, of one that nothing is known to hold against
    beside: str = ""  # how far that can be believed
    repeats_to_decide: int | None = None
    accepted: bool = False
    follows_from: str = ""  # the leak that says this one too, of one that no attack was run for


class LeakRow(_Model):
    """One leak, and what it comes to for each adversary."""

    leak: str
    title: str
    question: str
    taxonomy: dict[str, str]  # nearest ids: no public list speaks of federated learning
    state: State
    severity: SeverityWord | None
    cells: list[LeakCell]

    def cell(self, adversary: str) -> LeakCell | None:
        return next((cell for cell in self.cells if cell.adversary == adversary), None)


class Headline(_Model):
    """The worst of it in one sentence, with the row that it is about; without one, that nothing was found."""

    sentence: str
    leak: str = ""
    adversaries: list[str] = Field(default_factory=list)
    severity: SeverityWord | None = None
    cell: LeakCell | None = None
    needs: list[str] = Field(default_factory=list)  # what the attacker knows beside the messages, in words
    lowered: str = ""  # why it counts one level less than its figure
    read: bool = False  # whether it tells what was read, since nothing is known to hold it against


class SettingSummary(_Model):
    """What one setting of a defense leaves to the best attack on a leak."""

    setting: str
    title: str
    defense: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    severity: SeverityWord | None
    undecided: bool = False  # whether the interval of some attack is too wide to tell
    advantage: Rounded
    attacks: int
    blinded: int  # attacks whose adversary no longer sees what they need
    accuracy: AccuracyFigures | None
    accuracy_change: Rounded
    epsilon: Rounded
    adaptive: bool


class LeakSummary(_Model):
    """What helps against one leak, measured."""

    family: str
    settings: list[SettingSummary]
    advice: str


class AdvisedDefense(_Model):
    """A defense with its options, and what it takes to have it."""

    name: str
    title: str
    options: dict[str, Any]
    setting: str
    needs: list[str]


class LeakChange(_Model):
    """What a leak was, and what it is to an attacker once the advice is followed."""

    leak: str
    title: str
    before: SeverityWord | None
    after: SeverityWord | None  # null: see `state`
    state: State  # "cannot": no attack of ours can run any more
    advantage: Rounded
    adaptive: bool  # whether every attack asked for the defense's parameters and got them


class Advice(_Model):
    """One or more defenses that were run as one deployment, what they leave and what they cost."""

    defenses: list[AdvisedDefense]
    changes: list[LeakChange]
    accuracy: AccuracyFigures | None
    accuracy_change: Rounded
    epsilon: Rounded
    plan_lines: str  # to paste into a plan
    flower_lines: str  # to paste into a Flower client


class AfterAdvice(_Model):
    """The best combination that was found, and the table of leaks as measured with it."""

    advice: Advice
    leaks: list[LeakRow]
    seconds: Rounded = None


class ControlPart(_Model):
    """One control: whether the attack found something, and whether it should have."""

    passed: bool
    found: bool | None
    score: ScoreFigures | None
    why: str


class ControlResult(_Model):
    """Both controls of one attack by one adversary."""

    id: str
    attack: str
    adversary: str
    passed: bool
    positive: ControlPart | None
    negative: ControlPart | None
    why: str
    own_model: ControlPart | None = None  # the positive control on the user's own model, where there is one


class AdversarySummary(_Model):
    name: str
    title: str
    who: str = ""  # in the middle of a sentence
    short: str = ""
    sees: list[str]
    knows: list[str]
    does: list[str]


class DefenseCheck(_Model):
    """Whether a configured defense is really on; null where nothing on the wire can show it."""

    defense: str
    on: bool | None
    why: str


class TurnedAway(_Model):
    """Models of the audited federation, whose server is honest, that a configured defense refused or repaired."""

    defense: str
    refused: int
    repaired: int
    clients: int
    rounds: int
    first: str  # the first of them, as the list of events has it


class PrivacyClaim(_Model):
    """What a deployed defense claims, and what calling its code with canaries showed. None is ever said to hold."""

    defense: str
    claimed: Rounded = None  # epsilon of the deployment; null where it is not known
    delta: float | None = None
    verdict: ClaimVerdict
    said: str  # the verdict as a sentence
    tested: Rounded = None  # epsilon that the tests were held against: the same, or that of a few steps
    lower: Rounded = None  # epsilon of what was tested is at least this
    confidence: float | None = None
    assumption: str = ""  # of that bound
    largest: Rounded = None  # the largest epsilon that these tests could have shown
    tests: list[DpTest] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @staticmethod
    def of(defense: str, found: DpResult) -> PrivacyClaim:
        whole = found.claimed if found.whole is None else found.whole
        strongest = found.strongest
        if strongest is None:
            return PrivacyClaim(
                defense=defense, claimed=whole, delta=found.delta, verdict="not tested", said=found.verdict
            )
        return PrivacyClaim(
            defense=defense,
            claimed=whole,
            delta=found.delta,
            verdict="violated" if found.violated else "no violation found",
            said=found.verdict,
            tested=found.claimed,
            lower=found.lower,
            confidence=strongest.confidence,
            assumption=strongest.assumption,
            largest=found.largest,
            tests=list(found.tests),
            notes=list(found.notes),
        )

    @staticmethod
    def not_tested(defense: str, why: str) -> PrivacyClaim:
        return PrivacyClaim(defense=defense, verdict="not tested", said=f"not tested: {why}")


class AuditVerdict(_Model):
    """The worst finding, how many of each, and whether everything was measured."""

    worst: SeverityWord | None
    complete: bool
    accepted: int
    severities: dict[str, int]
    statuses: dict[str, int]
    states: dict[str, int] = Field(default_factory=dict)


class AcceptedEntry(_Model):
    """An entry of the accept file, and what has become of it."""

    id: str
    reason: str
    until: str
    state: Literal["expired", "in force", "no such finding"]


class Provenance(_Model):
    seeds: list[int]
    code: str
    plan: str
    plan_file: str | None
    traces: list[str]
    versions: dict[str, str]
    show_data: bool


class AuditResult(_Model):
    """The whole of an audit. `docs/audit.md` describes every field."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    fedspill: str
    verdict: AuditVerdict
    deployment: str
    data_note: str = ""  # what a reader must know of the data, and how columns of a table were read
    target: Literal["plan", "trace"]
    accuracy: AccuracyFigures | None
    headline: Headline = Headline(sentence="")
    twin: TwinSummary | None = None  # of a recording without truth
    leaks: list[LeakRow] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)  # leaks that no attack of the plan is about
    findings: list[Finding]
    families: list[LeakSummary]
    advice: list[Advice] = Field(default_factory=list)  # single defenses, the best first
    after: AfterAdvice | None = None  # with the best combination in place
    unhelped: list[str] = Field(default_factory=list)  # leaks that none of the defenses tried brings down
    untried: list[str] = Field(default_factory=list)  # candidates that can act on none of the attacks that found much
    controls: list[ControlResult]
    adversaries: list[AdversarySummary]
    classes: list[str]
    defense_checks: list[DefenseCheck]
    privacy_claims: list[PrivacyClaim] = Field(default_factory=list)  # of deployed defenses that claim an epsilon
    turned_away: list[TurnedAway] = Field(default_factory=list)  # honest models, by configured defenses
    events: list[str]
    cannot_tell: list[str]
    severity_rule: str
    accepted: list[AcceptedEntry]
    provenance: Provenance
    plan: dict[str, Any]
    timing: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `audit.json` holds them."""
        return self.model_dump(mode="json", by_alias=True)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per finding, for tables."""
        return [_row(finding) for finding in self.findings]

    def to_frame(self) -> pd.DataFrame:
        """The findings as a pandas table; pandas must be installed."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_csv(self) -> str:
        """The findings as CSV text."""
        out = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["id"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        return out.getvalue()

    def _repr_html_(self) -> str:
        """What a notebook shows: the first screen of the report."""
        shown: str = report_format("html").first_screen(self)
        return shown


def _row(finding: Finding) -> dict[str, Any]:
    score = finding.score
    return {
        "id": finding.id,
        "leak": finding.family,
        "attack": finding.attack,
        "adversary": finding.adversary,
        "status": finding.status,
        "severity": finding.severity.word if finding.severity is not None else None,
        "advantage": rounded(finding.advantage),
        "metric": score.metric,
        **{name: rounded(getattr(score, name)) for name in ("value", "low", "high", "chance")},
        "n": score.n,
        "why": finding.why,
    }


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would run as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
