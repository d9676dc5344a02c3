"""Target: what is audited. DefenseSetting: what is tried on top of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedspill.audit.private_folder import elsewhere
from fedspill.defense import Defense
from fedspill.deployment.plan import Plan
from fedspill.files import dump_json
from fedspill.registry import make
from fedspill.seeds import seed_of


@dataclass(frozen=True)
class ChosenDefense:
    """A defense by name, with the options that were given."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.options)})"


@dataclass(frozen=True)
class DefenseSetting:
    """Defenses tried on top of those in place, in this order; without any, the deployment as it is."""

    chosen: tuple[ChosenDefense, ...] = ()

    @staticmethod
    def one(name: str, options: Mapping[str, Any] | None = None) -> DefenseSetting:
        return DefenseSetting((ChosenDefense(name, tuple(sorted((options or {}).items()))),))

    @property
    def label(self) -> str:
        return " + ".join(defense.label for defense in self.chosen) or "as deployed"

    @property
    def short(self) -> str:
        """For names of folders."""
        return "+".join(_file_name(defense.name) for defense in self.chosen)

    def together_with(self, other: DefenseSetting) -> DefenseSetting:
        return DefenseSetting((*self.chosen, *other.chosen))

    def defenses(self) -> tuple[Defense, ...]:
        return tuple(make("defenses", defense.name, dict(defense.options)) for defense in self.chosen)

    def as_json(self) -> dict[str, Any]:
        return {"defenses": [{"name": defense.name, "options": dict(defense.options)} for defense in self.chosen]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DefenseSetting:
        return DefenseSetting(
            tuple(ChosenDefense(item["name"], tuple(sorted(item["options"].items()))) for item in value["defenses"])
        )


AS_DEPLOYED = DefenseSetting()
AS_DEPLOYED_NAME = "as-deployed"


@dataclass(frozen=True)
class Target:
    """What is audited: the federation of a plan, or a recording; the same for every job of an audit."""

    plan: Plan
    folder: Path  # of the audit
    code: str  # fingerprint of the code that runs
    trace: Path | None = None  # a recording instead of a federation of our own
    partial: bool = False
    explicit_plan: bool = True  # whether the plan's data and model are those of the recording
    data_dir: Path | None = None
    show_data: bool = False
    truth: Path | None = None  # of a recording: a table of what clients trained on
    nodes: Path | None = None  # which node of the recording is which client of that table
    twins: int = 0  # of a recording: how many to make where its truth is not known

    @property
    def twin_seeds(self) -> tuple[int, ...]:
        return tuple(seed_of(self.plan.seed, "twin", number) for number in range(self.twins))

    def twin_folder(self, seed: int) -> Path:
        """Where the recording of a twin belongs, until the audit is done."""
        what = hashlib.sha256(dump_json([self.code, self.plan.essence()])).hexdigest()[:16]
        return self.base() / "twins" / f"{seed}-{what}"

    def base(self) -> Path:
        """Where recordings are made: in the audit's folder, and on a machine that does not see it for itself alone."""
        return self.folder if self.folder.is_dir() else elsewhere(self.folder)

    def absolute(self) -> Target:
        """For workers, which may stand elsewhere."""
        return replace(
            self,
            folder=self.folder.absolute(),
            trace=self.trace.absolute() if self.trace else None,
            data_dir=self.data_dir.absolute() if self.data_dir else None,
            truth=self.truth.absolute() if self.truth else None,
            nodes=self.nodes.absolute() if self.nodes else None,
        )

    def trace_folder(self, setting: DefenseSetting, seed: int) -> Path:
        """Where the recording of one setting and seed belongs."""
        if self.trace is not None:
            return self.trace
        plan = self.plan.with_seed(seed)
        what = hashlib.sha256(dump_json([self.code, plan.essence(), setting.as_json()])).hexdigest()[:16]
        return self.base() / "traces" / f"{setting.short or AS_DEPLOYED_NAME}-{seed}-{what}"

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.model_dump(mode="json"),
            "folder": str(self.folder),
            "code": self.code,
            "trace": str(self.trace) if self.trace else None,
            "partial": self.partial,
            "explicit_plan": self.explicit_plan,
            "data_dir": str(self.data_dir) if self.data_dir else None,
            "show_data": self.show_data,
            "truth": str(self.truth) if self.truth else None,
            "nodes": str(self.nodes) if self.nodes else None,
            "twins": self.twins,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Target:
        return Target(
            Plan.model_validate(value["plan"]),
            Path(value["folder"]),
            value["code"],
            Path(value["trace"]) if value["trace"] else None,
            value["partial"],
            value["explicit_plan"],
            Path(value["data_dir"]) if value["data_dir"] else None,
            value["show_data"],
            Path(value["truth"]) if value.get("truth") else None,
            Path(value["nodes"]) if value.get("nodes") else None,
            value.get("twins", 0),
        )


def _file_name(name: str) -> str:
    """ "module:Class" without what some file systems do not take."""
    return name.replace(":", "-")
