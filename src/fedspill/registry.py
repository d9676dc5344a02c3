"""Finds leaks, attacks, defenses, metrics, data sets, partitions, models and paper tables by folder and entry point.

Every one of them is a frozen dataclass with `name`, `title` and `paper` as plain class attributes, in a file of its
family's folder; a leak is a folder of leaks/ that holds its attacks and metrics. Listing reads those files as text, so
it imports neither them nor torch. What others wrote is found by entry point (group `fedspill.attacks`, ...) or named
outright as "package.module:Class", and imported only when it is used.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from fedspill.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Family: TypeAlias = Literal["leaks", "attacks", "defenses", "metrics", "datasets", "partitions", "models", "papers"]

_HERE = Path(__file__).parent
_LEAKS = _HERE / "leaks"
_FOLDERS: dict[Family, str] = {
    "defenses": "defenses",
    "datasets": "data",
    "partitions": "partitions",
    "models": "models",
}
_SINGULAR: dict[Family, str] = {
    "leaks": "leak",
    "attacks": "attack",
    "defenses": "defense",
    "metrics": "metric",
    "datasets": "data set",
    "partitions": "partition",
    "models": "model",
    "papers": "paper table",
}
_OUTSIDE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")  # "package.module:Class"


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

    @property
    def is_plugin(self) -> bool:
        """Whether it is code of others."""
        return isinstance(self.source, EntryPoint)


def is_outside(name: str) -> bool:
    """Whether the name says where code of others lies: "package.module:Class"."""
    return _OUTSIDE.match(name) is not None


def entries(family: Family) -> list[Entry]:
    """All of a family, by name, without importing any of it."""
    plug_ins = [_plugin_entry(family, point) for point in _plug_ins(family, tuple(sys.path), entry_points)]
    return sorted([*_own(family), *plug_ins], key=lambda entry: entry.name)


def find(family: Family, name: str) -> Entry:
    """The entry of that name, or of the class that "package.module:Class" names."""
    if is_outside(name):
        return _plugin_entry(family, EntryPoint(name, name, f"fedspill.{family}"))
    for entry in entries(family):
        if entry.name == name:
            return entry
    raise UnknownName(_SINGULAR[family], name, (entry.name for entry in entries(family)))


def load(family: Family, name: str) -> type[Any]:
    """The class of that name; this is where its module, and torch with it, is imported."""
    entry = find(family, name)
    loaded = _load_plugin(entry) if entry.is_plugin else getattr(_module(family, entry), entry.class_name)
    assert isinstance(loaded, type)
    return loaded


def load_leak(name: str) -> Any:
    """The `Leak` of that name."""
    entry = find("leaks", name)
    if entry.is_plugin:
        return _imported(entry)
    return getattr(_module("leaks", entry), entry.class_name)


def _load_plugin(entry: Entry) -> type[Any]:
    """The class that others offer; whatever goes wrong there is said in one sentence that names it."""
    loaded = _imported(entry)
    if not isinstance(loaded, type) or not dataclasses.is_dataclass(loaded):
        raise UsageError(f"{_plugin_words(entry)} is no dataclass, as every {_SINGULAR[entry.family]} must be.")
    return loaded


def _imported(entry: Entry) -> Any:
    assert isinstance(entry.source, EntryPoint)
    try:
        return entry.source.load()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{_plugin_words(entry)} cannot be imported: {problem}.") from error


def _plugin_words(entry: Entry) -> str:
    assert isinstance(entry.source, EntryPoint)
    named = "" if entry.name == entry.source.value else f" ({entry.source.value})"
    return f"The plug-in {entry.name!r}{named}"


def make(family: Family, name: str, options: Mapping[str, object] | None = None) -> Any:
    """An instance with `options` as its fields; unknown options and wrong types are refused by name."""
    return build(load(family, name), options or {}, what=f"{_SINGULAR[family]} {name!r}")


def build(kind: type[Any], options: Mapping[str, object], *, what: str) -> Any:
    """An instance of the dataclass `kind`, with every option checked against its field's type."""
    known = {item.name for item in dataclasses.fields(kind) if item.init}
    for option in options:
        if option not in known:
            raise UnknownName(f"option of {what}", option, known)
    from pydantic import ValidationError

    try:
        return _checker_of(cast("Any", kind)).validate_python(dict(options))
    except ValidationError as error:
        problems = "; ".join(f"{_place(item['loc'])}{item['msg']}, got {item['input']!r}" for item in error.errors())
        raise UsageError(f"Options of {what}: {problems}.") from None


