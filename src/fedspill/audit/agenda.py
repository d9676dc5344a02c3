"""The agenda of an audit: a unit is run as soon as what it needs is known, first those that others
wait for, then the longest.

No result depends on the order. It keeps workers from waiting for each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import final

from fedspill.audit.cost_estimate import COSTS, OTHERS
from fedspill.audit.jobs import AttackJob, ControlJob, Job, RecordJob, TwinAttackJob
from fedspill.audit.result_from_store import StoredAudit
from fedspill.audit.store import Store, Stored
from fedspill.audit.target import AS_DEPLOYED
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
        self._ready: list[tuple[int, float, int, Job]] = []
        self._seen = set[str]()
        self._number = count()

    def run(self, jobs: Iterable[Job], follow: Follow = nothing) -> None:
        """Until nothing is left of these and of what follows."""
        self._seen.clear()
        self._put(jobs, follow)
        for done in self._workers.run(self._take):
            self._store.add(self._key(done.job), done.job, done.outcome, done.seconds)
            self.state.learn(done.job, Stored(done.outcome, done.seconds))
            self._watcher.done(done)
            self._put(follow(done), follow)

    def _put(self, jobs: Iterable[Job], follow: Follow) -> None:
        for job in jobs:
            if self._key(job) in self._seen:
                continue
            self._seen.add(self._key(job))
            if (stored := self.state.known(job)) is None:
                heapq.heappush(self._ready, (stage_of(job), -self._seconds(job), next(self._number), job))
            else:
                done = Done(job, stored.outcome, stored.seconds)
                self._watcher.done(done)
                self._put(follow(done), follow)

    def _take(self) -> Job | None:
        return heapq.heappop(self._ready)[-1] if self._ready else None

    def _key(self, job: Job) -> str:
        return job.key(self.state.target.code)

    def _seconds(self, job: Job) -> float:
        """About how long it takes: with a defense as long as without; else what such attacks usually take."""
        match job:
            case AttackJob() if job.setting.chosen:
                before = self.state.known(AttackJob(job.pair, AS_DEPLOYED, job.seed))
                return before.seconds if before else 0.0
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
