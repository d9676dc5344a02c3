"""Explain: everything that can be listed can be explained."""

from typing import get_args

import pytest

from fedspill.cli.explain import facts_about as explain
from fedspill.errors import UnknownName
from fedspill.registry import Entry, Family, entries
from fedspill.threat import ADVERSARIES, KNOWLEDGE

EVERYTHING = [entry for family in get_args(Family) for entry in entries(family)]


@pytest.mark.parametrize("entry", EVERYTHING, ids=lambda entry: f"{entry.family}/{entry.name}")
def test_everything_registered_is_explained(entry: Entry) -> None:
    facts = explain(f"{entry.family}/{entry.name}")
    assert facts["name"] == entry.name
    assert facts["kind"] == entry.family
    assert facts["title"] == entry.title
    assert facts["about"]
    assert bool(facts["needs"]) == (entry.family == "attacks")


@pytest.mark.parametrize("name", ADVERSARIES)
def test_every_adversary_is_explained(name: str) -> None:
    facts = explain(name)
    assert facts["kind"] == "adversaries"
    assert facts["sees"]
    assert facts["knows"]
    assert facts["does"]


def test_needs_and_options_are_said_in_words() -> None:
    facts = explain("llbg-aux")
    assert "to see aggregate or gradient or update messages" in facts["needs"]
    assert f"to know {KNOWLEDGE['aux_data']}" in facts["needs"]
    assert explain("llbg-gamma")["options"] == ["gamma: float = 0.7"]
    assert explain("curious-server")["does"] == ["follows the protocol"]


def test_a_name_of_two_kinds_says_so() -> None:
    facts = explain("custom")
    assert facts["kind"] == "datasets"
    assert facts["see also"] == ["models/custom"]
    assert explain("models/custom")["kind"] == "models"
    assert "see also" not in explain("models/custom")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'llbg'"):
        explain("llbgg")
