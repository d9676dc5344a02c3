"""Plots as inline SVG: small, scalable, coloured by the page's own style, each with its content in words.

Every plot is one function from numbers to markup. Text goes through `escape`; nothing else from outside is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

WIDTH, HEIGHT = 340, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 40


@dataclass(frozen=True)
class Axes:
    """From values to places in the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.y_low) / (self.y_high - self.y_low)


def gauge(score: Mapping[str, Any]) -> Markup:
    """From chance to the score on a scale from 0 to 1, with the interval; empty where the scale is another."""
    numbers = [score[name] for name in ("value", "low", "high", "chance")]
    if any(number is None or not 0 <= number <= 1 for number in numbers):
        return Markup()
    value, low, high, chance = (300 * number for number in numbers)
    words = f"score {numbers[0]}, interval {numbers[1]} to {numbers[2]}, chance {numbers[3]}, on a scale from 0 to 1"
    parts = [
        _rect(0, 7, 300, 8, "track"),
        _rect(min(chance, value), 7, abs(value - chance), 8, "guess"),
        _line(low, 11, high, 11, "whisker"),
        _line(low, 6, low, 16, "whisker"),
        _line(high, 6, high, 16, "whisker"),
        _line(chance, 1, chance, 21, "chance"),
    ]
    return _svg(300, 22, words, parts, "gauge")


def dots(read: int, guessed: int) -> Markup:
    """A hundred squares, row by row: what guessing gets, what is read besides, what is not read."""
    parts = []
    for index in range(100):
        kind = "guess" if index < min(read, guessed) else "read" if index < read else "rest"
        parts.append(
            Markup('<rect x="{}" y="{}" width="9" height="9" rx="2" class="{}"/>').format(
                11 * (index % 10), 11 * (index // 10), kind
            )
        )
    return _svg(108, 108, f"{read} of 100, where guessing gets {guessed}", parts, "dots")


def histogram(item: Mapping[str, Any]) -> Markup:
    """How many origins had a score in each step."""
    edges, counts = item["edges"], item["counts"]
    axes = Axes(edges[0], edges[-1], 0, max(counts) or 1)
    parts = _frame(axes, item["title"], "origins", whole=True)
    for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True):
        top = axes.y(count)
        parts.append(_rect(axes.x(left) + 1, top, axes.x(right) - axes.x(left) - 2, axes.y(0) - top, "guess"))
    return _plot(f"{item['title']}: distribution over origins", parts)


