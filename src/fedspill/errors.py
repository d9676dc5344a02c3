"""One class per cause; each knows the exit code it ends a command with, and says what to do about it."""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    OK = 0
    FINDINGS = 1  # something at or above --fail-on
    USAGE = 2  # the command line or the plan is wrong
    INCOMPLETE = 3  # the work did not finish
    REFUSED = 4  # an input file or message was refused
    READ = 5  # a recording was read, and nothing is known to hold the readings against
    INTERRUPTED = 130


class FedspillError(Exception):
    """What was expected, what came, and what to do; shown to users without a traceback."""

    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments need this to travel between worker processes.
        return _rebuild, (type(self), self.problem, self.remedy), vars(self)


def _rebuild(kind: type[FedspillError], problem: str, remedy: str) -> FedspillError:
    error = FedspillError.__new__(kind)
    FedspillError.__init__(error, problem, remedy=remedy)
    return error


class UsageError(FedspillError, ValueError):
    """The request itself makes no sense: a wrong option, an impossible combination."""

    exit_code = ExitCode.USAGE


class UnknownName(UsageError):
    """No attack, data set, model, ... of that name."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names) or 'none'}."
        super().__init__(f"There is no {what} named {name!r}.", remedy=hint)


class PlanError(UsageError):
    """A plan has one or more mistakes; all of them are listed at once."""

    def __init__(self, source: str, mistakes: Iterable[str]) -> None:
        self.mistakes = list(mistakes)
        count = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        super().__init__(f"{source} has {count}:\n" + "\n".join(f"  - {mistake}" for mistake in self.mistakes))


class DataMissing(FedspillError):
    """A data set's files are not where they were looked for."""

    exit_code = ExitCode.USAGE


class NotEnoughExamples(UsageError):
    """A partition asks for more examples of a class than the data set has."""


class InputRefused(FedspillError):
    """A file or message from outside is malformed, dangerous or not what it claims to be."""

    exit_code = ExitCode.REFUSED


class TraceRefused(InputRefused):
    """A recorded trace is truncated, altered, unfinished or over the limits."""


class NotWritten(FedspillError):
    """A result cannot be written: no space, no permission, no such folder."""


class NoHead(FedspillError):
    """A model or checkpoint has no layer of the asked kind."""

    exit_code = ExitCode.USAGE


class NotVisible(FedspillError):
    """An attack asked for a message that its adversary does not see."""

    exit_code = ExitCode.USAGE


class NotKnown(FedspillError):
    """An attack asked for knowledge that its adversary does not have."""

    exit_code = ExitCode.USAGE


class Unfit(FedspillError):
    """An attack needs more than the adversary sees, knows or may do."""

    exit_code = ExitCode.USAGE


class AttackFailed(FedspillError):
    """An attack produced nothing that can be scored: not finite, of the wrong shape, out of time."""


class AttackCrashed(AttackFailed):
    """An attack ended with an error that it does not know: it may not be made for such a model."""


class NotApplicable(FedspillError):
    """An attack fits the adversary, but what was observed does not carry what it reads."""


class NotScored(FedspillError):
    """A guess cannot be held against the truth: nothing is known of it, or it speaks of other classes."""


class NothingToGuess(NotScored):
    """There is no leak of this kind to look for: any guess would do, or the attack says that it does not apply."""


class NoTruth(NotScored):
    """The recording does not hold what was true: the guess stands, and cannot be scored."""


class NoTwin(FedspillError):
    """A recording cannot be run again with other data, and the reason why."""


class OwnCodeFailed(UsageError):
    """The user's own code raised something; its text is for the terminal alone, since it may quote data."""

    def __init__(self, problem: str, *, remedy: str = "", trace: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        self.trace = trace


class NotAChain(FedspillError):
    """A network whose parts cannot be told apart in the order they run."""
