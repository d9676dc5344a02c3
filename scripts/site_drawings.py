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
        f'<svg class="drawing" width="{width:g}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{content}</svg>'
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
