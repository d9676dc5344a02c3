"""Attack: the author writes `run`; `__call__` checks the threat, the time and the result."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, final

import torch

from fedspill.errors import AttackFailed, FedspillError, Unfit, UsageError
from fedspill.failing_line import failed_with
from fedspill.guess import Guess
from fedspill.leak import Leak
from fedspill.messages import Message
from fedspill.placement import CPU, moved
from fedspill.reads import EVERYTHING, Reads
from fedspill.threat import Needs, ThreatModel
from fedspill.trace import View


class Attack(ABC):
    """One attack. Concrete: a frozen dataclass, its fields are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[Needs]
    leak: ClassVar[Leak[Any]]  # what it guesses, and how that is scored
    reads: ClassVar[Reads] = EVERYTHING  # of the messages that it sees; recordings may leave out what nobody reads
    control: ClassVar[Mapping[str, Any] | None] = None  # a plan that must leak to this attack; None: that of its leak

    @abstractmethod
    def run(self, view: View, rng: torch.Generator) -> Guess:
        """What the author writes. Everything an attack may use is in `view`; all chance comes from `rng`."""

    @final
    def __call__(self, view: View, *, seed: int, limit: float | None = None) -> Guess:
        """Runs the attack if the adversary can, within `limit` seconds, and refuses a result that cannot be scored."""
        refuse_unfit(self, view.threat)
        if limit is not None and not limit > 0:
            raise UsageError(f"A time limit is a positive number of seconds, got {limit}.")
        with time_limit(limit, self.name):
            try:
                guess: Guess = self.run(view, torch.Generator().manual_seed(seed))
            except FedspillError:
                raise
            except Exception as error:  # its text may hold data; the cause stays for whoever debugs
                raise AttackFailed(f"{self.name} failed with {failed_with(error)}.") from error
        promised: type[Guess] = self.leak.guess
        if not isinstance(guess, promised):
            raise AttackFailed(f"{self.name} promised {promised.__name__}, returned {type(guess).__name__}.")
        guess = guess if view.device == CPU else moved(guess, CPU)
        guess.check()
        return guess


class ActiveAttack(Attack):
    """An attack that first plants something in the model it hands out, in rounds of its own choice."""

    # Whether each client is handed a model of its own: `plant` is then asked once for each, the receiver of `model`.
    for_each_client: ClassVar[bool] = False

    @abstractmethod
    def rounds(self, view: View) -> range:
        """The rounds it plants in; `view` is what the adversary has before the federation begins."""

    @abstractmethod
    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        """What the malicious server sends instead of `model`; `view` is what it has before that round."""


def refuse_unfit(attack: Attack, threat: ThreatModel) -> None:
    """Raises Unfit with everything the adversary lacks."""
    lacks = threat.missing(attack.needs)
    if lacks:
        raise Unfit(f"{attack.name} cannot be run by {threat.name}: it needs {'; '.join(lacks)}.")


@contextmanager
def time_limit(seconds: float | None, name: str) -> Iterator[None]:
    """Raises AttackFailed in the running code when time is up. Signals reach the main thread only."""
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("A time limit needs the main thread of a process; run the attack in a worker process.")

    def stop(signum: int, frame: object) -> None:
        raise AttackFailed(f"{name} was stopped after {seconds:g} s.", remedy="Raise the limit or lower its options.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
