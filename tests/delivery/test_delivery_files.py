"""What is delivered beside the code: every file says what is so, and what it runs is there."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


# What is installed with the package

CALLED = {"PIL": "pillow", "sklearn": "scikit-learn"}  # where a module has another name than what is installed
EXTRAS = {"flower": "flwr", "nvflare": "nvflare"}  # folders that only users of an engine import


def test_everything_that_is_imported_at_once_is_asked_for_by_name() -> None:
    """What merely comes along with something else today is missing when that no longer brings it."""
    asked = {re.split(r"[<>=\[ ]", line)[0].lower() for line in PROJECT["dependencies"]}
    package = ROOT / "src" / "fedspill"
    missing = set()
    for path in package.rglob("*.py"):
        extra = {EXTRAS.get(path.relative_to(package).parts[0], "fedspill"), "fedspill"}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module]
            for module in {name.partition(".")[0] for name in named} - sys.stdlib_module_names - extra:
                if CALLED.get(module, module) not in asked:
                    missing.add(f"{path.relative_to(ROOT)}: {module}")
    assert missing == set()


# CITATION.cff and SECURITY.md


def test_the_citation_has_what_the_format_asks_for_and_this_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_security_points_at_the_promises_and_says_how_to_report() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "(docs/promises.md)" in text
    assert "Report a vulnerability" in text


# Dockerfile


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_container_copies_files_that_exist_and_that_are_not_ignored() -> None:
    kept = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [part for name, rest in instructions() if name == "COPY" and "--from" not in rest for part in rest.split()]
    sources = [part for part in copied if not part.startswith("/")]
    assert sources
    assert sorted(sources) == sorted(kept)
    assert [name for name in sources if not (ROOT / name).exists()] == []


def test_the_container_is_not_root_and_starts_the_command() -> None:
    found = instructions()
    final = found[max(i for i, (name, _) in enumerate(found) if name == "FROM") :]
    users = [rest for name, rest in final if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert ("ENTRYPOINT", '["fedspill"]') in final
    assert "fedspill" in PROJECT["scripts"]
    assert all(":latest" not in rest for name, rest in found if name == "FROM")


def test_the_container_has_the_torch_that_is_tested() -> None:
    pinned = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert pinned[0] in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def container_engine() -> str | None:
    """An engine that answers; a client without its daemon is none."""
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    return None


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_container_builds_and_lists_attacks() -> None:
    engine = container_engine()
    if engine is None:
        pytest.skip("needs a container engine")
    subprocess.run([engine, "build", "--tag", "fedspill-test", "."], cwd=ROOT, check=True)
    listed = subprocess.run(
        [engine, "run", "--rm", "fedspill-test", "list", "attacks"], capture_output=True, check=True
    )
    assert b"llbg" in listed.stdout


# action.yml


def steps() -> dict[str, dict[str, Any]]:
    return {step.get("name", step.get("uses")): step for step in read_yaml("action.yml")["runs"]["steps"]}


def test_every_step_of_the_action_is_sound() -> None:
    action = read_yaml("action.yml")
    assert action["runs"]["using"] == "composite"
    asked = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert asked == action["inputs"].keys()
    for step in steps().values():
        if "run" not in step:
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "inputs go through the environment, never into the script"
        used = set(re.findall(r'"\$([A-Z_]+)"', step["run"]))
        assert used <= step["env"].keys() | {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}
        checked = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


# What GitHub's metadata syntax of actions allows, level by level; a key that it does not know fails the workflow.
ACTION = {"name", "author", "description", "inputs", "outputs", "runs", "branding"}
INPUT = {"description", "required", "default", "deprecationMessage"}
STEP = {"name", "id", "if", "env", "continue-on-error"}
COLOURS = {"white", "black", "yellow", "blue", "green", "orange", "red", "purple", "gray-dark"}


def test_the_action_has_the_keys_that_github_knows_and_those_that_it_asks_for() -> None:
    action = read_yaml("action.yml")
    assert {"name", "description", "runs"} <= action.keys() <= ACTION
    for name, given in action["inputs"].items():
        assert re.fullmatch(r"[A-Za-z_][\w-]*", name)
        assert {"description"} <= given.keys() <= INPUT
        assert not (given.get("required") and "default" in given), "what must be given has no default"
        assert isinstance(given.get("default", ""), str), "GitHub hands on text alone"
    assert all(given.keys() == {"description", "value"} for given in action["outputs"].values())
    assert action["runs"].keys() == {"using", "steps"}
    for step in action["runs"]["steps"]:
        own = {"run", "shell", "working-directory"} if "run" in step else {"uses", "with"}
        assert ({"run", "shell"} if "run" in step else {"uses"}) <= step.keys() <= STEP | own
        assert all(isinstance(value, str) for value in {**step.get("env", {}), **step.get("with", {})}.values())
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@v\d+", step["uses"])
    ids = [step["id"] for step in action["runs"]["steps"] if "id" in step]
    assert set(re.findall(r"steps\.([\w-]+)\.", (ROOT / "action.yml").read_text(encoding="utf-8"))) == set(ids)
    assert action["branding"]["color"] in COLOURS


@pytest.mark.parametrize(("fails_on", "code"), [("", 0), ("low", 1)])
def test_the_audit_step_hands_on_the_code_and_the_first_screen(fails_on: str, code: int, tmp_path: Path) -> None:
    """With a stand-in for the command that says how it was called: what an audit does is tested elsewhere."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "fedspill"
    stand_in.write_text(
        '#!/bin/sh\nmkdir -p fedspill-audit\necho "$@" > fedspill-audit/report.md\n'
        'case "$*" in *--fail-on*) exit 1;; esac\n'
    )
    stand_in.chmod(0o755)
    step = steps()["Audit"]
    values = {"PLAN": "my plan.toml", "FAIL_ON": fails_on, "ACCEPT": "accept.toml", "WORKERS": "2"}
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    environment = {**os.environ, **values, **files, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == f"exit-code={code}\n"
    called = (tmp_path / "GITHUB_STEP_SUMMARY").read_text().strip()
    barred = f" --fail-on {fails_on}" if fails_on else ""
    assert called == f"audit my plan.toml --out fedspill-audit --workers 2{barred} --accept accept.toml"
    verdict = subprocess.run(["bash", "-c", steps()["Verdict"]["run"]], env={"CODE": str(code)}, check=False)
    assert verdict.returncode == code


@pytest.mark.parametrize(("package", "installed"), [("", "/the/action"), ("fedspill==0.2.0", "fedspill==0.2.0")])
def test_the_install_step_takes_the_action_itself_unless_told_otherwise(
    package: str, installed: str, tmp_path: Path
) -> None:
    """Not what an index calls by that name."""
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PACKAGE": package, "ACTION": "/the/action"}
    step = steps()["Install"]
    assert step["env"]["ACTION"] == "${{ github.action_path }}"
    said = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["-m", "pip", "install", "--quiet", installed]


# .pre-commit-hooks.yaml


def test_the_hooks_run_commands_that_exist_on_the_plans_that_we_show() -> None:
    from fedspill.cli.main import COMMANDS

    hooks = {hook["id"]: hook for hook in read_yaml(".pre-commit-hooks.yaml")}
    assert all(hook["entry"].split()[1] in COMMANDS for hook in hooks.values())
    wanted = re.compile(hooks["fedspill-plan"]["files"])
    assert wanted.search("plan.toml")
    assert wanted.search("examples/ci/audit.toml")
    assert not wanted.search("pyproject.toml")


# The bill of materials


def test_the_bill_of_materials_has_all_that_is_needed_and_is_the_same_twice() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "sbom.py"))
    bill = made["bill"]()
    assert bill == made["bill"]()
    names = {made["canonical"](component["name"]) for component in bill["components"]}
    direct = {made["canonical"](re.split(r"[<>=\[ ]", line)[0]) for line in PROJECT["dependencies"]}
    assert direct <= names
    assert {"sympy", "pydantic-core", "joblib"} <= names, "what dependencies need is in it too"
    known = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {entry["ref"] for entry in bill["dependencies"]} == known
    assert {needed for entry in bill["dependencies"] for needed in entry["dependsOn"]} <= known


# The layout that Flower Hub asks of an app


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Flower calls
def test_the_flower_app_is_laid_out_as_the_hub_asks(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs flwr")
    from flwr.cli.config_utils import load_and_validate

    publish = import_module("flwr.cli.app_cmd.publish")  # the package hides it behind the function of its name
    app = tmp_path / "digits-app"  # the hub takes the folder's name for the app's
    shutil.copytree(ROOT / "examples" / "flower", app, ignore=shutil.ignore_patterns("__pycache__", "*.trace"))
    sys.path.insert(0, str(app))
    try:
        config, warnings = load_and_validate(app / "pyproject.toml", check_module=True)
    finally:
        sys.path.remove(str(app))
    assert warnings == []
    publish._validate_app_name(app.name, "folder")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(app)
    publish._validate_files(files)
    assert {"README.md", "LICENSE", "pyproject.toml"} <= {path.name for path in files}
