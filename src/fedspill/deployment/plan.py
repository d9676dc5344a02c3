"""Plan: a deployment and what to try on it, as one TOML file or one Python object, checked whole."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedspill.deployment.toml_lines import line_of
from fedspill.errors import FedspillError, PlanError, UsageError
from fedspill.federation.horizontal import Settings
from fedspill.registry import Family, find, make
from fedspill.threat import FederationKind, adversary
from fedspill.trace import Keep
from fedspill.training import LocalTraining

Level = Literal["low", "medium", "high", "critical"]
SHARED_TOWERS = ("static", "labels")  # settings of vertical federations whose model is handed out to all
PRIVATE_TOWERS = (
    "optimizers",
    "predictions",
    "secure_sum",
    "hand_over",
)  # of those whose towers stay with their owners
VERTICAL = ("samples", "batches", "towers", *SHARED_TOWERS, *PRIVATE_TOWERS)  # of vertical federations alone


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(BaseModel):
    """A registered thing by name, with its options beside it; a bare string is a name without options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def called(self) -> str:
        """What people call it: their own file or function by its name."""
        own = self.options.get("path") or self.options.get("factory")
        return Path(str(own)).name if own else self.name

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Candidate(_Part):
    """A defense to try, at several strengths; a bare string takes the strengths that the defense brings."""

    name: str
    strengths: tuple[dict[str, Any], ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class OptimizerPart(_Part):
    """How one party of a vertical federation trains its tower, or the active party the head."""

    optimizer: Literal["sgd", "adam", "adadelta"] = "sgd"
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)

    def training(self) -> LocalTraining:
        return LocalTraining(**self.model_dump())


class FederationPart(_Part):
    kind: Literal["horizontal", "vertical"] = "horizontal"
    engine: Literal["own", "flower"] = "own"  # who runs it; "flower" needs fedspill[flower]
    clients: int = Field(default=10, ge=1)
    rounds: int = Field(default=12, ge=1)
    clients_per_round: int | None = Field(default=None, ge=1)
    weighting: Literal["examples", "uniform"] = "examples"
    drop_out: float = Field(default=0.0, ge=0, lt=1)
    server_lr: float = Field(default=1.0, gt=0)
    secure_aggregation: bool = False
    # Of vertical ones alone; how many parties there are is the model's option `parties`.
    samples: int | None = Field(default=None, ge=1)  # None: all
    batches: Literal["random", "epochs", "anti-twins", "circulant"] = "random"
    static: bool = False  # the model stands still
    labels: Literal["server", "party"] = "server"  # who holds them
    towers: Literal["shared", "private"] = "shared"  # private: they and the head stay with their owners
    optimizers: tuple[OptimizerPart, ...] = ()  # of each party, then of the head; none: all as [training] says
    predictions: int = Field(default=0, ge=0)  # samples that the trained model is asked about
    secure_sum: bool = False  # embeddings meet in a protocol that shows none of them
    hand_over: bool = False  # parties give their trained towers to the party with the labels

    @property
    def has_private_towers(self) -> bool:
        return self.kind == "vertical" and self.towers == "private"

    @property
    def vertical_or_not(self) -> FederationKind:
        """Its kind, as adversaries and leaks have it."""
        if self.kind == "horizontal":
            return "horizontal"
        return "private towers" if self.has_private_towers else "shared towers"


class AdversaryDataPart(_Part):
    """What the adversary holds, taken out of the training data before clients get any."""

    per_class: int = Field(default=10, ge=0)
    shadow: int = Field(default=0, ge=0)
    # Of vertical federations with private towers, and of samples that are trained on:
    known_labels: int = Field(default=1, ge=0)  # of each class, that a party without labels knows
    pairs: int = Field(default=0, ge=0)  # samples of whom the party with the labels knows what another party holds


class TargetsPart(_Part):
    """The records that a malicious server looks for, one a round once `after` honest rounds have passed."""

    attribute: str | None = None  # a yes-or-no column of a table; none: membership alone is asked
    members: int = Field(default=16, ge=0)  # of the clients' data
    others: int = Field(default=16, ge=0)  # of the test split
    after: int = Field(default=5, ge=0)


class MembershipPart(_Part):
    """The records that passive adversaries ask about: at most so many, members evenly over clients."""

    members: int = Field(default=200, ge=0)  # of the clients' data
    others: int = Field(default=1000, ge=0)  # of the test split


