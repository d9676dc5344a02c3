"""Honest models that configured defenses refused or repaired: false alarms, and clients that did not train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedspill.audit.result import TurnedAway
from fedspill.plain_text import one_line
from fedspill.trace import Event


def told(event: Event) -> str:
    """An event as a line of a report."""
    return one_line(f"round {event.round}, {event.party}: {event.what}")


def turned_away(events: Sequence[Event]) -> list[TurnedAway]:
    """What each defense turned away in one federation."""
    by_defense: dict[str, list[Event]] = {}
    for event in events:
        if event.defense:
            by_defense.setdefault(event.defense, []).append(event)
    return [
        TurnedAway(
            defense=defense,
            refused=sum(event.action == "refuse" for event in own),
            repaired=sum(event.action == "repair" for event in own),
            clients=len({event.party for event in own}),
            rounds=len({event.round for event in own}),
            first=told(own[0]),
        )
        for defense, own in by_defense.items()
    ]


def over_federations(several: Iterable[TurnedAway]) -> list[TurnedAway]:
    """The same over all repeats, which have rounds and clients of their own."""
    whole: dict[str, TurnedAway] = {}
    for one in several:
        before = whole.get(one.defense)
        whole[one.defense] = one if before is None else _sum(before, one)
    return list(whole.values())


def _sum(one: TurnedAway, other: TurnedAway) -> TurnedAway:
    return TurnedAway(
        defense=one.defense,
        refused=one.refused + other.refused,
        repaired=one.repaired + other.repaired,
        clients=one.clients + other.clients,
        rounds=one.rounds + other.rounds,
        first=one.first,
    )
