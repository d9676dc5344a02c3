"""Plan: a deployment and what to try on it, as one TOML file or one Python object, checked whole."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedspill.errors import FedspillError, PlanError, UsageError
from fedspill.federation.horizontal import Settings
from fedspill.federation.local import LocalTraining
from fedspill.registry import Family, make
from fedspill.threat import adversary
from fedspill.trace import Keep


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
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class FederationPart(_Part):
    clients: int = Field(default=10, ge=1)
    rounds: int = Field(default=3, ge=1)
    clients_per_round: int | None = Field(default=None, ge=1)
    weighting: str = "examples"
    drop_out: float = Field(default=0.0, ge=0, lt=1)
    server_lr: float = Field(default=1.0, gt=0)
    secure_aggregation: bool = False


class AdversaryDataPart(_Part):
    """What the adversary holds, taken out of the training data before clients get any."""

    per_class: int = Field(default=10, ge=0)
    shadow: int = Field(default=0, ge=0)


class RecordPart(_Part):
    """What is recorded; everything by default."""

    rounds: list[int] | None = None
    clients: list[int] | None = None
    tensors: list[str] | None = None

    def keep(self) -> Keep:
        return Keep(
            rounds=None if self.rounds is None else frozenset(self.rounds),
            clients=None if self.clients is None else frozenset(f"client:{index}" for index in self.clients),
            tensors=None if self.tensors is None else tuple(self.tensors),
        )


class Plan(_Part):
    """The default plan is the default audit: ten clients with their own mix of handwritten digits."""

    seed: int = Field(default=7, ge=0)
    data: Choice = Choice(name="digits")
    model: Choice = Choice(name="mlp", widths=[64])  # type: ignore[call-arg]
    partition: Choice = Choice(name="dirichlet", alpha=0.5)  # type: ignore[call-arg]
    federation: FederationPart = FederationPart()
    training: LocalTraining = Field(default_factory=LocalTraining)
    adversary_data: AdversaryDataPart = AdversaryDataPart()
    record: RecordPart = RecordPart()
    defenses: tuple[Choice, ...] = ()
    adversaries: tuple[str, ...] | None = None  # None: all that the deployment allows
    attacks: tuple[Choice, ...] | None = None  # None: all that fit

    def settings(self) -> Settings:
        return Settings(
            **self.federation.model_dump(exclude={"clients"}),
            training=self.training,
            defenses=tuple(make("defenses", choice.name, choice.options) for choice in self.defenses),
        )


@dataclass(frozen=True)
class _Named:
    place: str
    family: Family
    choice: Choice


def read_plan(path: Path | None) -> Plan:
    """The plan in a TOML file, or the default one; every mistake at once."""
    if path is None:
        return Plan()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Plan {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"Plan {path} is not TOML: {error}.") from None
    return check_plan(content, str(path))


def check_plan(content: dict[str, Any], source: str) -> Plan:
    """A plan from plain values; raises PlanError with everything that is wrong."""
    mistakes: list[str] = []
    plan: Plan | None = None
    try:
        plan = Plan.model_validate(content)
    except ValidationError as error:
        mistakes += [_explain(item) for item in error.errors()]
    except FedspillError as error:
        mistakes.append(str(error))
    for named in _choices(content):
        try:
            make(named.family, named.choice.name, named.choice.options)
        except FedspillError as error:
            mistakes.append(f"{named.place}: {error}")
    for name in content.get("adversaries") or ():
        try:
            adversary(str(name))
        except FedspillError as error:
            mistakes.append(f"adversaries: {error}")
    if mistakes or plan is None:
        raise PlanError(source, mistakes)
    return plan


def _choices(content: dict[str, Any]) -> list[_Named]:
    """Every registered name in the plan that is well-formed enough to look up."""
    places: list[tuple[str, Family, Any]] = [
        ("data", "datasets", content.get("data")),
        ("model", "models", content.get("model")),
        ("partition", "partitions", content.get("partition")),
    ]
    places += [("defenses", "defenses", item) for item in _listed(content.get("defenses"))]
    places += [("attacks", "attacks", item) for item in _listed(content.get("attacks"))]
    found = []
    for place, family, value in places:
        if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("name"), str)):
            found.append(_Named(place, family, Choice.model_validate(value)))
    return found


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _explain(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    got = "" if item["type"] == "missing" else f", got {item['input']!r}"
    return f"{place}: {item['msg']}{got}"
