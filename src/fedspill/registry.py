"""Finds attacks, defenses, metrics, data sets, partitions, models and paper tables by folder and entry point.

Every one of them is a frozen dataclass with `name`, `title` and `paper` as plain class attributes, in a file of its
family's folder. Listing reads those files as text, so it imports neither them nor torch. Packages of others are found
by entry point (group `fedspill.attacks`, ...) and imported only when one of them is named.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from fedspill.errors import UnknownName, UsageError

Family: TypeAlias = Literal["attacks", "defenses", "metrics", "datasets", "partitions", "models", "papers"]

_HERE = Path(__file__).parent
_FOLDERS: dict[Family, str] = {
    "attacks": "attacks",
    "defenses": "defenses",
    "metrics": "metrics",
    "datasets": "data",
    "partitions": "partitions",
    "models": "models",
}
_SINGULAR: dict[Family, str] = {
    "attacks": "attack",
    "defenses": "defense",
    "metrics": "metric",
    "datasets": "data set",
    "partitions": "partition",
    "models": "model",
    "papers": "paper table",
}


@dataclass(frozen=True)
class Entry:
    """One registered thing, as its file describes it."""

    family: Family
    name: str
    title: str
    paper: str
    about: str  # the class's docstring
    source: Path | EntryPoint
    class_name: str


def entries(family: Family) -> list[Entry]:
    """All of a family, by name, without importing any of it. Plug-ins are listed by their entry point's name."""
    found = [entry for path in _files(family) for entry in _read(family, path)]
    found += [
        Entry(family, point.name, f"plug-in {point.value}", "", "", point, point.attr)
        for point in _plug_ins(family, tuple(sys.path), entry_points)
    ]
    return sorted(found, key=lambda entry: entry.name)


def find(family: Family, name: str) -> Entry:
    for entry in entries(family):
        if entry.name == name:
            return entry
    raise UnknownName(_SINGULAR[family], name, (entry.name for entry in entries(family)))


def load(family: Family, name: str) -> type[Any]:
    """The class of that name; this is where its module, and torch with it, is imported."""
    entry = find(family, name)
    if isinstance(entry.source, EntryPoint):
        return _load_plugin(family, entry.source)
    loaded = getattr(_module(family, entry.source), entry.class_name)
    assert isinstance(loaded, type)
    return loaded


def _load_plugin(family: Family, point: EntryPoint) -> type[Any]:
    """The class that a package of others offers; whatever goes wrong there is said in one sentence."""
    what = f"The plug-in {point.name!r} ({point.value})"
    try:
        loaded = point.load()
    except Exception as error:
        raise UsageError(f"{what} cannot be imported: {type(error).__name__}: {error}.") from error
    if not isinstance(loaded, type) or not dataclasses.is_dataclass(loaded):
        raise UsageError(f"{what} is no dataclass, as every {_SINGULAR[family]} must be.")
    return loaded


def make(family: Family, name: str, options: Mapping[str, object] | None = None) -> Any:
    """An instance with `options` as its fields; unknown options and wrong types are refused by name."""
    return build(load(family, name), options or {}, what=f"{_SINGULAR[family]} {name!r}")


def build(kind: type[Any], options: Mapping[str, object], *, what: str) -> Any:
    """An instance of the dataclass `kind`, with every option checked against its field's type."""
    known = {item.name for item in dataclasses.fields(kind) if item.init}
    for option in options:
        if option not in known:
            raise UnknownName(f"option of {what}", option, known)
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        problems = "; ".join(f"{_place(item['loc'])}{item['msg']}, got {item['input']!r}" for item in error.errors())
        raise UsageError(f"Options of {what}: {problems}.") from None


def options_of(thing: Any) -> dict[str, Any]:
    """The options that would make `thing` again, for provenance."""
    return {item.name: getattr(thing, item.name) for item in dataclasses.fields(thing) if item.init}


def papers_folder() -> Path:
    """The published tables: inside an installed package, or beside `src` in a checkout."""
    packaged = _HERE / "papers"
    return packaged if packaged.is_dir() else _HERE.parents[1] / "papers"


def paper_tables(paper: str) -> ModuleType:
    """The code of one paper's tables, e.g. "003", for scripts and tests beside it."""
    return _module("papers", papers_folder() / paper / "tables.py")


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""


def _files(family: Family) -> list[Path]:
    if family == "papers":
        return sorted(papers_folder().glob("*/tables.py"))
    return sorted(path for path in (_HERE / _FOLDERS[family]).glob("*.py") if path.stem not in ("__init__", "base"))


@cache
def _plug_ins(family: Family, path: tuple[str, ...], look_up: Callable[..., Iterable[EntryPoint]]) -> list[EntryPoint]:
    """Looked up once per search path: reading the metadata of every installed package takes a while."""
    return list(look_up(group=f"fedspill.{family}"))


@cache
def _read(family: Family, path: Path) -> tuple[Entry, ...]:
    """The registered classes of one file: those that set a literal `name` in their body."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            literals = _literals(node)
            if "name" in literals:
                about = ast.get_docstring(node) or ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                title, paper = literals.get("title", ""), literals.get("paper", "")
                found.append(Entry(family, literals["name"], title, paper, about, path, node.name))
    return tuple(found)


def _literals(node: ast.ClassDef) -> dict[str, str]:
    """The plain strings among the attributes of a class; an annotated one is its own if it is a ClassVar."""
    values = {}
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign | ast.Assign):
            continue
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation):
            continue  # a field: an option, not a name
        target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
        value = statement.value
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            values[target.id] = value.value
    return values


def _module(family: Family, path: Path) -> ModuleType:
    if family != "papers":
        return importlib.import_module(f"fedspill.{_FOLDERS[family]}.{path.stem}")
    name = f"fedspill_papers_{path.parent.name}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
