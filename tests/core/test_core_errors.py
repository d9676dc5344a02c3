"""Errors: an exit code, a remedy, and safe travel between processes."""

import pickle

import pytest

from fedspill import errors
from fedspill.errors import ExitCode, FedspillError, InputRefused, PlanError, TraceRefused, UnknownName, UsageError

EVERY_ERROR = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedspillError)]


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_every_error_says_why_and_ends_with_a_code_that_is_neither_success_nor_a_finding(
    kind: type[FedspillError],
) -> None:
    assert kind.__doc__
    assert kind.exit_code in (ExitCode.USAGE, ExitCode.INCOMPLETE, ExitCode.REFUSED)


@pytest.mark.parametrize(
    "error",
    [
        InputRefused("a file", remedy="do this"),
        TraceRefused("cut"),
        UnknownName("attack", "llbh", ["llbg", "llg"]),
        PlanError("plan.toml", ["one", "two"]),
        UsageError(""),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_travels_between_processes_whole(error: FedspillError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_problem_and_remedy_make_the_message() -> None:
    assert str(InputRefused("It is cut.", remedy="Copy it again.")) == "It is cut. Copy it again."
    assert str(InputRefused("It is cut.")) == "It is cut."


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    assert str(UnknownName("attack", "llbgg", ["ebi", "llbg"])).endswith("Did you mean 'llbg'?")
    assert str(UnknownName("attack", "zzz", ["llbg", "ebi"])).endswith("Known: ebi, llbg.")
    assert str(UnknownName("attack", "zzz", [])).endswith("Known: none.")


def test_a_plan_lists_all_of_its_mistakes() -> None:
    assert "has 1 mistake:\n  - one" in str(PlanError("p", ["one"]))
    assert "has 2 mistakes:\n  - one\n  - two" in str(PlanError("p", ["one", "two"]))


def test_exit_codes_are_frozen() -> None:
    """CI files of users hold them."""
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FINDINGS": 1,
        "USAGE": 2,
        "INCOMPLETE": 3,
        "REFUSED": 4,
        "READ": 5,
        "INTERRUPTED": 130,
    }
    assert errors.InputRefused.exit_code == 4
    assert errors.UsageError.exit_code == 2
