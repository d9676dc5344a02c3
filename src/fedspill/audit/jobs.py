"""Jobs: the kinds of work of an audit, each a pure function of the plan, small enough to lose, JSON both ways.

RecordJob: run the federation with a setting of defenses and a seed, and record it.
AttackJob: run an attack by an adversary on such a recording, and measure what came out.
ControlJob: run the attack where it must find something, and where there is nothing to find.
ClaimJob: call a deployed defense that claims differential privacy with canaries.
TwinsJob, TwinAttackJob: run a recorded federation again with proxy data, and the attack on it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, final

from fedspill.attack_run import Outcome, score_guess
from fedspill.audit.controls import run_control
from fedspill.audit.likeness import compared
from fedspill.audit.matrix import Pair
from fedspill.audit.outcomes import ClaimOutcome, ControlOutcome, JobOutcome, RecordOutcome, TwinsOutcome
from fedspill.audit.recordings import Recordings
from fedspill.audit.sealed_attack import SealedAttack, is_foreign
from fedspill.audit.target import AS_DEPLOYED, DefenseSetting
from fedspill.deployment.quantities import quantities_of
from fedspill.errors import AttackCrashed, FedspillError, NotApplicable, NotKnown
from fedspill.files import dump_json
from fedspill.registry import entries, find
from fedspill.seeds import seed_of
from fedspill.threat import ALTERING
from fedspill.trace import Trace


class Job(ABC):
    """One unit of work."""

    kind: ClassVar[str]
    outcome: ClassVar[type[JobOutcome]]

    @abstractmethod
    def run(self, recordings: Recordings) -> JobOutcome:
        """What came of it; runs in a worker process."""

    @abstractmethod
    def title(self) -> str:
        """For people who watch."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self: ...

    def runs_foreign_code(self) -> bool:
        """Whether code of others runs in the worker itself; then no other job may follow it there."""
        return any(entry.is_plugin for entry in entries("metrics"))

    @final
    def key(self, code: str) -> str:
        """Same work by the same code, same key."""
        return hashlib.sha256(dump_json([code, self.as_json()])).hexdigest()[:32]


@final
@dataclass(frozen=True)
class RecordJob(Job):
    """Runs and records the federation of one setting and seed; tells its accuracy."""

    kind: ClassVar[str] = "record"
    outcome = RecordOutcome

    setting: DefenseSetting
    seed: int

    def run(self, recordings: Recordings) -> RecordOutcome:
        return recordings.record(self.setting, self.seed)

    def runs_foreign_code(self) -> bool:
        return super().runs_foreign_code() or _has_foreign_defense(self.setting)

    def title(self) -> str:
        return f"federation, {self.setting.label}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "setting": self.setting.as_json(), "seed": self.seed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(DefenseSetting.from_json(value["setting"]), value["seed"])


@final
@dataclass(frozen=True)
class AttackJob(Job):
    """One attack by one adversary on one recording."""

    kind: ClassVar[str] = "attack"
    outcome = Outcome

    pair: Pair
    setting: DefenseSetting
    seed: int

    def run(self, recordings: Recordings) -> Outcome:
        """An attack that its adversary cannot run here is skipped; one that fails is errored."""
        pair = self.pair
        trace: Trace
        try:
            facts, leak = pair.facts, pair.leak
            with recordings.attack_process(pair.attack) as process:
                attack = SealedAttack(
                    process, pair.attack, pair.options, pair.threat, None if facts.active else pair.threat.me
                )
                if facts.active:
                    trace, _ = recordings.planted(attack, self.setting, self.seed)
                else:
                    altering = facts.needed().does & ALTERING
                    if altering:
                        trace = recordings.altered(self.setting, self.seed, altering)
                    else:
                        trace = recordings.trace(self.setting, self.seed)
                    attack.begin(trace, recordings.knowledge(self.setting, self.seed))
                guess = attack.guess(leak.guess, seed_of(self.seed, pair.attack, pair.adversary))
                outcome = score_guess(
                    leak,
                    guess,
                    recordings.truth(trace, self.seed),
                    used=attack.used,
                    metrics=recordings.metrics(),
                    show_data=recordings.show_data,
                )
            return outcome.model_copy(update={"notes": [*outcome.notes, *process.warnings(pair.attack)]})
        except (NotKnown, NotApplicable) as error:
            return Outcome(status="skipped", why=str(error))
        except AttackCrashed as error:
            return self._crashed(recordings, error)
        except FedspillError as error:
            return Outcome(status="errored", why=str(error))

    def _crashed(self, recordings: Recordings, error: AttackCrashed) -> Outcome:
        """Of ours, on a model that is none of ours: not supported there. Else a fault of whoever wrote the attack."""
        if is_foreign(self.pair.attack) or not recordings.is_own_model:
            return Outcome(status="errored", why=str(error))
        return Outcome(status="skipped", why=f"not supported on this model: {error}")

    def runs_foreign_code(self) -> bool:
        return super().runs_foreign_code() or _has_foreign_defense(self.setting) or _has_foreign_leak(self.pair)

    def title(self) -> str:
        return f"{self.pair.id}, {self.setting.label}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pair": asdict(self.pair), "setting": self.setting.as_json(), "seed": self.seed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(Pair(**value["pair"]), DefenseSetting.from_json(value["setting"]), value["seed"])


