"""From everything that an audit's store knows to its result, as far as the audit has got."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, final

from fedspill.attack_run import Outcome, Status
from fedspill.audit.accepted import Accepted
from fedspill.audit.advice import acts_on, combined_advice, keeps_its_promise, proposals, single_advice, unhelped
from fedspill.audit.defense_frontier import Accuracy, Point, frontier, guarantees, summarise_leaks
from fedspill.audit.jobs import AttackJob, ClaimJob, ControlJob, Job, RecordJob, TwinAttackJob, TwinsJob
from fedspill.audit.leak_table import headline_of, in_order, leak_rows, left_out_of
from fedspill.audit.matrix import Pair
from fedspill.audit.outcomes import ClaimOutcome, ControlOutcome, JobOutcome, RecordOutcome, TwinsOutcome
from fedspill.audit.result import (
    AdversarySummary,
    AfterAdvice,
    AuditResult,
    AuditVerdict,
    ControlResult,
    DefenseCheck,
    DefensesTried,
    Finding,
    PrivacyClaim,
    Provenance,
    TwinSummary,
)
from fedspill.audit.score_finding import score_finding
from fedspill.audit.severity import RULE, Severity
from fedspill.audit.store import Store, Stored
from fedspill.audit.target import AS_DEPLOYED, DefenseSetting, Target
from fedspill.audit.turned_away import over_federations
from fedspill.audit.twin_scores import twin_figures, twin_summary
from fedspill.audit.why_not import lacking
from fedspill.defense import Check
from fedspill.defenses.verify import said_of
from fedspill.deployment.recorded_plan import recorded_plan
from fedspill.dp_audit.of_plan import may_claim
from fedspill.files import dump_json
from fedspill.metric import Metric
from fedspill.registry import make
from fedspill.seeds import seed_of
from fedspill.threat import ADVERSARIES

TRIED_ON = 3  # attacks of a leak and adversary that defenses are tried on; a combination is run against all
EVENTS = 50  # how many events of the federation a report lists
_NOT_CALLABLE = "this is a recording, and canaries need the code that clients ran; `fedspill dp PLAN` calls it"
_STATUS_ORDER: dict[str, int] = {"ok": 0, "read": 1, "unscored": 2, "errored": 3, "skipped": 4}
Kind = TypeVar("Kind", RecordOutcome, Outcome, ControlOutcome, TwinsOutcome, ClaimOutcome)


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix as it was when the audit began."""

    pair: Pair
    title: str
    family: str
    lacks: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Cell:
        return Cell(Pair(**value["pair"]), value["title"], value["family"], tuple(value["lacks"]))


