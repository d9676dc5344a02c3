"""The registry: found by reading, made by name, refused by name; plug-ins are loaded only when named."""

import dataclasses
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from fedspill import registry
from fedspill.errors import UnknownName, UsageError
from fedspill.registry import build, entries, find, load, make, options_of


def test_an_entry_is_what_its_class_says() -> None:
    entry = find("attacks", "llbg")
    kind = load("attacks", "llbg")
    assert (entry.name, entry.title, entry.paper) == (kind.name, kind.title, kind.paper)
    assert entry.about
    assert entry.about in (kind.__doc__ or "")
    assert entry.class_name == kind.__name__ == "LLBG"


def test_only_attributes_of_the_class_register_it_and_not_its_fields(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "class A:\n    name = 'plain'\n\n"
        "class B:\n    name: ClassVar[str] = 'annotated'\n    title: typing.ClassVar[str] = 'Title'\n\n"
        "class Field:\n    name: str = 'an option'\n\n"
        "class Computed:\n    name = 'x'.upper()\n\n"
        "def name():\n    pass\n"
    )
    found = registry._read("attacks", tmp_path / "some.py")
    assert [(entry.name, entry.title, entry.class_name) for entry in found] == [
        ("plain", "", "A"),
        ("annotated", "Title", "B"),
    ]


def test_names_are_sorted() -> None:
    for family in ("attacks", "datasets", "models"):
        names = [entry.name for entry in entries(family)]  # type: ignore[arg-type]
        assert names == sorted(names)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"There is no attack named 'lbbg'. Did you mean 'llbg'"):
        make("attacks", "lbbg")
    with pytest.raises(UnknownName, match="There is no data set named"):
        make("datasets", "mnits")


def test_options_are_checked_by_name_and_type() -> None:
    assert make("attacks", "llbg-gamma", {"gamma": 0.25}).gamma == 0.25
    with pytest.raises(UnknownName, match=r"option of attack 'llbg-gamma' named 'gama'. Did you mean 'gamma'"):
        make("attacks", "llbg-gamma", {"gama": 0.5})
    with pytest.raises(UsageError, match=r"attack 'llbg-gamma'.*gamma.*number.*got 'much'"):
        make("attacks", "llbg-gamma", {"gamma": "much"})
    with pytest.raises(UsageError, match=r"gamma is a mean confidence in \[0, 1\)"):
        make("attacks", "llbg-gamma", {"gamma": 1.5})


@dataclasses.dataclass(frozen=True)
class Thing:
    name: ClassVar[str] = "thing"
    size: int
    words: tuple[str, ...] = ("a",)
    derived: int = dataclasses.field(default=0, init=False)


def test_a_thing_is_built_from_plain_values_and_gives_them_back() -> None:
    made = build(Thing, {"size": 3, "words": ["x", "y"]}, what="thing")
    assert options_of(made) == {"size": 3, "words": ("x", "y")}
    assert build(Thing, options_of(made), what="thing") == made


def test_an_option_that_is_missing_or_cannot_be_set_is_named() -> None:
    with pytest.raises(UsageError, match=r"size: .*[Mm]issing|size: .*required"):
        build(Thing, {}, what="thing")
    with pytest.raises(UnknownName, match="derived"):
        build(Thing, {"size": 1, "derived": 2}, what="thing")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs an entry point `fedspill.attacks` of the given value, and a module `a_plugin` with a canary."""
    module = ModuleType("a_plugin")
    module.Thing = Thing  # type: ignore[attr-defined]
    module.number = 5  # type: ignore[attr-defined]

    def install(value: str) -> None:
        point = EntryPoint("thing", value, "fedspill.attacks")
        monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fedspill.attacks" else [])

    monkeypatch.setitem(sys.modules, "a_plugin", module)
    return install


def test_a_plugin_is_listed_by_its_entry_point_and_made_when_named(plugin: Any) -> None:
    plugin("a_plugin:Thing")
    assert find("attacks", "thing").title == "plug-in a_plugin:Thing"
    assert make("attacks", "thing", {"size": 2}) == Thing(2)
    assert "thing" not in [entry.name for entry in entries("models")]


def test_a_plugin_is_not_imported_by_being_listed(plugin: Any) -> None:
    plugin("a_plugin_that_is_not_there:Thing")
    assert "thing" in [entry.name for entry in entries("attacks")]
    assert make("attacks", "llbg").name == "llbg"
    with pytest.raises(UsageError, match=r"plug-in 'thing' .* cannot be imported: ModuleNotFoundError"):
        make("attacks", "thing")


def test_a_plugin_that_is_no_dataclass_is_refused(plugin: Any) -> None:
    for value in ("a_plugin:number", "a_plugin:Thing.name"):
        plugin(value)
        with pytest.raises(UsageError, match="no dataclass, as every attack must be"):
            make("attacks", "thing")
    plugin("a_plugin:missing")
    with pytest.raises(UsageError, match="cannot be imported: AttributeError"):
        make("attacks", "thing")


def test_listing_every_family_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys; from typing import get_args; from fedspill.registry import Family, entries;"
        "names = [entry.name for family in get_args(Family) for entry in entries(family)];"
        "assert len(names) > 30, names;"
        "sys.exit(', '.join({'torch', 'numpy', 'scipy', 'sklearn', 'pydantic'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == ""
    assert run.returncode == 0


def test_the_public_names_are_there_and_cost_nothing_to_import() -> None:
    script = (
        "import sys, fedspill; assert not {'torch', 'numpy'} & set(sys.modules);"
        "assert set(dir(fedspill)) == set(fedspill.__all__);"
        "[getattr(fedspill, name) for name in fedspill.__all__]"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    import fedspill

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedspill.nothing  # noqa: B018


def test_the_papers_are_found_in_the_checkout() -> None:
    assert (registry.papers_folder() / "003" / "tables.py").is_file()
    assert isinstance(registry.papers_folder(), Path)
    assert load("papers", "003/1").paper == "003"


def test_the_package_is_looked_through_once_however_often_names_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit asks for names thousands of times."""
    before = registry.entries("attacks")

    def refuse(self: Path, pattern: str) -> list[Path]:
        raise AssertionError(f"looked for {pattern} in {self} again")

    monkeypatch.setattr(Path, "glob", refuse)
    assert registry.entries("attacks") == before
    assert registry.find("attacks", "llbg").name == "llbg"