@cache
def _checker_of(kind: Any) -> TypeAdapter[Any]:
    """What checks the fields of a dataclass; made once, since that takes longer than the check."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def options_of(thing: Any) -> dict[str, Any]:
    """The options that would make `thing` again, for provenance."""
    return {item.name: getattr(thing, item.name) for item in dataclasses.fields(thing) if item.init}


def papers_folder() -> Path:
    """The published tables: inside an installed package, or beside `src` in a checkout."""
    packaged = _HERE / "papers"
    return packaged if packaged.is_dir() else _HERE.parents[1] / "papers"


def paper_tables(paper: str) -> ModuleType:
    """The code of one paper's tables, e.g. "003", for scripts and tests beside it."""
    return _paper_module(papers_folder() / paper / "tables.py")


def report_format(name: str) -> ModuleType:
    """The module of report/ that writes results in that format: a result is shown without knowing who shows it."""
    return importlib.import_module(f"fedspill.report.{name}")


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""


@cache
def _own(family: Family) -> tuple[Entry, ...]:
    """Those of this package, looked up once: an audit asks for names thousands of times."""
    return tuple(entry for path in _files(family) for entry in _read(family, path))


def _files(family: Family) -> list[Path]:
    """Where classes of a family may stand. In a leak's folder, metrics*.py hold its metrics and leak.py the leak."""
    if family == "papers":
        return sorted(papers_folder().glob("*/tables.py"))
    if family == "leaks":
        return sorted(_LEAKS.glob("*/leak.py"))
    if family in ("attacks", "metrics"):
        wanted = family == "metrics"
        return sorted(path for path in _LEAKS.glob("*/*.py") if path.stem.endswith("metrics") == wanted)
    return sorted((_HERE / _FOLDERS[family]).glob("*.py"))


@cache
def _plug_ins(family: Family, path: tuple[str, ...], look_up: Callable[..., Iterable[EntryPoint]]) -> list[EntryPoint]:
    """Looked up once per search path: reading the metadata of every installed package takes a while."""
    return list(look_up(group=f"fedspill.{family}"))


def _plugin_entry(family: Family, point: EntryPoint) -> Entry:
    """What a plug-in's file says of it; one whose file cannot be read is listed all the same, and says so."""
    path = _source_of(point.module)
    try:
        described = {entry.class_name: entry for entry in _read(family, path)} if path else {}
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        return Entry(
            family, point.name, f"plug-in that cannot be read: {type(error).__name__}", "", "", point, point.attr
        )
    if point.attr in described:
        return dataclasses.replace(described[point.attr], name=point.name, source=point)
    return Entry(family, point.name, f"plug-in {point.value}", "", "", point, point.attr)


def _source_of(module: str) -> Path | None:
    """The file of a module that is not imported for this; only packages above it are."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # whatever the packages above it do when they are imported
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _read(family: Family, path: Path) -> tuple[Entry, ...]:
    """The registered classes of one file: those that set a literal `name` in their body; of leaks, the `Leak`s made."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and family != "leaks":
            literals = _literals(node)
            if "name" in literals:
                about = ast.get_docstring(node) or ast.get_docstring(tree) or ""
                title, paper = literals.get("title", ""), literals.get("paper", "")
                found.append(Entry(family, literals["name"], title, paper, about, path, node.name))
        elif isinstance(node, ast.Assign) and family == "leaks" and _makes_leak(node.value):
            assert isinstance(node.value, ast.Call)
            given = {
                keyword.arg: ast.literal_eval(keyword.value) for keyword in node.value.keywords if _is_text(keyword)
            }
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            found.append(Entry(family, given["name"], given["title"], "", given["question"], path, target.id))
    return tuple(found)


def _makes_leak(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Leak"


def _is_text(keyword: ast.keyword) -> bool:
    return isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)


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


def _module(family: Family, entry: Entry) -> ModuleType:
    assert isinstance(entry.source, Path)
    if family == "papers":
        return _paper_module(entry.source)
    return importlib.import_module(".".join(("fedspill", *entry.source.relative_to(_HERE).with_suffix("").parts)))


def _paper_module(path: Path) -> ModuleType:
    name = f"fedspill_papers_{path.parent.name}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