def bars(item: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """True beside guessed, for each name."""
    true, guessed = item["true"], item["guessed"]
    axes = Axes(0, len(true), 0, max([*true, *guessed]) or 1)
    parts = _frame(axes, "", "", x_ticks=[])
    step = max(1, math.ceil(len(true) / 12))
    for index, pair in enumerate(zip(true, guessed, strict=True)):
        for place, amount, kind in ((0.12, pair[0], "true"), (0.5, pair[1], "guess")):
            parts.append(
                _rect(axes.x(index + place), axes.y(amount), axes.x(0.38) - LEFT, axes.y(0) - axes.y(amount), kind)
            )
        if index % step == 0:
            parts.append(_text(axes.x(index + 0.5), HEIGHT - BOTTOM + 14, names[index][:8], "middle"))
    return _plot(f"{item['title']}: true beside inferred", parts + _legend(("true", "true"), ("guess", "inferred")))


def clients(item: Mapping[str, Any]) -> Markup:
    """The score of each client, the highest first, beside chance."""
    rows = sorted(zip(item["values"], item["chance"], strict=True), reverse=True)
    every = [number for row in rows for number in row]
    axes = Axes(0, len(rows), min(0.0, *every), max(1.0, *every))
    parts = _frame(axes, "clients, sorted", "score", x_ticks=[])
    for index, (value, chance) in enumerate(rows):
        left, right = axes.x(index + 0.1), axes.x(index + 0.9)
        top, bottom = sorted((axes.y(value), axes.y(0)))
        parts.append(_rect(left, top, right - left, bottom - top, "guess"))
        parts.append(_line(left, axes.y(chance), right, axes.y(chance), "chance"))
    return _plot(f"{item['title']}: score of each client beside chance", parts)


def pairs(item: Mapping[str, Any]) -> Markup:
    """True against inferred, a larger dot for what happened more often; on the line the guess is right."""
    top = max([*item["true"], *item["guessed"], 1])
    axes = Axes(-0.06 * top, 1.06 * top, -0.06 * top, 1.06 * top)
    parts = _frame(axes, "true", "inferred")
    parts.append(_line(axes.x(0), axes.y(0), axes.x(top), axes.y(top), "chance"))
    most = max(item["count"], default=1)
    for true, guessed, count in zip(item["true"], item["guessed"], item["count"], strict=True):
        radius = 1.5 + 7.5 * math.sqrt(count / most)
        parts.append(
            _circle(axes.x(true), axes.y(guessed), radius, "guess dot", f"{count} times {true} taken for {guessed}")
        )
    return _plot(f"{item['title']}: true against inferred; the dashed line is a perfect guess", parts)


def curve(item: Mapping[str, Any]) -> Markup:
    """A line, and the one it is held against."""
    values = [*item["y"], *item["chance"]]
    inside = min(values) >= 0 and max(values) <= 1
    low, high = (0.0, 1.0) if inside else _widened(values)
    axes = Axes(item["x"][0], item["x"][-1] if item["x"][-1] > item["x"][0] else item["x"][0] + 1, low, high)
    parts = _frame(axes, item["x_title"], item["y_title"])
    parts.append(_path(axes, item["x"], item["chance"], "chance"))
    parts.append(_path(axes, item["x"], item["y"], "stroke"))
    parts += _legend(("stroke", "attack"), ("chance", item["beside"]))
    return _plot(f"{item['title']}", parts)


def frontier(points: Sequence[Mapping[str, Any]], finding: Mapping[str, Any], accuracy: Mapping[str, Any]) -> Markup:
    """Accuracy against what the attack still gets, one numbered dot per setting; 0 is the deployment as it is."""
    start = {"score": finding["score"], "accuracy": accuracy, "severity": finding["severity"], "defense": ""}
    shown = [(number, point) for number, point in enumerate([start, *points]) if _drawable(point)]
    if len(shown) < 2:
        return Markup()
    x_low, x_high = _widened([p["accuracy"][end] for _, p in shown for end in ("low", "high")])
    chance = finding["score"]["chance"]
    y_low, y_high = _widened([p["score"][end] for _, p in shown for end in ("low", "high")] + [chance])
    axes = Axes(x_low, x_high, y_low, y_high)
    parts = _frame(axes, "test accuracy", "attack score")
    parts.append(_line(LEFT, axes.y(chance), WIDTH - RIGHT, axes.y(chance), "chance"))
    by_defense: dict[str, list[tuple[float, float]]] = {}
    for _, point in shown:
        place = (axes.x(point["accuracy"]["value"]), axes.y(point["score"]["value"]))
        by_defense.setdefault(point["defense"], []).append(place)
    for places in by_defense.values():
        parts += [_line(*one, *two, "link") for one, two in pairwise(places)]
    for number, point in shown:
        x, y = axes.x(point["accuracy"]["value"]), axes.y(point["score"]["value"])
        parts.append(_line(axes.x(point["accuracy"]["low"]), y, axes.x(point["accuracy"]["high"]), y, "whisker thin"))
        parts.append(_line(x, axes.y(point["score"]["low"]), x, axes.y(point["score"]["high"]), "whisker thin"))
        parts.append(_circle(x, y, 8, f"badge {point['severity']}", ""))
        parts.append(_text(x, y + 3.5, str(number), "middle", "number"))
    return _plot("Attack score against accuracy; the dashed line is chance", parts)


def draw(item: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """The plot of one piece of evidence."""
    if item["kind"] == "bars":
        return bars(item, names)
    drawers = {"histogram": histogram, "pairs": pairs, "curve": curve, "clients": clients}
    return drawers[item["kind"]](item) if item["kind"] in drawers else Markup()


def _drawable(point: Mapping[str, Any]) -> bool:
    return point["accuracy"] is not None and point["score"]["value"] is not None


def _widened(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room


def _frame(
    axes: Axes, x_title: str, y_title: str, *, x_ticks: Iterable[float] | None = None, whole: bool = False
) -> list[Markup]:
    bottom = HEIGHT - BOTTOM
    parts = [_line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis"), _line(LEFT, TOP, LEFT, bottom, "axis")]
    for value in _ticks(axes.x_low, axes.x_high) if x_ticks is None else x_ticks:
        parts.append(_line(axes.x(value), bottom, axes.x(value), bottom + 3, "axis"))
        parts.append(_text(axes.x(value), bottom + 14, f"{value:g}", "middle"))
    for value in _ticks(axes.y_low, axes.y_high, whole=whole):
        parts.append(_line(LEFT, axes.y(value), WIDTH - RIGHT, axes.y(value), "grid"))
        parts.append(_text(LEFT - 5, axes.y(value) + 3.5, f"{value:g}", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_title, "middle", "title"))
    middle = (TOP + bottom) / 2
    parts.append(
        Markup('<text x="{}" y="{}" transform="rotate(-90 {} {})" text-anchor="middle" class="title">{}</text>').format(
            11, f"{middle:.1f}", 11, f"{middle:.1f}", y_title
        )
    )
    return parts


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Three to six round numbers in between."""
    rough = (high - low) / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    step = max(1, round(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _legend(*entries: tuple[str, str]) -> list[Markup]:
    parts, x = [], LEFT + 8
    for kind, word in entries:
        if kind in ("stroke", "chance"):
            parts.append(_line(x, TOP + 3, x + 14, TOP + 3, kind))
        else:
            parts.append(_rect(x, TOP - 2, 14, 9, kind))
        parts.append(_text(x + 18, TOP + 6, word, "start"))
        x += 30 + 6 * len(word)
    return parts


def _plot(words: str, parts: Iterable[Markup]) -> Markup:
    return _svg(WIDTH, HEIGHT, words, parts, "plot")


def _svg(width: int, height: int, words: str, parts: Iterable[Markup], kind: str) -> Markup:
    start = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(kind, width, height, words)
    return start + Markup("").join(parts) + Markup("</svg>")


def _rect(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>').format(
        x, y, max(width, 0), max(height, 0), kind
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, kind)


def _circle(x: float, y: float, radius: float, kind: str, words: str) -> Markup:
    title = Markup("<title>{}</title>").format(words) if words else Markup()
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" class="{}">{}</circle>').format(x, y, radius, kind, title)


def _path(axes: Axes, xs: Sequence[float], ys: Sequence[float], kind: str) -> Markup:
    places = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in zip(xs, ys, strict=True))
    return Markup('<polyline points="{}" class="{} line"/>').format(places, kind)


def _text(x: float, y: float, words: object, anchor: str, kind: str = "label") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(
        x, y, anchor, kind, escape(words)
    )
