"""Pictures of the site as inline SVG: bars beside bars, and what goes from whom to whom. No script, no request."""

from __future__ import annotations

import textwrap
from html import escape

# Colours come from site.css, so that they follow the light and the dark scheme.
BAR, GAP, LEFT, RIGHT = 16, 4, 300, 60
WIDTH = 760


def svg(width: float, height: float, label: str, content: str) -> str:
    """A picture that scales with the page and that a screen reader can name."""
    return (
        f'<svg class="drawing" width="{width:g}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def bars(block: str) -> str:
    """A fenced block as bars. First line: title | unit | largest | name of each series; then one row a line."""
    head, *lines = [[part.strip() for part in line.split("|")] for line in block.strip().splitlines()]
    title, unit, largest, *series = head
    rows = [(name, [float(value) if value not in ("", "-") else None for value in values]) for name, *values in lines]
    scale = (WIDTH - LEFT - RIGHT) / float(largest)
    y, parts = 8.0, []
    for name, values in rows:
        parts.append(text(LEFT - 10, y + len(values) * (BAR + GAP) / 2 + 4, name, anchor="end"))
        for index, value in enumerate(values):
            if value is not None:
                length = max(value, 0.0) * scale
                parts.append(f'<rect class="series{index}" x="{LEFT}" y="{y:g}" width="{length:g}" height="{BAR}"/>')
                parts.append(text(LEFT + length + 6, y + 13, f"{value:g}{unit}"))
            y += BAR + GAP
        y += 10
    x = LEFT
    for index, name in enumerate(series):
        parts.append(f'<rect class="series{index}" x="{x}" y="{y:g}" width="{BAR}" height="{BAR}"/>')
        parts.append(text(x + BAR + 6, y + 13, name))
        x += BAR + 30 + 8 * len(name)
    picture = svg(WIDTH, y + 24, f"{title}: {bars_in_words(series, rows, unit)}", "".join(parts))
    return f"<figure class='picture'>{picture}<figcaption>{escape(title)}</figcaption></figure>"


def bars_in_words(series: list[str], rows: list[tuple[str, list[float | None]]], unit: str) -> str:
    """What the bars say, for who does not see them."""
    told = []
    for name, values in rows:
        pairs = [f"{one} {value:g}{unit}" for one, value in zip(series, values, strict=False) if value is not None]
        told.append(f"{name}: {', '.join(pairs)}")
    return "; ".join(told)


def flow(block: str) -> str:
    """Three boxes and two arrows: who holds what, what is sent, what somebody reads. One `key: text` a line."""
    said = dict(line.split(":", 1) for line in block.strip().splitlines())
    boxes = [(said["who"].strip(), said["holds"].strip()), ("is sent", said["sent"].strip())]
    boxes.append((f"{said['by'].strip()} reads", said["reads"].strip()))
    width, high, parts = 210, 120, []
    for index, (head, body) in enumerate(boxes):
        x = index * (width + 45)
        parts.append(f'<rect class="box{index}" x="{x + 1}" y="1" width="{width}" height="{high}" rx="8"/>')
        parts.append(text(x + width / 2, 26, head, kind="head", anchor="middle"))
        for number, line in enumerate(textwrap.wrap(body, 27)[:4]):
            parts.append(text(x + width / 2, 52 + 20 * number, line, anchor="middle"))
        if index:
            start = x - 38
            parts.append(f'<path class="arrow" d="M{start} 61 h24 m-8 -7 l8 7 l-8 7"/>')
    label = "; ".join(f"{head}: {body}" for head, body in boxes)
    return f"<figure class='picture'>{svg(3 * width + 92, high + 2, label, ''.join(parts))}</figure>"


def points(block: str) -> str:
    """A fenced block as points. First: title | name of x | from | to | name of y | from | to; then name | x | y."""
    head, *lines = [[part.strip() for part in line.split("|")] for line in block.strip().splitlines()]
    title, x_name, x_low, x_high, y_name, y_low, y_high = head
    rows = [(name, float(x), float(y)) for name, x, y in lines]
    left, top, wide, high = 60, 10, 600, 300
    parts = [f'<path class="arrow" d="M{left} {top} v{high} h{wide}"/>']
    written: list[tuple[float, float]] = []  # where words stand; those that would overlap move down
    for name, x, y in sorted(rows, key=lambda row: -row[2]):
        across = left + wide * (x - float(x_low)) / (float(x_high) - float(x_low))
        up = top + high - high * (y - float(y_low)) / (float(y_high) - float(y_low))
        line = max([up + 4, *(other + 15 for place, other in written if abs(place - across) < 150 and other > up - 25)])
        written.append((across, line))
        parts.append(f'<circle class="series1" cx="{across:.1f}" cy="{up:.1f}" r="5"/>')
        before = across > left + wide * 0.6  # words stay inside the picture
        parts.append(text(across + (-9 if before else 9), line, name, anchor="end" if before else "start"))
    parts.append(text(left, top + high + 18, x_low))
    parts.append(text(left + wide, top + high + 18, x_high, anchor="end"))
    parts.append(text(left + wide / 2, top + high + 18, x_name, anchor="middle"))
    parts.append(text(left - 8, top + high, y_low, anchor="end") + text(left - 8, top + 10, y_high, anchor="end"))
    parts.append(text(left + 8, top + 10, y_name))
    told = "; ".join(f"{name}: {x_name} {x:g}, {y_name} {y:g}" for name, x, y in rows)
    picture = svg(WIDTH, high + 40, f"{title}: {told}", "".join(parts))
    return f"<figure class='picture'>{picture}<figcaption>{escape(title)}</figcaption></figure>"