@final
@dataclass(frozen=True)
class TwinsJob(Job):
    """Makes the twins of a recording and tests whether they are like it."""

    kind: ClassVar[str] = "twins"
    outcome = TwinsOutcome

    seeds: tuple[int, ...]

    def run(self, recordings: Recordings) -> TwinsOutcome:
        try:
            twin = recordings.twin()
            twins = [quantities_of(recordings.twin_trace(seed)) for seed in self.seeds]
            recorded, others = compared(quantities_of(recordings.trace(AS_DEPLOYED, 0)), twins)
        except FedspillError as error:  # no twin, or proxy data or a model that cannot be had: the readings stand
            return TwinsOutcome(status="skipped", why=str(error))
        return TwinsOutcome(status="ok", mix=twin.mix, chained=twin.chains_rounds, recorded=recorded, twins=others)

    def title(self) -> str:
        return f"{len(self.seeds)} twins of the recording"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(tuple(value["seeds"]))


@final
@dataclass(frozen=True)
class TwinAttackJob(Job):
    """One attack by one adversary on one twin."""

    kind: ClassVar[str] = "twin-attack"
    outcome = Outcome

    pair: Pair
    seed: int

    def run(self, recordings: Recordings) -> Outcome:
        pair = self.pair
        try:
            twin, leak = recordings.twin().deployment(self.seed), pair.leak
            trace = recordings.twin_trace(self.seed)
            with recordings.attack_process(pair.attack) as process:
                attack = SealedAttack(process, pair.attack, pair.options, pair.threat, pair.threat.me)
                attack.begin(trace, twin.knowledge())
                guess = attack.guess(leak.guess, seed_of(self.seed, pair.attack, pair.adversary))
            return score_guess(leak, guess, trace.truth().beside(twin.shares.clients), used=attack.used)
        except (NotKnown, NotApplicable) as error:
            return Outcome(status="skipped", why=str(error))
        except FedspillError as error:
            return Outcome(status="errored", why=str(error))

    def runs_foreign_code(self) -> bool:
        return super().runs_foreign_code() or is_foreign(self.pair.attack)

    def title(self) -> str:
        return f"{self.pair.id} on a twin"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pair": asdict(self.pair), "seed": self.seed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(Pair(**value["pair"]), value["seed"])


@final
@dataclass(frozen=True)
class ControlJob(Job):
    """Both controls of one attack by one adversary."""

    kind: ClassVar[str] = "control"
    outcome = ControlOutcome

    pair: Pair

    def run(self, recordings: Recordings) -> ControlOutcome:
        with recordings.attack_process(self.pair.attack) as process:
            return run_control(self.pair, process, recordings.own_model())

    def runs_foreign_code(self) -> bool:
        return super().runs_foreign_code() or _has_foreign_leak(self.pair)

    def title(self) -> str:
        return f"controls of {self.pair.id}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pair": asdict(self.pair)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(Pair(**value["pair"]))


@final
@dataclass(frozen=True)
class ClaimJob(Job):
    """The claim of one deployed defense: is the privacy really on."""

    kind: ClassVar[str] = "claim"
    outcome = ClaimOutcome

    defense: str
    place: int  # among the plan's defenses
    seed: int

    def run(self, recordings: Recordings) -> ClaimOutcome:
        claim = recordings.tested_claim(self.place, self.seed)
        return ClaimOutcome(status="skipped" if claim is None else "ok", claim=claim)

    def runs_foreign_code(self) -> bool:
        return super().runs_foreign_code() or find("defenses", self.defense).is_plugin

    def title(self) -> str:
        return f"what {self.defense} claims"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "defense": self.defense, "place": self.place, "seed": self.seed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(value["defense"], value["place"], value["seed"])


def _has_foreign_defense(setting: DefenseSetting) -> bool:
    return any(find("defenses", defense.name).is_plugin for defense in setting.chosen)


def _has_foreign_leak(pair: Pair) -> bool:
    """Whether metrics of others see the truth; the attack itself never runs in the worker."""
    if not is_foreign(pair.attack):
        return False
    try:
        return pair.facts.leak not in {entry.name for entry in entries("leaks") if not entry.is_plugin}
    except FedspillError:
        return False


_JOBS: tuple[type[Job], ...] = (RecordJob, AttackJob, ControlJob, ClaimJob, TwinsJob, TwinAttackJob)
_KINDS: dict[str, type[Job]] = {kind.kind: kind for kind in _JOBS}


def job_from(value: Mapping[str, Any]) -> Job:
    """The job that was written as `value`."""
    return _KINDS[value["kind"]].from_json(value)


def outcome_from(kind: str, value: Mapping[str, Any]) -> JobOutcome:
    """What a job of that kind came to, as it was written."""
    return _KINDS[kind].outcome.model_validate(value)
