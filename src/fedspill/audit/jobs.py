"""Jobs: the three kinds of work of an audit, each a pure function of the plan, small enough to lose, JSON both ways.

Record: run the federation with a setting of defenses and a seed, and record it.
Strike: run an attack by an adversary on such a recording, and measure what came out.
Control: run the attack where it must find something, and where there is nothing to find.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, TypeAlias, final

from fedspill.attacks.base import ActiveAttack
from fedspill.audit.bench import Bench, Setting
from fedspill.audit.controls import run_control
from fedspill.audit.matrix import Pair
from fedspill.data.base import Examples
from fedspill.errors import FedspillError, NotApplicable, NothingToGuess, NotKnown, NotScored
from fedspill.files import dump_json
from fedspill.guesses import Guess
from fedspill.metrics.base import Metric
from fedspill.registry import entries, make
from fedspill.seeds import seed_of
from fedspill.trace import Trace, View

Outcome: TypeAlias = dict[str, Any]


class Job(ABC):
    """One unit of work."""

    kind: ClassVar[str]

    @abstractmethod
    def run(self, bench: Bench) -> Outcome:
        """What came of it; runs in a worker process."""

    @abstractmethod
    def title(self) -> str:
        """For people who watch."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self: ...

    @final
    def key(self, code: str) -> str:
        """Same work by the same code, same key."""
        return hashlib.sha256(dump_json([code, self.as_json()])).hexdigest()[:32]


@final
@dataclass(frozen=True)
class Record(Job):
    """Runs and records the federation of one setting and seed; tells its accuracy."""

    kind: ClassVar[str] = "record"

    setting: Setting
    seed: int

    def run(self, bench: Bench) -> Outcome:
        return bench.record(self.setting, self.seed)

    def title(self) -> str:
        return f"federation, {self.setting.label}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "setting": self.setting.as_json(), "seed": self.seed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(Setting.from_json(value["setting"]), value["seed"])


@final
@dataclass(frozen=True)
class Strike(Job):
    """One attack by one adversary on one recording."""

    kind: ClassVar[str] = "strike"

    pair: Pair
    setting: Setting
    seed: int

    def run(self, bench: Bench) -> Outcome:
        attack = self.pair.make()
        if isinstance(attack, ActiveAttack):
            try:
                trace, known = bench.siege(attack, self.pair.threat, self.setting, self.seed)
            except (NotKnown, NotApplicable) as error:
                return {"status": "skipped", "why": str(error)}
            except FedspillError as error:
                return {"status": "errored", "why": str(error)}
            return strike(self.pair, trace, known, self.seed, bench.show_data, bench.clients(self.seed))
        recorded = bench.trace(self.setting, self.seed)
        known, clients = bench.knowledge(self.setting, self.seed), bench.clients(self.seed)
        return strike(self.pair, recorded, known, self.seed, bench.show_data, clients)

    def title(self) -> str:
        return f"{self.pair.id}, {self.setting.label}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pair": asdict(self.pair), "setting": self.setting.as_json(), "seed": self.seed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(Pair(**value["pair"]), Setting.from_json(value["setting"]), value["seed"])


@final
@dataclass(frozen=True)
class Control(Job):
    """Both controls of one attack by one adversary."""

    kind: ClassVar[str] = "control"

    pair: Pair

    def run(self, bench: Bench) -> Outcome:
        return run_control(self.pair)

    def title(self) -> str:
        return f"controls of {self.pair.id}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pair": asdict(self.pair)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(Pair(**value["pair"]))


_KINDS: dict[str, type[Job]] = {kind.kind: kind for kind in (Record, Strike, Control)}


def job_from(value: Mapping[str, Any]) -> Job:
    """The job that was written as `value`."""
    return _KINDS[value["kind"]].from_json(value)


def strike(
    pair: Pair,
    trace: Trace,
    knowledge: Mapping[str, Any],
    seed: int,
    show_data: bool,
    clients: Sequence[Examples] = (),
) -> Outcome:
    """The straight line: view, attack, guess; only then the truth, metrics, measurements."""
    attack, threat = pair.make(), pair.threat
    view: View = trace.view(threat, me="client:0", knowledge=knowledge)
    try:
        guess = attack(view, seed=seed_of(seed, attack.name, threat.name))
    except (NotKnown, NotApplicable) as error:
        return {"status": "skipped", "why": str(error)}
    except FedspillError as error:
        return {"status": "errored", "why": str(error)}
    truth = trace.truth().beside(clients)
    headline: Metric = make("metrics", attack.guesses.headline)
    measured: dict[str, Any] = {}
    for metric in (headline, *_other_metrics(guess, headline)):
        try:
            result = metric.measure(guess, truth)
        except NotScored as error:
            if metric is headline:
                status = "skipped" if isinstance(error, NothingToGuess) else "unscored"
                return {"status": status, "why": error.problem}
            continue  # the headline stands without it
        if not bool(result.values.isfinite().all() and result.chance.isfinite().all()):
            return {"status": "unscored", "why": f"{metric.name}: a value is not finite"}
        measured[metric.name] = {
            "values": [float(value) for value in result.values],
            "chance": [float(value) for value in result.chance],
            "trials": None if result.trials is None else [int(value) for value in result.trials],
        }
    return {
        "status": "ok",
        "metric": headline.name,
        "measured": measured,
        "rounds": [origin.round for origin in guess.of],
        "notes": list(guess.notes),
        "used": sorted(view.used),
        "evidence": [item.as_json() for item in headline.evidence(guess, truth, private=show_data)],
    }


def _other_metrics(guess: Guess, headline: Metric) -> list[Metric]:
    every: list[Metric] = [make("metrics", entry.name) for entry in entries("metrics")]
    return [metric for metric in every if metric.name != headline.name and isinstance(guess, metric.guesses)]
