"""The course of an audit: what is run first, and what follows from what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from fedspill.audit.advice import keeps_its_promise
from fedspill.audit.agenda import Agenda
from fedspill.audit.jobs import AttackJob, ControlJob, Job, RecordJob, TwinAttackJob, TwinsJob
from fedspill.audit.matrix import Pair
from fedspill.audit.result_from_store import Cell, StoredAudit
from fedspill.audit.store import Store
from fedspill.audit.target import AS_DEPLOYED, DefenseSetting
from fedspill.audit.watcher import Watcher
from fedspill.audit.worker_pool import Done, Workers
from fedspill.errors import FedspillError
from fedspill.threat import ALTERING


@final
class Course:
    """Of one audit, from its first recording to its last combination of defenses."""

    def __init__(self, store: Store, state: StoredAudit, workers: Workers, watcher: Watcher) -> None:
        self._store, self._state, self._watcher = store, state, watcher
        self._agenda = Agenda(store, state, workers, watcher)
        self._is_recording = state.target.trace is not None
        self._runnable = [cell for cell in state.cells if not cell.lacks]
        self._tried: dict[DefenseSetting, list[Cell]] = {}  # with each candidate, what it is tried on
        self._judged = set[tuple[str, str]]()  # leaks and adversaries whose findings are complete

    def run(self) -> None:
        """What the store has is not run again."""
        seeds = self._state.seeds
        records: list[Job] = [] if self._is_recording else [RecordJob(AS_DEPLOYED, seed) for seed in seeds]
        at_once = [cell.pair for cell in self._runnable if self._is_recording or _needs_no_recording(cell.pair)]
        first: list[Job] = [AttackJob(pair, AS_DEPLOYED, seed) for seed in seeds for pair in at_once]
        claims = self._state.claim_jobs()
        self._watcher.began(self._state.cells, len(records) + len(seeds) * len(self._runnable) + len(claims))
        self._agenda.run([*records, *first, *claims], self._follow)
        if self._is_recording and self._state.target.twins:
            self._try_twins()
        if not self._is_recording:
            self._try_together()

    def _follow(self, done: Done) -> Iterator[Job]:
        """Recordings are attacked; an attack that ran is checked; what leaks is tried again behind each defense."""
        match done.job:
            case RecordJob(setting, seed) if not setting.chosen:
                self._refuse_failed(done)
                yield from (AttackJob(cell.pair, setting, seed) for cell in self._runnable)
            case RecordJob(setting, seed) if done.outcome.status == "ok":
                yield from (AttackJob(cell.pair, setting, seed) for cell in self._tried[setting])
            case AttackJob(pair, setting) if not setting.chosen:
                if done.outcome.status != "skipped":
                    control = ControlJob(pair)
                    self._watcher.more(0 if self._state.known(control) else 1)
                    yield control
                yield from self._trials(pair)
            case ControlJob(pair):
                yield from self._trials(pair)

    def _refuse_failed(self, done: Done) -> None:
        """Without the deployment's own recording there is nothing to audit; the next run tries again."""
        if done.outcome.status != "ok":
            self._store.drop([done.job.key(self._state.target.code)])
            raise FedspillError(f"The {done.job.title()} could not be run: {done.outcome.why}.")

    def _trials(self, pair: Pair) -> Iterator[Job]:
        """Each candidate alone, once the findings on this leak by this adversary are all there."""
        (own,) = [cell for cell in self._runnable if cell.pair.id == pair.id]
        group = own.family, own.pair.adversary
        cells = [cell for cell in self._runnable if (cell.family, cell.pair.adversary) == group]
        if self._is_recording or group in self._judged or not all(map(self._is_complete, cells)):
            return
        self._judged.add(group)
        for setting, tried in self._state.trials(cells):
            new = setting not in self._tried
            self._tried.setdefault(setting, []).extend(tried)
            self._watcher.more(len(self._state.seeds) * (len(tried) + new))
            for seed in self._state.seeds:
                record = RecordJob(setting, seed)
                yield record
                recorded = self._state.known(record)
                if recorded is not None and recorded.outcome.status == "ok":
                    yield from (AttackJob(cell.pair, setting, seed) for cell in tried)

    def _is_complete(self, cell: Cell) -> bool:
        attacks = [AttackJob(cell.pair, AS_DEPLOYED, seed) for seed in self._state.seeds]
        if not all(self._state.known(attack) for attack in attacks):
            return False
        return not self._state.is_answered(cell) or self._state.known(ControlJob(cell.pair)) is not None

    def _try_twins(self) -> None:
        """The attacks that read something nobody knows the truth of, on twins whose truth is known."""
        state = self._state
        read = [cell.pair for cell in state.cells if state.finding(cell, AS_DEPLOYED).status == "read"]
        if not read:
            return
        seeds = state.target.twin_seeds

        def follow(done: Done) -> Iterator[Job]:
            if isinstance(done.job, TwinsJob) and done.outcome.status == "ok":
                self._watcher.more(len(seeds) * len(read))
                yield from (TwinAttackJob(pair, seed) for seed in seeds for pair in read)

        self._watcher.more(1)
        self._agenda.run([TwinsJob(seeds)], follow)

    def _try_together(self) -> None:
        """Combinations as one deployment against every attack, until one keeps what it promises."""
        for setting in self._state.proposals():
            self._run_together(setting)
            after = self._state.after(setting)
            if after is not None and keeps_its_promise(after.advice):
                return

    def _run_together(self, setting: DefenseSetting) -> None:
        records = [RecordJob(setting, seed) for seed in self._state.seeds]

        def attacks(cells: Sequence[Cell]) -> list[Job]:
            return [AttackJob(cell.pair, setting, seed) for seed in self._state.seeds for cell in cells]

        def follow(done: Done) -> Iterator[Job]:
            outcomes = [self._state.known(record) for record in records]
            if isinstance(done.job, RecordJob) and all(one and one.outcome.status == "ok" for one in outcomes):
                yield from attacks(self._runnable)

        at_once = attacks([cell for cell in self._runnable if _needs_no_recording(cell.pair)])
        self._watcher.more(len(records) + len(attacks(self._runnable)))
        self._agenda.run([*records, *at_once], follow)


def _needs_no_recording(pair: Pair) -> bool:
    """Whether the attack runs a federation of its own, in which it does other than agreed."""
    try:
        return pair.facts.active or bool(pair.facts.needed().does & ALTERING)
    except FedspillError:  # a faulty plug-in: its own job will say what is wrong
        return False
