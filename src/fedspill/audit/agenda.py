"""The agenda of an audit: a unit is run as soon as what it needs is known.

Those that others wait for go first, then the longest. No result depends on the order: it keeps workers from waiting for
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from fedspill.audit.cost_estimate import COSTS, OTHERS
from fedspill.audit.jobs import AttackJob, ControlJob, Job, RecordJob, TwinAttackJob
from fedspill.audit.result_from_store import StoredAudit
from fedspill.audit.store import Store, Stored
from fedspill.audit.watcher import Watcher
from fedspill.audit.worker_pool import Done, Workers

Follow = Callable[[Done], Iterable[Job]]  # what is ready once that is known


def nothing(_: Done) -> Iterable[Job]:
    """Nothing follows."""
    return ()


@final
class Agenda:
    """Runs jobs and what follows from them; those that the store has are not run again."""

    def __init__(self, store: Store, state: StoredAudit, workers: Workers, watcher: Watcher) -> None:
        self.state = state
        self._store, self._workers, self._watcher = store, workers, watcher
        self._ready: list[Job] = []
        self._seen = set[str]()
        self._took: dict[str, float] = {}  # the most seconds of an attack by an adversary, under whatever defense

    def run(self, jobs: Iterable[Job], follow: Follow = nothing) -> None:
        """Until nothing is left of these and of what follows."""
        self._seen.clear()
        self._put(jobs, follow)
        for done in self._workers.run(self._take):
            self._store.add(self._key(done.job), done.job, done.outcome, done.seconds)
            self.state.learn(done.job, Stored(done.outcome, done.seconds))
            self._note(done, follow)

    def _note(self, done: Done, follow: Follow) -> None:
        if isinstance(done.job, AttackJob):
            pair = done.job.pair.id
            self._took[pair] = max(self._took.get(pair, 0.0), done.seconds)
        self._watcher.done(done)
        self._put(follow(done), follow)

    def _put(self, jobs: Iterable[Job], follow: Follow) -> None:
        for job in jobs:
            if self._key(job) in self._seen:
                continue
            self._seen.add(self._key(job))
            if (stored := self.state.known(job)) is None:
                self._ready.append(job)
            else:
                self._note(Done(job, stored.outcome, stored.seconds), follow)

    def _take(self) -> Job | None:
        if not self._ready:
            return None
        first = min(range(len(self._ready)), key=lambda place: self._urgency(self._ready[place]))
        return self._ready.pop(first)

    def _urgency(self, job: Job) -> tuple[int, float]:
        return stage_of(job), -self._seconds(job)

    def _key(self, job: Job) -> str:
        return job.key(self.state.target.code)

    def _seconds(self, job: Job) -> float:
        """About how long it takes: with a defense as long as with another, else what such attacks usually take."""
        match job:
            case AttackJob() if job.setting.chosen:
                return self._took.get(job.pair.id, 0.0)
            case AttackJob() | TwinAttackJob():
                return COSTS.get(job.pair.attack, OTHERS).once
            case ControlJob():
                return COSTS.get(job.pair.attack, OTHERS).control
        return float("inf")


def stage_of(job: Job) -> int:
    """Attacks wait for recordings, and defenses for what the attacks find without them."""
    match job:
        case RecordJob():
            return 2 if job.setting.chosen else 0
        case AttackJob():
            return 3 if job.setting.chosen else 1
    return 1
