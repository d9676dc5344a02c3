"""Assemble: everything an audit's store knows, as the one JSON value that every report is made from."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, final

from fedspill.audit.accepted import Accepted
from fedspill.audit.bench import AS_DEPLOYED, Setting, Target, trace_folder
from fedspill.audit.findings import Finding, ranked
from fedspill.audit.frontier import Accuracy, Point, families_json, frontier_json, guarantees
from fedspill.audit.jobs import Control, Job, Outcome, Record, Strike
from fedspill.audit.judge import judge
from fedspill.audit.matrix import Pair
from fedspill.audit.severity import RULE, Severity
from fedspill.audit.store import Store, Stored
from fedspill.defenses.base import Check
from fedspill.defenses.verify import said_of
from fedspill.files import dump_json
from fedspill.seeds import seed_of
from fedspill.threat import ADVERSARIES

SCHEMA = 1


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
class Assembly:
    """The findings of a store, as far as it has got."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.facts = store.facts()
        self.target = Target.from_json({**self.facts["target"], "folder": str(folder)})
        self.cells = [Cell.from_json(cell) for cell in self.facts["matrix"]]
        self.candidates = [Setting.from_json(setting) for setting in self.facts["candidates"]]
        self._results = store.results()

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.target.plan.seeds if self.target.trace is None else (self.target.plan.seed,)

    def findings(self, setting: Setting = AS_DEPLOYED) -> list[Finding]:
        return ranked([self.finding(cell, setting) for cell in self.cells])

    def finding(self, cell: Cell, setting: Setting) -> Finding:
        if cell.lacks:
            why = f"needs {'; '.join(cell.lacks)}"
            pair = cell.pair
            return Finding(
                pair.id, pair.attack, cell.title, pair.adversary, cell.family, "skipped", why=why, options=pair.options
            )
        strikes = self._outcomes([Strike(cell.pair, setting, seed) for seed in self.seeds])
        control = self._outcomes([Control(cell.pair)])
        return judge(cell.pair, cell.title, cell.family, strikes, control[0] if control else None)

    def answered(self) -> list[Cell]:
        """The cells whose attack ran: one that had nothing to read needs no control."""
        runs = [(cell, [Strike(cell.pair, AS_DEPLOYED, seed) for seed in self.seeds]) for cell in self.cells]
        return [cell for cell, jobs in runs if any(one["status"] != "skipped" for one in self._outcomes(jobs))]

    def leaking(self) -> list[Cell]:
        """The cells whose finding is bad enough to try defenses on."""
        level = Severity[self.target.plan.try_from.upper()]
        found = {finding.id for finding in self.findings() if finding.status == "ok" and finding.severity >= level}
        return [cell for cell in self.cells if cell.pair.id in found]

    def accuracy(self, setting: Setting = AS_DEPLOYED) -> Accuracy | None:
        return Accuracy.of(self._records(setting))

    def frontier(self, cell: Cell, finding: Finding) -> dict[str, Any] | None:
        """What each candidate leaves of the finding; None where none was tried."""
        points = []
        for setting in self.candidates:
            if not self._outcomes([Strike(cell.pair, setting, seed) for seed in self.seeds]):
                continue
            claim = guarantees(self._records(setting))
            points.append(
                Point(
                    setting,
                    self.finding(cell, setting),
                    self.accuracy(setting),
                    claim["epsilon"],
                    claim["delta"],
                )
            )
        return frontier_json(finding, self.accuracy(), points) if points else None

    def result(self, accepted: Accepted, today: date) -> dict[str, Any]:
        """The audit as JSON; docs/audit.md describes it."""
        cells = {cell.pair.id: cell for cell in self.cells}
        findings = self.findings()
        found = []
        for finding in findings:
            cell = cells[finding.id]
            frontier = self.frontier(cell, finding) if finding.status == "ok" else None
            reason = accepted.reason(finding.id, today)
            found.append(
                {**finding.as_json(), "accepted": reason, "defenses": frontier, "repeat": self._command(cell.pair)}
            )
        accuracy = self.accuracy()
        records = self._records(AS_DEPLOYED)
        return {
            "schema": SCHEMA,
            "fedspill": self.facts["fedspill"],
            "verdict": verdict(findings, found),
            "deployment": self.facts["about"]["description"],
            "target": "trace" if self.target.trace else "plan",
            "accuracy": accuracy.as_json() if accuracy else None,
            "findings": found,
            "families": families_json(found),
            "controls": [self._control(cell) for cell in self.answered()],
            "adversaries": self._adversaries(),
            "classes": self.facts["about"]["classes"],
            "defense_checks": (checks := self._checks(records)),
            "events": [
                *(said_of(Check(**check)) for check in checks if check["on"] is False),
                *[event for outcome in records for event in outcome.get("events", [])][:EVENTS],
            ],
            "cannot_tell": self._cannot_tell(findings),
            "severity_rule": RULE,
            "accepted": accepted.as_json(today, {finding.id for finding in findings}),
            "provenance": self._provenance(records),
            "plan": self.target.plan.model_dump(mode="json"),
            "timing": {"seconds": round(sum(stored.seconds for stored in self._results.values()), 1)},
        }

    def _outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        found = (self._results.get(job.key(self.target.code)) for job in jobs)
        return [stored.outcome for stored in found if isinstance(stored, Stored)]

    def _records(self, setting: Setting) -> list[Outcome]:
        return self._outcomes([Record(setting, seed) for seed in self.seeds])

    def _checks(self, records: Sequence[Outcome]) -> list[dict[str, Any]]:
        """Whether each configured defense is really on; of several repeats the worst answer."""
        every = [check for outcome in records for check in outcome.get("checks", [])]
        every += self.facts["about"].get("checks", [])
        worst: dict[str, dict[str, Any]] = {}
        for check in sorted(every, key=lambda check: (False, None, True).index(check["on"])):
            worst.setdefault(check["defense"], check)
        return list(worst.values())

    def _control(self, cell: Cell) -> dict[str, Any]:
        missing: Outcome = {"status": "errored", "why": "did not run"}
        outcome = next(iter(self._outcomes([Control(cell.pair)])), missing)
        parts = {name: outcome.get(name) for name in ("positive", "negative")}
        passed = outcome["status"] == "ok" and all(part and part["passed"] for part in parts.values())
        return {
            "id": cell.pair.id,
            "attack": cell.pair.attack,
            "adversary": cell.pair.adversary,
            "passed": passed,
            **parts,
            "why": outcome.get("why", ""),
        }

    def _adversaries(self) -> list[dict[str, Any]]:
        names = dict.fromkeys(cell.pair.adversary for cell in self.cells)
        return [
            {
                "name": name,
                "title": ADVERSARIES[name].title,
                "sees": [str(channel) for channel in sorted(ADVERSARIES[name].sees)],
                "knows": sorted(ADVERSARIES[name].knows),
                "does": sorted(ADVERSARIES[name].does),
            }
            for name in names
        ]

    def _command(self, pair: Pair) -> str:
        """What repeats the first strike of this pair alone."""
        seed = self.seeds[0]
        words = ["fedspill", "attack", pair.attack, "--adversary", pair.adversary]
        words += ["--trace", str(trace_folder(self.target, AS_DEPLOYED, seed))]
        words += ["--seed", str(seed_of(seed, pair.attack, pair.adversary))]
        for key, value in sorted(pair.given.items()):
            words += ["--set", f"{key}={value}"]
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
        if any(finding.status in ("errored", "unscored") for finding in findings):
            said.append("Anything about the attacks that errored or could not be scored: they count as neither.")
        return said

    def _provenance(self, records: Sequence[Outcome]) -> dict[str, Any]:
        return {
            "seeds": list(self.seeds),
            "code": self.target.code,
            "plan": hashlib.sha256(dump_json(self.target.plan.essence())).hexdigest(),
            "plan_file": self.facts["plan_file"],
            "traces": [outcome["trace"] for outcome in records if outcome["status"] == "ok"] or self.facts["traces"],
            "versions": self.facts["versions"],
            "show_data": self.target.show_data,
        }


EVENTS = 50  # how many events of the federation a report lists


def verdict(findings: Sequence[Finding], as_json: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The worst finding, how many of each, and whether everything was measured."""
    scored = [finding for finding in findings if finding.status == "ok"]
    worst = max((finding.severity for finding in scored), default=None)
    status = Counter(finding.status for finding in findings)
    level = Counter(finding.severity.word for finding in scored)
    tried = [point for finding in as_json if finding["defenses"] for point in finding["defenses"]["tried"]]
    return {
        "worst": worst.word if worst is not None else None,
        "complete": status["errored"] + status["unscored"] == 0
        and not any(finding.errors for finding in findings)
        # An attack that a defense leaves without an answer is a result of that defense, not a gap.
        and not any(point["status"] == "errored" for point in tried),
        "accepted": sum(finding["accepted"] is not None for finding in as_json),
        "severities": {severity.word: level[severity.word] for severity in reversed(Severity)},
        "statuses": {name: status[name] for name in ("ok", "unscored", "errored", "skipped")},
    }
