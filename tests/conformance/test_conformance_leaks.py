"""What every leak must be: a folder with a question, a guess, metrics, a control plan, and words for people.

A new leak is checked here without being mentioned: a folder of leaks/ with a `leak.py` that makes a `Leak`.
"""

import dataclasses
from pathlib import Path

import pytest

from fedspill.deployment.plan import check_plan
from fedspill.guess import Guess
from fedspill.leak import Leak
from fedspill.metric import Metric, Score
from fedspill.registry import Entry, entries, load, load_leak

LEAKS = [entry for entry in entries("leaks") if isinstance(entry.source, Path)]
ATTACKS = [entry.name for entry in entries("attacks") if isinstance(entry.source, Path)]
each = pytest.mark.parametrize("entry", LEAKS, ids=lambda entry: entry.name)


def leak_of(entry: Entry) -> Leak[Guess]:
    leak: Leak[Guess] = load_leak(entry.name)
    return leak


@each
def test_it_is_a_folder_of_its_name_and_listed_as_it_says(entry: Entry) -> None:
    leak = leak_of(entry)
    assert isinstance(leak, Leak)
    assert isinstance(entry.source, Path)
    assert entry.source.parent.name == leak.name.replace("-", "_")
    assert (entry.name, entry.title, entry.about) == (leak.name, leak.title, leak.question)
    assert leak.title
    assert not leak.title.endswith("."), "a title is a phrase, not a sentence"


@each
def test_it_asks_a_question(entry: Entry) -> None:
    assert leak_of(entry).question.endswith("?")
    assert leak_of(entry).question[0].isupper()


@each
def test_its_metrics_score_its_guess_and_are_registered_in_its_folder(entry: Entry) -> None:
    leak = leak_of(entry)
    assert issubclass(leak.guess, Guess)
    assert leak.metrics, "the first metric is the headline"
    assert leak.headline is leak.metrics[0]
    here = {found.name: found for found in entries("metrics")}
    for metric in leak.metrics:
        assert isinstance(metric, Metric)
        assert issubclass(leak.guess, metric.guesses)
        assert here[metric.name].source.parent.name == entry.name  # type: ignore[union-attr]
    assert len({metric.name for metric in leak.metrics}) == len(leak.metrics)


@each
def test_every_metric_of_its_folder_is_one_of_the_leak(entry: Entry) -> None:
    assert isinstance(entry.source, Path)
    inside = {
        found.name for found in entries("metrics") if getattr(found.source, "parent", None) == entry.source.parent
    }
    assert inside == {metric.name for metric in leak_of(entry).metrics}


@each
def test_its_control_is_a_plan(entry: Entry) -> None:
    check_plan({"seed": 1, **leak_of(entry).control}, f"the control of {entry.name}")


@each
def test_its_score_is_said_as_a_sentence(entry: Entry) -> None:
    leak = leak_of(entry)
    perfect = leak.headline.perfect
    score = Score(perfect, perfect, perfect, 10, (perfect + 1) / 3)
    words = leak.words(score)
    assert words.figure
    assert words.figure in words.sentence
    assert "{" not in words.sentence
    assert len(words.sentence.split()) > 4, "a sentence, not a label"
    assert not words.sentence.endswith("."), "a report puts the full stop"
    assert words.by_guessing == leak.figure(score.chance) != words.figure


@each
def test_it_names_its_place_in_public_taxonomies(entry: Entry) -> None:
    taxonomy = leak_of(entry).taxonomy
    assert taxonomy, "give the nearest ids, such as NIST AI 100-2"
    assert all(key and value for key, value in taxonomy.items())


@each
def test_somebody_attacks_it_and_every_attack_of_it_knows_it(entry: Entry) -> None:
    of = [name for name in ATTACKS if load("attacks", name).leak is leak_of(entry)]
    assert of, f"no attack in leaks/{entry.name}/ has leak = {entry.class_name}"


@pytest.mark.parametrize("name", ATTACKS)
def test_the_control_of_an_attack_is_a_plan(name: str) -> None:
    attack = load("attacks", name)
    check_plan({"seed": 1, **(attack.control or attack.leak.control)}, f"the control of {name}")


def test_no_two_leaks_ask_the_same_or_share_a_guess_or_a_headline() -> None:
    leaks = [leak_of(entry) for entry in LEAKS]
    for unique in ("name", "title", "question", "guess", "headline"):
        found = [getattr(leak, unique) for leak in leaks]
        assert len(set(found)) == len(found), unique
    assert all(dataclasses.is_dataclass(leak.guess) for leak in leaks)