@final
class StoredAudit:
    """An audit as its store holds it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.facts = store.facts()
        self.target = Target.from_json({**self.facts["target"], "folder": str(folder)})
        self.cells = [Cell.from_json(cell) for cell in self.facts["matrix"]]
        self.candidates = [DefenseSetting.from_json(setting) for setting in self.facts["candidates"]]
        self._results = dict(store.results())
        self._found: dict[tuple[str, DefenseSetting], Finding] = {}

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.target.plan.seeds if self.target.trace is None else (self.target.plan.seed,)

    def learn(self, job: Job, stored: Stored) -> None:
        """One more unit, as it was stored. What a defense leaves is worked out at once, while other units run."""
        self._results[job.key(self.target.code)] = stored
        self.__dict__.pop("_trials", None)
        if isinstance(job, ControlJob):
            for key in [key for key in self._found if key[0] == job.pair.id]:
                del self._found[key]
        if isinstance(job, AttackJob):
            self._found.pop((job.pair.id, job.setting), None)
            if job.setting.chosen and all(self.known(AttackJob(job.pair, job.setting, seed)) for seed in self.seeds):
                self.finding(next(cell for cell in self.cells if cell.pair.id == job.pair.id), job.setting)

    def known(self, job: Job) -> Stored | None:
        """What came of the unit; None where it was not run."""
        return self._results.get(job.key(self.target.code))

    def findings(self, setting: DefenseSetting = AS_DEPLOYED) -> list[Finding]:
        """Worst first; what was not scored comes last and never counts as passed."""
        return self._worst_first(self.cells, setting)

    def _worst_first(self, cells: Sequence[Cell], setting: DefenseSetting) -> list[Finding]:
        found = [self.finding(cell, setting) for cell in cells]
        return sorted(found, key=lambda f: (_STATUS_ORDER[f.status], -f.level, -f.gained, f.id))

    def finding(self, cell: Cell, setting: DefenseSetting) -> Finding:
        """What came of a cell under a setting; worked out once, since every table of the result asks for it."""
        key = cell.pair.id, setting
        if key not in self._found:
            self._found[key] = self._worked_out(cell, setting)
        return self._found[key]

    def _worked_out(self, cell: Cell, setting: DefenseSetting) -> Finding:
        pair = cell.pair
        if cell.lacks:
            not_run = lacking(pair)
            return Finding(
                id=pair.id,
                attack=pair.attack,
                title=cell.title,
                adversary=pair.adversary,
                family=cell.family,
                state=not_run.state,
                why=f"needs {'; '.join(cell.lacks)}",
                why_short=not_run.short,
                lacks=not_run.lacks,
                options=pair.options,
            )
        return score_finding(
            pair, cell.title, cell.family, self._attacks(pair, setting), self._control(pair), self._metrics()
        )

    def answered(self) -> list[Cell]:
        """The cells whose attack ran: one that had nothing to read needs no control."""
        return [cell for cell in self.cells if self.is_answered(cell)]

    def is_answered(self, cell: Cell) -> bool:
        return any(outcome.status != "skipped" for outcome in self._attacks(cell.pair, AS_DEPLOYED))

    def leaking(self, cells: Sequence[Cell]) -> list[Cell]:
        """Of these, the attacks to try defenses on: of each leak and adversary that is bad enough, the best few."""
        level = Severity[self.target.plan.try_from.upper()]
        best: dict[tuple[str, str], list[str]] = {}
        for finding in self._worst_first(cells, AS_DEPLOYED):
            if finding.status == "ok" and finding.level >= level:
                best.setdefault((finding.family, finding.adversary), []).append(finding.id)
        tried = {name for names in best.values() for name in names[:TRIED_ON]}
        return [cell for cell in cells if cell.pair.id in tried]

    def trials(self, cells: Sequence[Cell]) -> list[tuple[DefenseSetting, list[Cell]]]:
        """Each candidate, and which of these cells it is tried on; those that can act on none are not tried."""
        leaking = self.leaking(cells)
        tried = [(setting, [cell for cell in leaking if acts_on(setting, cell.pair)]) for setting in self.candidates]
        return [(setting, cells) for setting, cells in tried if cells]

    def untried(self) -> list[str]:
        """Candidates by name of which no setting can act on what leaks; none where nothing leaks enough to try any."""
        tried = {setting.chosen[0].name for setting, _ in self._trials}
        names = dict.fromkeys(setting.chosen[0].name for setting in self.candidates)
        leaking = self.target.trace is None and self.leaking(self.cells)
        return [name for name in names if name not in tried] if leaking else []

    @cached_property
    def _trials(self) -> list[tuple[DefenseSetting, list[Cell]]]:
        return self.trials(self.cells)

    def proposals(self) -> list[DefenseSetting]:
        """The combinations to run as one deployment, the most promising first."""
        found = self._with_defenses(self.findings())
        return proposals(single_advice(summarise_leaks(found), leak_rows(found)))

    def after(self, setting: DefenseSetting) -> AfterAdvice | None:
        """What was measured with a combination in place; None where it was not run."""
        accuracy, before = self.accuracy(setting), self.accuracy()
        if accuracy is None or before is None:
            return None
        as_deployed = {finding.id: finding for finding in self.findings()}
        found = []
        for cell in self.cells:
            finding = self.finding(cell, setting)
            if finding.status == "skipped" and as_deployed[finding.id].status == "ok":
                finding = finding.model_copy(update={"state": "cannot", "why_short": "no longer sees what it needs"})
            found.append(finding)
        rows = leak_rows(found)
        epsilon, _ = guarantees(self._records(setting))
        advice = combined_advice(
            setting,
            leak_rows(list(as_deployed.values())),
            rows,
            found,
            accuracy.figures(),
            accuracy.value - before.value,
            epsilon,
        )
        return AfterAdvice(advice=advice, leaks=rows)

    def best_after(self) -> AfterAdvice | None:
        """The first combination that was run and keeps what it promised."""
        if self.target.trace is not None:
            return None
        ran = (self.after(setting) for setting in self.proposals())
        return next((after for after in ran if after is not None and keeps_its_promise(after.advice)), None)

    def _with_defenses(self, findings: Sequence[Finding]) -> list[Finding]:
        cells = {cell.pair.id: cell for cell in self.cells}
        return [
            finding.model_copy(update={"defenses": self.frontier(cells[finding.id], finding)})
            if finding.status == "ok"
            else finding
            for finding in findings
        ]

    def accuracy(self, setting: DefenseSetting = AS_DEPLOYED) -> Accuracy | None:
        return Accuracy.of(self._records(setting))

    def frontier(self, cell: Cell, finding: Finding) -> DefensesTried | None:
        """What each candidate leaves of the finding; None where none was tried."""
        points = []
        for setting, cells in self._trials:
            if cell not in cells or not self._attacks(cell.pair, setting):
                continue
            epsilon, delta = guarantees(self._records(setting))
            points.append(Point(setting, self.finding(cell, setting), self.accuracy(setting), epsilon, delta))
        return frontier(finding, self.accuracy(), points) if points else None

    def result(self, accepted: Accepted, today: date) -> AuditResult:
        """The whole of it; docs/audit.md describes every field."""
        cells = {cell.pair.id: cell for cell in self.cells}
        found = []
        for finding in self._with_defenses(self.findings()):
            cell = cells[finding.id]
            update = {"accepted": accepted.reason(finding.id, today), "repeat": self._command(cell.pair)}
            found.append(finding.model_copy(update=update))
        accuracy, records = self.accuracy(), self._records(AS_DEPLOYED)
        twin = self.twin(found)
        found = [self._with_twin(cells[finding.id].pair, finding, twin) for finding in found]
        rows = leak_rows(found, twin)
        checks, gaps = self._checks(records), self.gaps()
        families = summarise_leaks(found)
        return AuditResult(
            fedspill=self.facts["fedspill"],
            verdict=verdict(found, gaps),
            deployment=self.facts["about"]["description"],
            data_note=self.facts["about"].get("data_note", ""),
            target="trace" if self.target.trace else "plan",
            accuracy=accuracy.figures() if accuracy else None,
            headline=headline_of(rows, found, twin),
            twin=twin,
            leaks=rows,
            left_out=left_out_of(rows, self.target.plan.federation.vertical_or_not),
            findings=found,
            families=families,
            advice=single_advice(families, rows),
            after=self.best_after(),
            unhelped=unhelped(families),
            untried=self.untried(),
            controls=[self._control_result(cell.pair) for cell in self.answered()],
            adversaries=self._adversaries(),
            classes=self.facts["about"]["classes"],
            defense_checks=checks,
            privacy_claims=self._claims(),
            turned_away=over_federations(one for outcome in records for one in outcome.turned_away),
            events=[
                *(said_of(Check(check.defense, check.on, check.why)) for check in checks if check.on is False),
                *[event for outcome in records for event in outcome.events][:EVENTS],
            ],
            cannot_tell=[*gaps, *self._cannot_tell(found)],
            severity_rule=RULE,
            accepted=accepted.entries_now(today, {finding.id for finding in found}),
            provenance=self._provenance(records),
            plan=self.target.plan.model_dump(mode="json"),
            timing={"seconds": round(sum(stored.seconds for stored in self._results.values()), 1)},
        )

    def twin(self, findings: Sequence[Finding]) -> TwinSummary | None:
        """Of a recording that was read without truth: its twins, and whether they are like it."""
        read = [finding for finding in findings if finding.status == "read"]
        made = next(iter(self._outcomes([TwinsJob(self.target.twin_seeds)], TwinsOutcome)), None)
        if not read or made is None:
            return None
        pairs = {cell.pair.id: cell.pair for cell in self.cells}
        stated = []
        for finding in read:
            mine = finding.reading.expects if finding.reading else None
            others = [o.reading.expects for o in self._on_twins(pairs[finding.id]) if o.reading is not None]
            if mine is not None:
                stated.append((mine, [one for one in others if one is not None]))
        return twin_summary(made, stated)

    def _with_twin(self, pair: Pair, finding: Finding, twin: TwinSummary | None) -> Finding:
        if finding.status != "read" or twin is None or not twin.possible:
            return finding
        if not twin.chained and not any(pair.threat.sees_of_others(kind) for kind in ("update", "gradient")):
            return finding  # it reads moves of the model, and a twin that is set back each round has none of its own
        figures = twin_figures(pair.leak, self._on_twins(pair), finding.used, like=bool(twin.like))
        return finding.model_copy(update={"twin": figures})

    def _on_twins(self, pair: Pair) -> list[Outcome]:
        return self._outcomes([TwinAttackJob(pair, seed) for seed in self.target.twin_seeds], Outcome)

    def gaps(self) -> list[str]:
        """What the plan asks for and the store does not have: never a clean result until it is there."""
        found = []
        for setting, _ in self._trials if self.target.trace is None else ():
            records = self._records(setting)
            failed = next((record for record in records if record.status != "ok"), None)
            if failed is not None:
                found.append(f"The federation with {setting.label} could not be run: {failed.why}. It is tried again.")
            elif len(records) < len(self.seeds):
                found.append(f"The federation with {setting.label} was not run yet.")
        for job in self.claim_jobs():
            tested = self._outcomes([job], ClaimOutcome)
            if not tested or tested[0].status == "errored":
                why = f"could not be tested: {tested[0].why}" if tested else "was not tested yet"
                found.append(f"What {job.defense} claims {why}.")
        return found

    def claim_jobs(self) -> list[ClaimJob]:
        """One for each deployed defense that may claim an epsilon; a recording's code is not here to be called."""
        if self.target.trace is not None:
            return []
        deployed = enumerate(self.target.plan.settings().defenses)
        names = [choice.name for choice in self.target.plan.defenses]
        return [ClaimJob(names[place], place, self.seeds[0]) for place, defense in deployed if may_claim(defense)]

    def _claims(self) -> list[PrivacyClaim]:
        found = []
        for job in self.claim_jobs():
            for outcome in self._outcomes([job], ClaimOutcome):
                if outcome.status == "errored":
                    found.append(PrivacyClaim.not_tested(job.defense, outcome.why))
                elif outcome.claim is not None:
                    found.append(outcome.claim)
        recorded = self.facts["about"].get("claims", [])
        return [*found, *(PrivacyClaim.not_tested(name, _NOT_CALLABLE) for name in recorded)]

    def _metrics(self) -> list[Metric[Any]]:
        """Those that the plan names beside the leaks' own."""
        return [make("metrics", choice.name, choice.options) for choice in self.target.plan.metrics or ()]

    def _outcomes(self, jobs: Sequence[Job], kind: type[Kind]) -> list[Kind]:
        found: list[JobOutcome] = [
            stored.outcome for job in jobs if (stored := self._results.get(job.key(self.target.code))) is not None
        ]
        return [outcome for outcome in found if isinstance(outcome, kind)]

    def _attacks(self, pair: Pair, setting: DefenseSetting) -> list[Outcome]:
        return self._outcomes([AttackJob(pair, setting, seed) for seed in self.seeds], Outcome)

    def _control(self, pair: Pair) -> ControlOutcome | None:
        return next(iter(self._outcomes([ControlJob(pair)], ControlOutcome)), None)

    def _records(self, setting: DefenseSetting) -> list[RecordOutcome]:
        return self._outcomes([RecordJob(setting, seed) for seed in self.seeds], RecordOutcome)

    def _checks(self, records: Sequence[RecordOutcome]) -> list[DefenseCheck]:
        """Whether each configured defense is really on; of several repeats the worst answer."""
        every = [check for outcome in records for check in outcome.checks]
        every += [DefenseCheck(**check) for check in self.facts["about"].get("checks", [])]
        worst: dict[str, DefenseCheck] = {}
        for check in sorted(every, key=lambda check: (False, None, True).index(check.on)):
            worst.setdefault(check.defense, check)
        return list(worst.values())

    def _control_result(self, pair: Pair) -> ControlResult:
        outcome = self._control(pair) or ControlOutcome(status="errored", why="did not run")
        return ControlResult(
            id=pair.id,
            attack=pair.attack,
            adversary=pair.adversary,
            passed=not outcome.failure(),
            positive=outcome.positive,
            negative=outcome.negative,
            why=outcome.why,
            own_model=outcome.own_model,
        )

    def _adversaries(self) -> list[AdversarySummary]:
        names = in_order({cell.pair.adversary for cell in self.cells})
        return [
            AdversarySummary(
                name=name,
                title=ADVERSARIES[name].title,
                who=ADVERSARIES[name].who,
                short=ADVERSARIES[name].short,
                sees=[str(channel) for channel in sorted(ADVERSARIES[name].sees)],
                knows=sorted(ADVERSARIES[name].knows),
                does=sorted(ADVERSARIES[name].does),
            )
            for name in names
        ]

    def _command(self, pair: Pair) -> str:
        """What repeats the first attack of this pair alone."""
        seed = self.seeds[0]
        words = ["fedspill", "attack", pair.attack, "--adversary", pair.adversary]
        words += ["--trace", str(self.target.trace_folder(AS_DEPLOYED, seed))]
        words += ["--seed", str(seed_of(seed, pair.attack, pair.adversary))]
        for key, value in sorted(pair.given.items()):
            words += ["--set", f"{key}={value}"]
        plan_file = self.facts["plan_file"]
        if plan_file and recorded_plan({"plan": self.target.plan.model_dump(mode="json")}) is None:
            words += ["--plan", plan_file]  # a recording names no code and no path, so the plan must
        return shlex.join(words)

    def _cannot_tell(self, findings: Sequence[Finding]) -> list[str]:
        """The limits of this very audit, after those of every audit."""
        plan = self.target.plan
        said = [
            "Attacks that are not in the matrix, and adversaries that see, know or do more than those in it.",
            "A finding near chance means that we did not find a leak, not that there is none.",
        ]
        if plan.record.rounds is not None or plan.record.clients is not None or plan.record.tensors is not None:
            said.append("Whatever the plan's [record] section left out of the recording.")
        if self.target.trace is not None:
            said.append("What a defense would change: a recording cannot be trained again. Audit its plan for that.")
        elif plan.repeats == 1:
            said.append("How much depends on the seed: there was one repeat. The plan's `repeats` makes more.")
        said.append(
            "Defenses marked as tested against an attacker who does not know of them may do worse against one who does."
        )
        if any(finding.status == "read" for finding in findings):
            said.append("How far readings are right: the recording holds no truth.")
        if any(finding.status in ("errored", "unscored") for finding in findings):
            said.append("Anything about the attacks that errored or could not be scored: they count as neither.")
        return said

    def _provenance(self, records: Sequence[RecordOutcome]) -> Provenance:
        return Provenance(
            seeds=list(self.seeds),
            code=self.target.code,
            plan=hashlib.sha256(dump_json(self.target.plan.essence())).hexdigest(),
            plan_file=self.facts["plan_file"],
            traces=[outcome.trace for outcome in records if outcome.status == "ok"] or self.facts["traces"],
            versions=self.facts["versions"],
            show_data=self.target.show_data,
        )


def verdict(findings: Sequence[Finding], gaps: Sequence[str] = ()) -> AuditVerdict:
    """The worst finding, how many of each, and whether everything was measured."""
    scored = [finding for finding in findings if finding.status == "ok"]
    status = Counter(finding.status for finding in findings)
    level = Counter(finding.level.word for finding in scored if finding.state != "undecided")
    tried = [point for finding in findings if finding.defenses for point in finding.defenses.tried]
    names: tuple[Status, ...] = ("ok", "read", "unscored", "errored", "skipped")
    return AuditVerdict(
        worst=max((finding.level for finding in scored), default=None),
        complete=status["errored"] + status["unscored"] == 0
        and bool(scored)  # where nothing was scored, nothing is known
        and not gaps
        and not any(finding.errors for finding in findings)
        # An attack that a defense leaves without an answer is a result of that defense, not a gap.
        and not any(point.status == "errored" for point in tried),
        accepted=sum(finding.accepted is not None for finding in findings),
        severities={severity.word: level[severity.word] for severity in reversed(Severity)},
        statuses={name: status[name] for name in names},
        states=dict(sorted(Counter(finding.state for finding in findings).items())),
    )
