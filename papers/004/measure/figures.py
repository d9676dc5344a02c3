"""Figures of paper 004's tables from measured lines: means over repetitions, shares of attacks, 90 % intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from fedspill.reproduce import By

from .figure import PERCENT, Figure, Line, area, grouped, guessed, mean_of, share_of, together

AREA = "restricted ROC area, percent"
ARRIVED = 0.9  # of the way to a plant
PUBLISHED = ("aai", "mia2aia", "ami")
SLOWLY = ("slowly", "slowly, weaker", "slowly, all larger")
HIDDEN = ("gated", "just below", "spread", "spread, just below", *SLOWLY)
GUARDS = ("guard", "wadm", "wadm, corrected", "badacc", "badauc")


def activation(lines: Sequence[Line]) -> Iterator[Figure]:
    """Figures 2 and 3: TPR with and without imputation, FPR, and how many others matter."""
    for cell, kind, some in _settings(lines):
        of = [line["attacks"][kind]["theory"] for line in some if "theory" in line["attacks"][kind]]
        for key, metric in (("tpr", "TPR, %"), ("tpr_imputed", "TPR with imputation, %"), ("fpr", "FPR, %")):
            if of:
                values = [100 * statistics.fmean(one[key]) for one in of]
                yield mean_of(
                    {**cell, "attack": kind}, _by(kind), metric, values, 50.0 if key[0] == "t" else 0.0, PERCENT
                )
        if of:
            values = [statistics.fmean(one["false_positives"]) for one in of]
            yield mean_of({**cell, "attack": kind}, _by(kind), "others that matter", values, 0.0, (0.0, math.inf))


def inference(lines: Sequence[Line]) -> Iterator[Figure]:
    """Figures 4 and 5: the attribute of members and of others, and membership; imputation beside it."""
    for cell, kind, some in _settings(lines):
        for setting in ("pooled", "sgd", "adam"):
            read = [line for line in some if setting in line["attacks"][kind]]
            if not read:
                continue
            for who in ("members",) if kind in ("ami", "membership") else ("members", "others"):
                values = [_area_of(line, line["attacks"][kind][setting], kind, who) for line in read]
                named = {**cell, "attack": kind, "setting": setting, "who": who}
                yield mean_of(named, _by(kind), AREA, values, _guessed(read[0], kind, who), PERCENT)
        if kind == "closed":
            for how in ("logistic", "boosting"):
                values = [
                    _area_of(line, line["imputation"][how], kind, "members")
                    for line in some
                    if how in line["imputation"]
                ]
                if values:
                    chance = _guessed(some[0], kind, "members")
                    yield mean_of({**cell, "attack": f"imputation, {how}"}, "baseline", AREA, values, chance, PERCENT)


def _asked(line: Line, kind: str, who: str) -> tuple[list[int], list[int]]:
    """Of the targets that are asked about: which, and what is true of them."""
    if kind in ("ami", "membership"):
        return list(range(len(line["members"]))), line["members"]
    chosen = [i for i, member in enumerate(line["members"]) if member == (who == "members")]
    return chosen, [line["values"][i] for i in chosen]


def _area_of(line: Line, scores: Sequence[float], kind: str, who: str) -> float:
    chosen, true = _asked(line, kind, who)
    return area(true, [scores[i] for i in chosen])


def _guessed(line: Line, kind: str, who: str) -> float:
    true = _asked(line, kind, who)[1]
    return guessed(len(true) - sum(true))


def detection(lines: Sequence[Line]) -> Iterator[Figure]:
    """Figures 8, 9 and 11: how many attacks each guard detects; of BADAcc and BADAUC, how many clients do."""
    for (data, elu), some in grouped(lines, "data", "elu").items():
        for kind in _kinds(some):
            rounds = sorted({after for line in some for after in line["attacks"].get(kind, {})}, key=int)
            for guard in GUARDS:
                marks = [
                    mark
                    for line in some
                    for after in rounds
                    if after in line["attacks"].get(kind, {})
                    for mark in line["attacks"][kind][after].get(guard, [])
                ]
                cell = {"data": data, "activation": _bend(elu), "attack": kind, "guard": guard}
                by: By = "fedspill" if guard == "guard" else "paper"
                if marks:
                    yield share_of(cell, by, "detected, %", sum(marks), len(marks))


def false_alarms(lines: Sequence[Line]) -> Iterator[Figure]:
    """Figure 10 and more: alarms at benign models; where all clients take part they see the same, and count once."""
    for (data, share, event), some in grouped(lines, "data", "share", "event").items():
        cell = {"data": data, "clients": "all" if share == 1 else f"{share:.0%}", "event": event}
        pairs, alarms = sum(line["pairs"] for line in some), sum(len(line["alarms"]) for line in some)
        yield share_of({**cell, "guard": "guard"}, "fedspill", "false alarms, %", alarms, pairs)
        asked = [line for line in some if line["left"] is not None]
        if asked:
            for place, guard in enumerate(("wadm", "wadm, corrected")):
                many, n = sum(line["wadm"][place] for line in asked), sum(line["pairs"] for line in asked)
                yield share_of({**cell, "guard": guard}, "paper", "false alarms, %", many, n)
            for place, guard in enumerate(("badacc", "badauc")):
                gone, n = sum(line["left"][place] for line in asked), sum(line["asked"][place] for line in asked)
                yield share_of({**cell, "guard": guard}, "paper", "false alarms, %", gone, n)
        if event != "none":
            longest = max(line["longest silence"] for line in some)
            yield Figure(
                cell, "fedspill", "rounds refused in a row, at most", longest, longest, longest, len(some), 0.0
            )


def after_roll_back(lines: Sequence[Line]) -> Iterator[Figure]:
    """What is read of members in rounds on the last accepted model, and what that model is worth.

    Members of all repetitions together: what is asked is whether the area differs from that of guessing, by little.
    """
    for (data, elu), some in grouped(lines, "data", "elu").items():
        cell = {"data": data, "activation": _bend(elu)}
        asked = [(line, *_asked(line, "closed", "members")) for line in some]
        values = [value for _, _, values in asked for value in values]
        scores = [line["scores"][i] for line, chosen, _ in asked for i in chosen]
        yield together({**cell, "who": "members"}, AREA, values, scores)
        for key, when in (("hold", "what clients train on"), ("after", "after the round"), ("kept", "round dropped")):
            lost = [100 * (line[key][0] - line[key][1]) for line in some if key in line]
            if lost:
                yield mean_of(cell, "fedspill", f"ROC area below the benign run, {when}, %", lost, 0.0)


def recovered(lines: Sequence[Line]) -> Iterator[Figure]:
    """Figures 6, 18 and 19: the model's ROC area so many rounds after an attack, with and without mitigation."""
    for (data, elu, kind), some in grouped(lines, "data", "elu", "attack").items():
        for label in ("unguarded", "wadm", "rolled back", "benign"):
            for rounds in (0, 1, 3, 10):
                cell = {"data": data, "activation": _bend(elu), "attack": kind, "guard": label, "rounds": rounds}
                values = [100 * line[label][rounds] for line in some]
                yield mean_of(cell, _by(kind), "ROC area, %", values, 50.0, PERCENT)


