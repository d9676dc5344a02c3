"""Is it really on: every defense of a federation held against what its clients sent, and what its claims rest on."""

from __future__ import annotations

from collections.abc import Sequence

from fedspill.defense import Check, DataUse, Defense, Guarantee, SentMessages
from fedspill.federation.horizontal import Settings
from fedspill.messages import Kind, Message
from fedspill.trace import Trace

MOST = 64  # messages that are looked at: the first rounds', of every client


def check_defenses(defenses: Sequence[Defense], trace: Trace) -> list[Check]:
    """One check per defense, in order; each sees what left the client, after all of them.

    A defense behind it may hide its marks (noise fills the zeros that compression left), so where another one follows
    that changes messages, a failed check is not believed; unless that other one is not applied either.
    """
    if not defenses:
        return []
    sent = first_messages(trace)
    checks: list[Check] = []
    covering: list[str] = []
    for defense in reversed(defenses):
        check = defense.verify(sent)
        does_nothing = defense.verify(SentMessages(())).on is False
        if check.on is False and covering and not does_nothing:
            check = Check(defense.name, None, f"its marks are covered by {', '.join(reversed(covering))}")
        if check.on is not False and type(defense).outgoing is not Defense.outgoing:
            covering.append(defense.name)
        checks.append(check)
    return checks[::-1]


def first_messages(trace: Trace) -> SentMessages:
    """The first updates or gradients of a recording."""
    sent: list[Message] = []
    kinds: tuple[Kind, ...] = ("update", "gradient")
    for kind in kinds:
        for message in trace.messages(kind):
            sent.append(message)
            if len(sent) >= MOST:
                break
    head = [trace.protocol.get(word) for word in ("head_weight", "head_bias")]
    return SentMessages(tuple(sent), tuple(name for name in head if isinstance(name, str)))


def said_of(check: Check) -> str:
    """A check as a sentence, for the events of a report."""
    word = {True: "is on", False: "is configured but not applied", None: "cannot be verified"}[check.on]
    return f"{check.defense} {word}: {check.why}"


def data_use(settings: Settings, samples: Sequence[int], parameters: int) -> DataUse:
    """The most use that any client's data may get: taking part in every round counts, chance does not."""
    training = settings.training
    for defense in settings.defenses:
        training = defense.local(training)
    schedules = [training.schedule(number) for number in samples]
    return DataUse(
        rounds=settings.rounds,
        steps=max(schedule.steps for schedule in schedules),
        epochs=max(schedule.epochs for schedule in schedules),
        sampling=max(min(1.0, training.batch_size / number) for number in samples),
        parameters=parameters,
        samples=min(samples),
    )


def guarantee_of(settings: Settings, samples: Sequence[int], parameters: int) -> Guarantee | None:
    """The strongest of the defenses' guarantees; guarantees of several mechanisms are not added up."""
    if not settings.defenses:
        return None
    use = data_use(settings, samples, parameters)
    claims = [claim for claim in (defense.claims(use) for defense in settings.defenses) if claim is not None]
    return min(claims, key=lambda claim: claim.epsilon, default=None)
