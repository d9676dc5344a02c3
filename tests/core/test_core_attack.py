"""Attack: the base checks threat, time and result, whatever the author wrote."""

import signal
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar, final

import pytest
import torch
from spine import CLASSES, attempt, fitting_adversary, knowledge, recorded

from fedspill.attack import Attack
from fedspill.errors import AttackFailed, NotApplicable, NotKnown, NotVisible, Unfit, UsageError
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.messages import Kind, Message
from fedspill.registry import entries, make
from fedspill.threat import ADVERSARIES, CURIOUS_SERVER, CURIOUS_SERVER_SECAGG, EAVESDROPPER, Needs, needs
from fedspill.trace import MemoryTrace, Origin, Trace, Truth, View

GOOD = LabelCounts([Origin(0, "client:0")], torch.ones(1, CLASSES, dtype=torch.int64))


@final
@dataclass(frozen=True)
class Scripted(Attack):
    """Does what a test asks for."""

    name: ClassVar[str] = "scripted"
    title: ClassVar[str] = "For tests"
    paper: ClassVar[str] = "none"
    needs: ClassVar[Needs] = needs()
    leak = LABELS

    script: Any = None

    def run(self, view: View, rng: torch.Generator) -> Any:
        return self.script(view, rng)


@pytest.fixture(scope="module")
def trace() -> MemoryTrace:
    return recorded()[0]


@pytest.mark.parametrize("kind", ["update", "gradient", "embedding", "batch"])
def test_an_attack_that_asks_for_a_message_it_may_not_see_gets_not_visible(trace: MemoryTrace, kind: Kind) -> None:
    cheat = Scripted(lambda view, rng: view.get(kind))
    with pytest.raises(NotVisible, match=f"does not see {kind}"):
        cheat(trace.view(CURIOUS_SERVER_SECAGG), seed=0)


@pytest.mark.parametrize("what", ["architecture", "aux_data", "own_data", "plan", "label_counts"])
def test_an_attack_that_asks_for_knowledge_it_may_not_have_gets_not_known(trace: MemoryTrace, what: str) -> None:
    cheat = Scripted(lambda view, rng: view.knows(what))
    with pytest.raises(NotKnown, match="eavesdropper does not know"):
        cheat(trace.view(EAVESDROPPER, knowledge=knowledge()), seed=0)


class Tripwire(Trace):
    """A trace whose truth must not be touched."""

    def __init__(self, trace: MemoryTrace) -> None:
        self._trace = trace
        self.protocol = trace.protocol
        self.events = trace.events
        self.touched = 0

    def messages(self, kind: Kind | None = None, *, round: int | None = None) -> Any:
        return self._trace.messages(kind, round=round)

    def truth(self) -> Truth:
        self.touched += 1
        raise AssertionError("an attack touched the truth")


QUICK = {"tableak": {"starts": 2, "steps": 3}}  # a descent that reads the same few things in every step


@pytest.mark.parametrize("name", [entry.name for entry in entries("attacks")])
def test_every_attack_runs_with_the_truth_wired(trace: MemoryTrace, name: str) -> None:
    attack = make("attacks", name, QUICK.get(name, {}))
    for threat in (fitting_adversary(attack), *ADVERSARIES.values()):
        wired = Tripwire(trace)
        view = wired.view(threat, me="client:0", knowledge=knowledge())
        if threat.missing(attack.needs):
            with pytest.raises(Unfit):
                attack(view, seed=1)
        else:
            result = attempt(lambda view=view: attack(view, seed=1))
            assert isinstance(result, attack.leak.guess | NotApplicable), result
        assert wired.touched == 0


def test_the_wire_holds(trace: MemoryTrace) -> None:
    """Or the test above proves nothing: whoever digs for the truth trips it."""
    cheat = Scripted(lambda view, rng: view._View__said.__closure__[0].cell_contents.truth())
    wired = Tripwire(trace)
    with pytest.raises(AttackFailed):
        cheat(wired.view(CURIOUS_SERVER), seed=0)
    assert wired.touched == 1