class RecordPart(_Part):
    """What is recorded; everything by default."""

    leaks: tuple[str, ...] | None = None  # only what the attacks on these leaks read
    rounds: tuple[int, ...] | None = None
    clients: tuple[int, ...] | None = None
    tensors: tuple[str, ...] | None = None

    def keep(self) -> Keep:
        return Keep(
            rounds=None if self.rounds is None else frozenset(self.rounds),
            clients=None if self.clients is None else frozenset(f"client:{index}" for index in self.clients),
            tensors=self.tensors,
        )


class LimitsPart(_Part):
    """What one unit of work may cost before it is stopped and reported as errored."""

    seconds: float = Field(default=600.0, gt=0)
    memory_mb: int = Field(default=4096, ge=512)  # torch alone takes about 400
    gpu_share: float = Field(default=1.0, gt=0, le=1)  # of a GPU; a cluster sets so much aside, and stops nobody


class Plan(_Part):
    """By default twenty clients with their own mix of handwritten digits, five a round, trained to nine of ten right.

    What a federation leaks that has learned nothing is no news.
    """

    # What is deployed.
    data: Choice = Choice(name="digits")
    model: Choice = Choice(name="mlp", widths=[64])  # type: ignore[call-arg]
    partition: Choice = Choice(name="dirichlet", alpha=0.5)  # type: ignore[call-arg]
    federation: FederationPart = FederationPart(clients=20, rounds=60, clients_per_round=5)
    training: LocalTraining = Field(default_factory=lambda: LocalTraining(lr=0.5, batch_size=64))
    defenses: tuple[Choice, ...] = ()
    # Who attacks, with what.
    adversaries: tuple[str, ...] | None = None  # None: all that the deployment allows
    attacks: tuple[Choice, ...] | None = None  # None: all that fit
    metrics: tuple[Choice, ...] | None = None  # beside those of each leak
    adversary_data: AdversaryDataPart = AdversaryDataPart()
    targets: TargetsPart = TargetsPart()
    membership: MembershipPart = MembershipPart()
    # What is tried against it: from this severity on, these defenses (None: all that bring strengths).
    try_from: Level = "medium"
    candidates: tuple[Candidate, ...] | None = None
    # How it is run.
    seed: int = Field(default=7, ge=0)
    repeats: int = Field(default=1, ge=1)
    record: RecordPart = RecordPart()
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    workers: int = Field(default=1, ge=1)
    limits: LimitsPart = LimitsPart()
    fail_on: Level | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """One seed per repeat; each makes its own shares, model and noise."""
        return tuple(range(self.seed, self.seed + self.repeats))

    @property
    def is_split_learning(self) -> bool:
        """Whether one client and a server share a network; models whose name begins with split- know no other way."""
        parties = self.model.options.get("parties", 1 if self.model.name.startswith("split-") else 2)
        return self.federation.has_private_towers and parties == 1

    def with_seed(self, seed: int) -> Plan:
        return self.model_copy(update={"seed": seed, "repeats": 1})

    def settings(self) -> Settings:
        return Settings(
            **self.federation.model_dump(exclude={"kind", "engine", "clients", *VERTICAL}),
            training=self.training,
            defenses=tuple(make("defenses", choice.name, choice.options) for choice in self.defenses),
        )

    def essence(self) -> dict[str, Any]:
        """All that results depend on: two plans of equal essence are the same audit, whatever runs it and how fast."""
        unused: dict[str, Any] = {"workers": True, "limits": True, "fail_on": True}
        if self.metrics is None:
            unused["metrics"] = True
        if self.record.leaks is None:
            unused["record"] = {"leaks"}
        return self.model_dump(mode="json", exclude=unused)


def default_plan() -> Plan:
    """The default audit: the default federation; of its sixty rounds the first, some in the middle and the last.

    Tried are defenses that a deployment would choose from, at one strength each; a plan of your own tries all.
    """
    named = ("compression", "dp-sgd", "frozen-head", "guard", "mixed-classes", "secure-aggregation")
    chosen = [
        Candidate(name="clip-noise", strengths=({"clip": 1.0, "sigma": 0.1},)),
        Candidate(name="gradient-gate", strengths=({"fewest": 5.0},)),
        *(Candidate(name=name) for name in named),
    ]
    return Plan(record=RecordPart(rounds=(0, 1, 20, 21, 40, 41, 58, 59)), candidates=tuple(chosen))


