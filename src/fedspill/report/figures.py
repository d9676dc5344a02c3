"""Numbers as a page says them: at most three figures. All digits are in the JSON and in the tables."""

from __future__ import annotations


def three(value: float | None) -> str:
    """At most three figures, and no more than two decimals of what lies around 1."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share in percent, to three figures: costs of defenses are smaller than a whole percent."""
    return "-" if share is None else f"{three(100 * share)} %"


def points(change: float | None) -> str:
    """A change of a share, in points, with its sign."""
    if change is None:
        return "-"
    rounded = round(100 * change, 1)
    return "0 points" if rounded == 0 else f"{rounded:+.3g} points"


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