def test_a_result_of_the_wrong_kind_is_refused(trace: MemoryTrace) -> None:
    with pytest.raises(AttackFailed, match="scripted promised LabelCounts, returned list"):
        Scripted(lambda view, rng: [1, 2])(trace.view(CURIOUS_SERVER), seed=0)
    with pytest.raises(AttackFailed, match="returned NoneType"):
        Scripted(lambda view, rng: None)(trace.view(CURIOUS_SERVER), seed=0)


@pytest.mark.parametrize(
    "counts",
    [
        torch.ones(2, CLASSES, dtype=torch.int64),
        torch.ones(CLASSES, dtype=torch.int64),
        torch.ones(1, CLASSES),
        torch.full((1, CLASSES), torch.nan),
        -torch.ones(1, CLASSES, dtype=torch.int64),
    ],
    ids=["two rows", "no rows", "fractions", "nan", "negative"],
)
def test_counts_that_are_none_are_refused(trace: MemoryTrace, counts: torch.Tensor) -> None:
    with pytest.raises(AttackFailed, match="Expected"):
        Scripted(lambda view, rng: LabelCounts(GOOD.of, counts))(trace.view(CURIOUS_SERVER), seed=0)


def test_an_attack_that_raises_is_a_failed_attack_and_its_text_is_not_passed_on(trace: MemoryTrace) -> None:
    def script(view: View, rng: torch.Generator) -> None:
        raise IndexError("patient 17 has label 3")

    with pytest.raises(AttackFailed, match="scripted failed with IndexError") as failed:
        Scripted(script)(trace.view(CURIOUS_SERVER), seed=0)
    assert "patient" not in str(failed.value)
    assert isinstance(failed.value.__cause__, IndexError)
    with pytest.raises(NotApplicable, match="no luck"):
        Scripted(lambda view, rng: (_ for _ in ()).throw(NotApplicable("no luck")))(trace.view(CURIOUS_SERVER), seed=0)


def test_all_chance_comes_from_the_seed(trace: MemoryTrace) -> None:
    drawn: list[float] = []
    attack = Scripted(lambda view, rng: drawn.append(float(torch.rand((), generator=rng))) or GOOD)
    for seed in (1, 1, 2):
        assert attack(trace.view(CURIOUS_SERVER), seed=seed) is GOOD
    assert drawn[0] == drawn[1] != drawn[2]


def test_an_attack_that_does_not_end_is_stopped_and_the_clock_is_put_back(trace: MemoryTrace) -> None:
    def script(view: View, rng: torch.Generator) -> None:
        while True:
            time.sleep(0.001)

    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(AttackFailed, match=r"scripted was stopped after 0\.05 s"):
        Scripted(script)(trace.view(CURIOUS_SERVER), seed=0, limit=0.05)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert Scripted(lambda view, rng: GOOD)(trace.view(CURIOUS_SERVER), seed=0, limit=60) is GOOD
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(trace: MemoryTrace, limit: float) -> None:
    with pytest.raises(UsageError, match="positive"):
        Scripted(lambda view, rng: GOOD)(trace.view(CURIOUS_SERVER), seed=0, limit=limit)


def test_a_limit_outside_the_main_thread_is_refused_rather_than_ignored(trace: MemoryTrace) -> None:
    results: list[Any] = []
    attack = Scripted(lambda view, rng: GOOD)

    def run() -> None:
        results.append(attempt(lambda: attack(trace.view(CURIOUS_SERVER), seed=0, limit=1)))
        results.append(attempt(lambda: attack(trace.view(CURIOUS_SERVER), seed=0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert isinstance(results[0], UsageError)
    assert results[1] is GOOD


def test_a_message_handed_to_an_attack_is_its_own(trace: MemoryTrace) -> None:
    def spoil(view: View, rng: torch.Generator) -> LabelCounts:
        for message in view.get("update"):
            for tensor in message.tensors.values():
                tensor.zero_()
        return GOOD

    Scripted(spoil)(trace.view(CURIOUS_SERVER), seed=0)
    messages: list[Message] = trace.view(CURIOUS_SERVER).get("update")
    assert all(bool(tensor.any()) for message in messages for tensor in message.tensors.values())