def at_once(lines: Sequence[Line]) -> Iterator[Figure]:
    """Figures 15 and 16: one to sixteen targets in one model."""
    for (data, elu), some in grouped(lines, "data", "elu").items():
        for kind in _kinds(some):
            for many in ("1", "2", "4", "8", "16"):
                of = [line["attacks"][kind][many] for line in some]
                cell = {"data": data, "activation": _bend(elu), "attack": kind, "targets": int(many)}
                for key, chance in (("tpr", 50.0), ("fpr", 0.0)):
                    values = [100 * statistics.fmean(one[key]) for one in of]
                    yield mean_of(cell, _by(kind), f"{key.upper()}, %", values, chance, PERCENT)
                right = [
                    (score > 0) == bool(v) for one in of for score, v in zip(one["sgd"], one["values"], strict=True)
                ]
                yield share_of(cell, _by(kind), "right in an SGD round, %", sum(right), len(right), 50.0)


def hidden(lines: Sequence[Line]) -> Iterator[Figure]:
    """Attackers who know the guard: how many are seen, how far they get, what they still read, and at what cost."""
    for (elu,), some in grouped(lines, "elu").items():
        yield from _hidden({"activation": _bend(elu)}, some)


def _hidden(which: Line, lines: Sequence[Line]) -> Iterator[Figure]:
    ways: dict[str, list[tuple[Line, Line]]] = {}
    for line in lines:
        for share, found in line.get("small", {}).items():
            ways.setdefault(f"{float(share):.2%} of the way", []).append((line, found))
        for name, found in line.get("weaker", {}).items():
            ways.setdefault(f"plant with {name}", []).append((line, found))
        for name in HIDDEN:
            if name in line:
                ways.setdefault(name, []).append((line, line[name]))
    for name, of in ways.items():
        cell = {**which, "way": name}
        if "alarms" in of[0][1]:
            marks = [alarm for _, found in of for alarm in found["alarms"]]
            yield share_of(cell, "fedspill", "seen, %", sum(marks), len(marks))
        if "shares" in of[0][1]:
            far = [share[-1] if isinstance(share, list) else share for _, found in of for share in found["shares"]]
            yield mean_of(cell, "fedspill", "of the way, %", [100 * share for share in far], 0.0)
            if name in SLOWLY:
                yield share_of(cell, "fedspill", "arrived, %", sum(share >= ARRIVED for share in far), len(far))
        for setting in [setting for setting in ("pooled", "sgd", "gated") if setting in of[0][1]]:
            values = [value for line, _ in of for value in line["values"]]
            scores = [score for _, found in of for score in found[setting]]
            yield together(cell, f"{AREA}, {setting}", values, scores)
        lost = [line["area"] - statistics.fmean(found["areas"]) for line, found in of]
        yield mean_of(cell, "fedspill", "ROC area of the model lost", lost, 0.0)
    marks = [alarm for line in lines for alarm in line.get("claims a later round", [])]
    if marks:
        yield share_of({**which, "way": "claims a later round"}, "fedspill", "seen, %", sum(marks), len(marks))


def _settings(lines: Sequence[Line]) -> Iterator[tuple[dict[str, Any], str, list[Line]]]:
    """Cells of readings, with the repetitions that have that attack."""
    for (data, attribute, elu), some in grouped(lines, "data", "attribute", "elu").items():
        for kind in _kinds(some):
            cell = {"data": data, "attribute": attribute, "activation": _bend(elu)}
            yield cell, kind, [line for line in some if kind in line["attacks"]]


def _kinds(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(kind for line in lines for kind in line["attacks"]))


def _bend(elu: bool) -> str:
    return "elu" if elu else "relu"


def _by(kind: str) -> By:
    return "paper" if kind in PUBLISHED else "fedspill"
