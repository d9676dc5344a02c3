"""What the documents say of the code is so: files they name exist, code they show runs, plans they show are plans."""

import ast
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from fedspill.leak import Leak
from fedspill.registry import entries, load_leak

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("papers/*/README.md")])
each = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@cache
def paths() -> list[str]:
    """Every Python file of the repository, with a slash before it."""
    folders = ("src", "tests", "papers", "benchmarks", "examples")
    return [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")]


@each
def test_python_files_that_it_names_exist(document: Path) -> None:
    """By as much of the path as it gives: `decaf.py`, `composition/decaf.py`, `leaks/composition/decaf.py`."""
    if document.name == "CHANGELOG.md":
        return  # tells of what was
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<![\w/.<>*-])((?:[\w.-]+/)*[\w-]+\.py)\b", text))
    yours = {"plan.py", "server_app.py", "client_app.py", "one_class.py"}
    missing = [name for name in named - yours if not any(path.endswith(f"/{name}") for path in paths())]
    assert missing == []


@each
def test_links_within_the_repository_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@each
def test_names_that_its_python_imports_from_us_are_there(document: Path) -> None:
    for code in blocks(document.read_text(encoding="utf-8"), "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedspill":
                if node.module == "fedspill.nvflare":
                    pytest.importorskip("nvflare.apis.filter", reason="needs NVFlare: pip install 'fedspill[nvflare]'")
                module = importlib.import_module(node.module or "")
                assert [name.name for name in node.names if getattr(module, name.name, None) is None] == []


@pytest.mark.parametrize("code", blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "python"))
def test_python_in_contributing_runs_and_makes_a_sound_class(code: str) -> None:
    made: dict[str, object] = {"__name__": "contributing"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), made)
    (kind,) = [value for value in made.values() if isinstance(value, type) and value.__module__ == "contributing"]
    assert kind().name == re.search(r'name: ClassVar\[str\] = "(.+)"', code)[1]  # type: ignore[attr-defined, index]


@each
def test_its_toml_can_be_read(document: Path) -> None:
    for text in blocks(document.read_text(encoding="utf-8"), "toml"):
        tomllib.loads(text)


def test_the_map_in_the_readme_names_every_folder_and_every_leak() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Where things are") :]
    source = ROOT / "src" / "fedspill"
    folders = {path.parent.name for path in source.glob("*/__init__.py")} | {entry.name for entry in entries("leaks")}
    assert {name for name in folders if f"`{name}/`" not in table} == set()


def test_the_layout_tells_the_questions_of_the_leaks_that_it_compares() -> None:
    text = (ROOT / "docs" / "design" / "layout.md").read_text(encoding="utf-8")
    for name in ("presence", "quantity", "groups"):
        leak = load_leak(name)
        assert isinstance(leak, Leak)
        assert leak.question.split(",")[0].rstrip("?") in text


def test_the_order_of_layers_is_the_one_that_is_checked() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in checked if contract["type"] == "layers"]
    beside = [name.split(" : ") for name in layers]  # several in one layer know nothing of each other
    folders = [names for names in beside if all((ROOT / "src" / name.replace(".", "/")).is_dir() for name in names)]
    rooms = [", ".join(name.partition(".")[2] for name in names) for names in folders]
    told = " < ".join(["contracts", *reversed(rooms)])
    for document in ("CONTRIBUTING.md", "docs/design/layout.md"):
        assert told in (ROOT / document).read_text(encoding="utf-8"), f"{document} should say: {told}"


def test_one_class_name_in_defenses_and_contracts_has_one_meaning_in_the_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in (ROOT / "src" / "fedspill").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT / "src" / "fedspill")))
    twice = {name: where for name, where in homes.items() if len(where) > 1 and not name.startswith("_")}
    ours = {name: where for name, where in twice.items() if any(place.startswith("defense") for place in where)}
    assert ours.keys() <= {"Guard"}, ours  # the client's guard under Flower is another room