def read_plan(path: Path | None) -> Plan:
    """The plan in a TOML file, or the default one; every mistake at once."""
    if path is None:
        return default_plan()
    try:
        text = _bounded(path)
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"Plan {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"Plan {path} is not TOML: {error}.") from None
    except RecursionError:
        raise UsageError(f"Plan {path} is nested too deeply.") from None
    except ValueError as error:  # a number with more digits than Python converts
        raise UsageError(f"Plan {path} is not TOML: {str(error)[:200]}.") from None
    make_importable(path.resolve().parent)
    return check_plan(content, str(path), text)


def make_importable(folder: Path) -> None:
    """Modules beside a plan are found, after all that is installed: a file there can hide no other module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# A plan is written by hand. What is far larger would keep the parser, or the search for what was meant, busy for long.
MOST_BYTES, MOST_TABLES, MOST_DOTS, MOST_DIGITS = 1 << 20, 200, 16, 400
MOST_MISTAKES = 50


def _bounded(path: Path) -> str:
    """The text of a plan, if it is one that a person could have written."""
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"Plan {path} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are read.")
    text = path.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    if sum(line.startswith("[") for line in lines) > MOST_TABLES:
        raise UsageError(f"Plan {path} has more than {MOST_TABLES} tables.")
    if any(line.partition("=")[0].count(".") > MOST_DOTS for line in lines):
        raise UsageError(f"Plan {path} has a key of more than {MOST_DOTS} parts.")
    if re.search(rf"[0-9_]{{{MOST_DIGITS}}}", text):
        raise UsageError(f"Plan {path} has a number of more than {MOST_DIGITS} digits.")
    return text


def check_plan(content: dict[str, Any], source: str, text: str = "") -> Plan:
    """A plan from plain values; raises PlanError with everything that is wrong, by line where the text is given."""
    mistakes = list(_shape_mistakes(content)) + list(_name_mistakes(content))
    if not mistakes:
        plan = Plan.model_validate(content)
        mistakes = list(_sense_mistakes(plan))
    if mistakes:
        first = mistakes[:MOST_MISTAKES]  # finding the line of each takes a while
        raise PlanError(source, [mistake.shown(text) for mistake in _in_order(first, text)])
    return plan


@dataclass(frozen=True)
class _Mistake:
    place: tuple[str | int, ...]
    problem: str
    value: object = None

    def line(self, text: str) -> int | None:
        return line_of(text, self.place, self.value) if text else None

    def shown(self, text: str) -> str:
        line = self.line(text)
        where = ".".join(str(part) for part in self.place)
        return f"line {line}, {where}: {self.problem}" if line else f"{where}: {self.problem}"


def _in_order(mistakes: list[_Mistake], text: str) -> list[_Mistake]:
    return sorted(mistakes, key=lambda mistake: mistake.line(text) or 0)


def _shape_mistakes(content: dict[str, Any]) -> Iterator[_Mistake]:
    """Unknown keys, wrong types, values out of range."""
    try:
        Plan.model_validate(content)
    except ValidationError as error:
        for item in error.errors()[:MOST_MISTAKES]:
            place, given = tuple(item["loc"]), item["input"]
            if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
                yield _Mistake(place, _unknown_key(place))
            elif item["type"] == "missing":
                yield _Mistake(place, "is missing")
            elif isinstance(item.get("ctx", {}).get("error"), FedspillError):
                yield _Mistake(place, str(item["ctx"]["error"]))
            else:
                yield _Mistake(place, f"{_lowered(item['msg'])}, got {_shown(given)}{_nearest(item)}", given)
    except FedspillError as error:
        yield _Mistake(("training",), str(error))


def _name_mistakes(content: dict[str, Any]) -> Iterator[_Mistake]:
    """Names that nothing has, and options that the named thing does not take."""
    for place, family, value in _choices(content):
        choice = Choice.model_validate(value)
        try:
            if family == "attacks" and find(family, choice.name).is_plugin:
                continue  # code of others is not run here; its own process will say what is wrong with it
            make(family, choice.name, choice.options)
        except FedspillError as error:
            option = next((option for option in choice.options if repr(option) in str(error)), "name")
            yield _Mistake((*place, option) if isinstance(value, dict) else place, str(error), choice.name)
    for index, value in enumerate(_listed(content.get("candidates"))):
        yield from _candidate_mistakes(("candidates", index), value)
    record = content.get("record")
    for index, name in enumerate(_listed(record.get("leaks")) if isinstance(record, dict) else ()):
        try:
            find("leaks", str(name))
        except FedspillError as error:
            yield _Mistake(("record", "leaks", index), str(error), name)
    for index, name in enumerate(_listed(content.get("adversaries"))):
        try:
            adversary(str(name))
        except FedspillError as error:
            yield _Mistake(("adversaries", index), str(error), name)


def _candidate_mistakes(place: tuple[str | int, ...], value: object) -> Iterator[_Mistake]:
    try:
        candidate = Candidate.model_validate(value)
    except ValidationError:
        return  # told already
    for strength in candidate.strengths or ({},):
        try:
            make("defenses", candidate.name, strength)
        except FedspillError as error:
            option = next((option for option in strength if repr(option) in str(error)), None)
            yield _Mistake((*place, "strengths" if option else "name"), str(error), option or candidate.name)


def _sense_mistakes(plan: Plan) -> Iterator[_Mistake]:
    """What is well-formed and still cannot be."""
    federation, record = plan.federation, plan.record
    if federation.clients_per_round is not None and federation.clients_per_round > federation.clients:
        yield _Mistake(
            ("federation", "clients_per_round"),
            f"asks for {federation.clients_per_round} clients a round, there are {federation.clients}",
        )
    yield from _vertical_mistakes(plan)
    for name, given, end in (
        ("rounds", record.rounds, federation.rounds),
        ("clients", record.clients, federation.clients),
    ):
        beyond = [index for index in given or () if not 0 <= index < end]
        if beyond:
            yield _Mistake(("record", name), f"names {_listing(beyond)}, there are 0 to {end - 1}")


def _vertical_mistakes(plan: Plan) -> Iterator[_Mistake]:
    """Settings of one kind of federation in a plan of the other."""
    federation, usual = plan.federation, FederationPart()
    if federation.kind == "vertical":
        for name in FederationPart.model_fields:
            if name not in ("kind", "rounds", *VERTICAL) and getattr(federation, name) != getattr(usual, name):
                yield _Mistake(("federation", name), "is a setting of horizontal federations")
        if federation.samples is not None and plan.training.batch_size > federation.samples:
            problem = f"asks for {plan.training.batch_size} of {federation.samples} samples"
            yield _Mistake(("training", "batch_size"), problem)
        if federation.batches == "circulant" and federation.samples != federation.rounds:
            yield _Mistake(("federation", "rounds"), "a circulant plan has as many rounds as samples")
        foreign, theirs = (SHARED_TOWERS, "shared") if federation.towers == "private" else (PRIVATE_TOWERS, "private")
        for name in foreign:
            if getattr(federation, name) != getattr(usual, name):
                yield _Mistake(("federation", name), f'is a setting of towers = "{theirs}"')
        return
    for name in VERTICAL:
        if getattr(federation, name) != getattr(usual, name):
            yield _Mistake(("federation", name), 'is a setting of vertical federations: set kind = "vertical"')


def _choices(content: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Family, Any]]:
    """Every registered name in the plan that is well-formed enough to look up."""
    places: list[tuple[tuple[str | int, ...], Family, Any]] = [
        (("data",), "datasets", content.get("data")),
        (("model",), "models", content.get("model")),
        (("partition",), "partitions", content.get("partition")),
    ]
    places += [(("defenses", i), "defenses", item) for i, item in enumerate(_listed(content.get("defenses")))]
    places += [(("attacks", i), "attacks", item) for i, item in enumerate(_listed(content.get("attacks")))]
    places += [(("metrics", i), "metrics", item) for i, item in enumerate(_listed(content.get("metrics")))]
    for place, family, value in places:
        if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("name"), str)):
            yield place, family, value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _unknown_key(place: Sequence[str | int]) -> str:
    """There is no such key; the nearest one of its table."""
    known = _keys_at(place[:-1])
    close = get_close_matches(str(place[-1]), known, n=1)
    return f"there is no such key. {_hint(close, known)}"


def _keys_at(place: Sequence[str | int]) -> list[str]:
    """The keys of the table at `place`."""
    kind: Any = Plan
    for part in place:
        if isinstance(part, str):
            named = {"training": LocalTraining, "candidates": Candidate}.get(part)
            kind = named or Plan.model_fields[part].annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return sorted(kind.model_fields)
    return sorted(item.name for item in fields(LocalTraining)) if kind is LocalTraining else []


def _nearest(item: Any) -> str:
    """For a choice among words, the word that was perhaps meant."""
    expected = str(item.get("ctx", {}).get("expected", "")) if item["type"] == "literal_error" else ""
    words = [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]
    close = get_close_matches(str(item["input"]), words, n=1)
    return f". {_hint(close, [])}" if close else ""


def _hint(close: list[str], known: list[str]) -> str:
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


def _lowered(message: str) -> str:
    return message.replace("Input should be", "should be", 1)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _listing(values: list[int]) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
