"""The agenda: a unit starts as soon as what it needs is there and not before; of those that can, the longest first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import pytest
from audit_kit import audit, tiny

from fedspill.audit.agenda import Agenda
from fedspill.audit.course import Course
from fedspill.audit.jobs import AttackJob, ControlJob, Job, RecordJob
from fedspill.audit.result_from_store import StoredAudit
from fedspill.audit.store import Store
from fedspill.audit.target import AS_DEPLOYED
from fedspill.audit.watcher import Quiet
from fedspill.audit.worker_pool import Done, Take, Workers


@final
class Replayed(Workers):
    """So many at a time; each comes to what it came to before. Who begins first ends first, the slow ones last."""

    def __init__(self, audit: StoredAudit, count: int, slow: str = "") -> None:
        self._audit, self._count, self._slow = audit, count, slow
        self.events: list[tuple[str, Job]] = []

    def run(self, take: Take) -> Iterator[Done]:
        running: list[Job] = []
        while True:
            while len(running) < self._count and (job := take()) is not None:
                self.events.append(("begins", job))
                running.append(job)
            if not running:
                return
            job = min(running, key=lambda job: isinstance(job, AttackJob) and job.pair.attack == self._slow)
            running.remove(job)
            self.events.append(("ends", job))
            stored = self._audit.known(job)
            assert stored is not None, job.title()
            yield Done(job, stored.outcome, stored.seconds)

    def close(self) -> None:
        pass

    def place(self, what: str, job: Job) -> int:
        return self.events.index((what, job))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoredAudit:
    """Two federations, attacks on updates and one that plants, with one defense tried."""
    folder = tmp_path_factory.mktemp("agenda") / "out"
    plan: dict[str, Any] = {
        "attacks": ["llbg", "ebi", "planted"],
        "adversaries": ["curious-server", "malicious-server-updates"],
        "candidates": [{"name": "clip-noise", "strengths": [{"sigma": 1.0}]}],
        "try_from": "low",
        "repeats": 2,
    }
    audit(tiny(**plan), folder)
    return StoredAudit(Store(folder, create=False), folder)


def replay(whole: StoredAudit, count: int, folder: Path, slow: str = "") -> Replayed:
    store = Store(folder, create=True)
    store.note(whole.facts)
    workers = Replayed(whole, count, slow)
    Course(store, StoredAudit(store, folder), workers, Quiet()).run()
    assert {key: stored.outcome for key, stored in store.results().items()} == {
        key: stored.outcome for key, stored in Store(whole.target.folder, create=False).results().items()
    }
    return workers


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_nothing_begins_before_what_it_needs(whole: StoredAudit, count: int, tmp_path: Path) -> None:
    ran = replay(whole, count, tmp_path)
    begun = [job for what, job in ran.events if what == "begins"]
    assert len(begun) == len({job.key("") for job in begun})  # and nothing twice
    attacks = [job for job in begun if isinstance(job, AttackJob)]
    for job in attacks:
        if job.setting.chosen or not job.pair.facts.active:
            assert ran.place("ends", RecordJob(job.setting, job.seed)) < ran.place("begins", job), job.title()
    for job in begun:
        if isinstance(job, ControlJob):
            ended = [ran.place("ends", one) for one in attacks if one.pair == job.pair and not one.setting.chosen]
            assert min(ended) < ran.place("begins", job)
    leaks = {cell.pair.id: (cell.family, cell.pair.adversary) for cell in whole.cells}
    for job in attacks:
        if job.setting.chosen:
            group = leaks[job.pair.id]
            before = [one for one in begun if isinstance(one, AttackJob | ControlJob) and leaks[one.pair.id] == group]
            deployed = [one for one in before if isinstance(one, ControlJob) or one.setting == AS_DEPLOYED]
            assert all(ran.place("ends", one) < ran.place("begins", job) for one in deployed)


def test_an_attack_that_needs_no_recording_waits_for_none(whole: StoredAudit, tmp_path: Path) -> None:
    ran = replay(whole, 1000, tmp_path)
    first = [job for what, job in ran.events[: [what for what, _ in ran.events].index("ends")]]
    assert {type(job) for job in first} == {RecordJob, AttackJob}
    assert {job.pair.attack for job in first if isinstance(job, AttackJob)} == {"planted"}


def test_one_leak_is_tried_behind_defenses_while_another_is_still_measured(whole: StoredAudit, tmp_path: Path) -> None:
    """In waves, all would wait for the slowest."""
    ran = replay(whole, 1000, tmp_path, slow="planted")
    events = list(enumerate(ran.events))
    tried = [place for place, (_, job) in events if isinstance(job, AttackJob) and job.setting.chosen]
    deployed = [(place, job) for place, (_, job) in events if isinstance(job, AttackJob) and not job.setting.chosen]
    slow = [place for place, job in deployed if job.pair.attack == "planted"]
    assert slow
    assert min(tried) < max(slow)


def test_the_longest_goes_first(whole: StoredAudit, tmp_path: Path) -> None:
    """With a defense, what took long with another one or with none."""
    store = Store(tmp_path, create=True)
    store.note(whole.facts)
    workers = Replayed(whole, 1)
    agenda = Agenda(store, StoredAudit(store, tmp_path), workers, Quiet())
    agenda.run([job for job in every_attack(whole) if not job.setting.chosen])
    took: dict[str, float] = {}
    for _, job in workers.events:
        stored = whole.known(job)
        assert isinstance(job, AttackJob)
        assert stored is not None
        took[job.pair.id] = max(took.get(job.pair.id, 0.0), stored.seconds)
    workers.events.clear()
    agenda.run([job for job in every_attack(whole) if job.setting.chosen])
    begun = [job for what, job in workers.events if what == "begins" and isinstance(job, AttackJob)]
    assert len({job.pair.id for job in begun}) > 1
    assert begun[0].pair.id == max({job.pair.id for job in begun}, key=lambda name: took[name])


def every_attack(whole: StoredAudit) -> list[AttackJob]:
    """Those that were run."""
    settings = [AS_DEPLOYED, *whole.candidates]
    jobs = [AttackJob(cell.pair, setting, seed) for cell in whole.cells for setting in settings for seed in whole.seeds]
    return [job for job in jobs if whole.known(job)]
