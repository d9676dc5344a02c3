"""What everything in the registry must be: a frozen dataclass that says its name, its title and what it is.

A new attack, defense, metric, data set, partition, model or table is checked here without being mentioned.
"""

import ast
import dataclasses
import inspect
import json
import re
from abc import ABC
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from fedspill.attack import Attack
from fedspill.dataset import DataSource
from fedspill.defense import Defense
from fedspill.errors import UsageError
from fedspill.guess import Guess
from fedspill.leak import Leak
from fedspill.messages import KINDS
from fedspill.metric import Metric
from fedspill.model_spec import ModelSpec
from fedspill.partition import Partition
from fedspill.registry import Entry, Family, entries, load, make, options_of, papers_folder
from fedspill.reproduce import Table
from fedspill.threat import KNOWLEDGE, POWERS, Needs

BASES: dict[str, type[Any]] = {
    "attacks": Attack,
    "defenses": Defense,
    "metrics": Metric,
    "datasets": DataSource,
    "partitions": Partition,
    "models": ModelSpec,
    "papers": Table,
}
# A leak is no class but one object: test_conformance_leaks.py.
EVERYTHING = [
    entry
    for family in get_args(Family)
    if family != "leaks"
    for entry in entries(family)
    if isinstance(entry.source, Path)
]
each = pytest.mark.parametrize("entry", EVERYTHING, ids=lambda entry: f"{entry.family}/{entry.name}")


def test_no_family_is_empty_and_names_are_unique_within_each() -> None:
    for family in BASES:
        names = Counter(entry.name for entry in EVERYTHING if entry.family == family)
        assert names, f"no {family}: is the folder where the registry looks for it?"
        assert max(names.values()) == 1, f"two {family} share a name: {names.most_common(1)}"


@each
def test_it_has_a_name_a_title_and_says_what_it_is(entry: Entry) -> None:
    kind = load(entry.family, entry.name)
    pattern = r"\d{3}/\w+" if entry.family == "papers" else r"[a-z0-9]+(-[a-z0-9]+)*"
    assert re.fullmatch(pattern, entry.name), "names are lower case with hyphens"
    assert entry.title
    assert not entry.title.endswith("."), "a title is a phrase, not a sentence"
    assert (kind.name, kind.title, kind.paper) == (entry.name, entry.title, entry.paper)
    own = kind.__dict__.get("__doc__") or ""
    assert own, f"{kind.__name__} needs a docstring of its own"
    assert not own.startswith(f"{kind.__name__}("), f"{kind.__name__} has only the docstring that dataclass made up"
    assert isinstance(entry.source, Path)
    assert ast.get_docstring(ast.parse(entry.source.read_text())), f"{entry.source.name} needs a first sentence"


@each
def test_it_is_a_frozen_dataclass_of_its_family_and_its_bases_are_abstract(entry: Entry) -> None:
    kind = load(entry.family, entry.name)
    assert issubclass(kind, BASES[entry.family])
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen, "add @dataclass(frozen=True)"
    assert not inspect.isabstract(kind)
    own = [base for base in kind.__mro__[1:] if base.__module__.startswith("fedspill")]
    assert not any(getattr(base, "__final__", False) for base in own)
    for base in own:
        assert inspect.isabstract(base) or ABC in base.__bases__, (
            f"{base.__name__} is neither abstract nor final: derive it from ABC"
        )


@each
def test_nothing_derives_from_it(entry: Entry) -> None:
    """Every class is abstract or final. Attacks, defenses, metrics and models say so with @final."""
    kind = load(entry.family, entry.name)
    assert kind.__subclasses__() == []
    if entry.family in ("attacks", "defenses", "metrics", "models"):
        assert getattr(kind, "__final__", False), f"mark {kind.__name__} with @final"


@each
def test_it_is_made_without_options_or_says_which_it_needs_and_can_be_made_again(entry: Entry) -> None:
    required = [
        item.name
        for item in dataclasses.fields(load(entry.family, entry.name))
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]
    if required:
        with pytest.raises(UsageError, match=required[0]):
            make(entry.family, entry.name)
        return
    made = make(entry.family, entry.name)
    assert make(entry.family, entry.name, options_of(made)) == made
    json.dumps(options_of(made), allow_nan=False)  # options go into every result, for provenance


@pytest.mark.parametrize("entry", [e for e in EVERYTHING if e.family == "attacks"], ids=lambda entry: entry.name)
def test_an_attack_says_its_paper_its_needs_and_what_it_guesses(entry: Entry) -> None:
    kind = load("attacks", entry.name)
    assert entry.paper, "name the paper, or 'fedspill'"
    assert isinstance(kind.needs, Needs)
    assert kind.needs.sees, "an attack that needs to see nothing is no attack"
    assert kind.needs.knows <= set(KNOWLEDGE)
    assert kind.needs.does <= set(POWERS)
    for group in kind.needs.sees:
        assert group <= set(KINDS)
    assert isinstance(kind.leak, Leak)
    assert kind.__call__ is Attack.__call__, "write `run`; `__call__` does the checking"


@pytest.mark.parametrize("entry", [e for e in EVERYTHING if e.family == "attacks"], ids=lambda entry: entry.name)
def test_an_attack_stands_in_the_folder_of_its_leak_in_a_file_of_its_own_name(entry: Entry) -> None:
    assert isinstance(entry.source, Path)
    assert entry.source.stem == entry.name.replace("-", "_")
    assert entry.source.parent.name == load("attacks", entry.name).leak.name


@pytest.mark.parametrize("entry", [e for e in EVERYTHING if e.family == "defenses"], ids=lambda entry: entry.name)
def test_a_defense_stands_in_a_file_of_its_own_name(entry: Entry) -> None:
    assert isinstance(entry.source, Path)
    assert entry.source.stem == entry.name.replace("-", "_")


@pytest.mark.parametrize("entry", [e for e in EVERYTHING if e.family == "metrics"], ids=lambda entry: entry.name)
def test_a_metric_says_what_it_scores_and_what_perfect_is(entry: Entry) -> None:
    kind = load("metrics", entry.name)
    assert issubclass(kind.guesses, Guess)
    assert isinstance(kind.perfect, float)


@pytest.mark.parametrize("entry", [e for e in EVERYTHING if e.family == "papers"], ids=lambda entry: entry.name)
def test_a_table_has_its_printed_figures_beside_it(entry: Entry) -> None:
    paper, _, table = entry.name.partition("/")
    assert entry.paper == paper
    assert isinstance(entry.source, Path)
    assert entry.source.parent == papers_folder() / paper
    assert table in json.loads((papers_folder() / paper / "expected.json").read_text())
