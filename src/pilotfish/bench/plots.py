"""Two plots as inline SVG: bars in groups, and lines. Owns how they are drawn; knows not what they show."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

Number: TypeAlias = float | int

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 64
COLOURS = ("var(--first)", "var(--second)", "var(--third)", "var(--fourth)", "var(--fifth)", "var(--sixth)")


def bars(title: str, unit: str, labels: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Groups of bars, one group per label and one bar per series."""
    highest = max((value for values in series.values() for value in values), default=0.0)
    ticks = _ticks(highest)
    step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    width = step * 0.8 / max(len(series), 1)
    parts = [_axes(title, unit, ticks), _legend(list(series))]
    for place, label in enumerate(labels):
        middle = LEFT + (place + 0.5) * step
        parts.append(_text(middle, HEIGHT - BOTTOM + 14, label, turn=-25 if len(labels) > 5 else 0))
        for index, (name, values) in enumerate(series.items()):
            x = middle - step * 0.4 + index * width
            y = _y(values[place], ticks[-1])
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.92:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                f'fill="{COLOURS[index % len(COLOURS)]}"><title>{escape(label)}, {escape(name)}: '
                f"{values[place]:.4g} {escape(unit)}</title></rect>"
            )
    return _svg(parts)


def lines(title: str, unit: str, across: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line with marks per series of points (x, y); `across` names the horizontal axis, which starts at 0."""
    points = [point for values in series.values() for point in values]
    ticks = _ticks(max((y for _, y in points), default=0.0))
    across_ticks = _ticks(max((x for x, _ in points), default=0.0))
    parts = [_axes(title, unit, ticks), _legend(list(series))]

    def x_of(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / across_ticks[-1]

    parts.extend(_text(x_of(tick), HEIGHT - BOTTOM + 16, f"{tick:g}") for tick in across_ticks)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 36, across))
    for index, (name, values) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{_y(y, ticks[-1]):.1f}" for x, y in values)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.extend(
            f'<circle cx="{x_of(x):.1f}" cy="{_y(y, ticks[-1]):.1f}" r="3.5" fill="{colour}"><title>{escape(name)}, '
            f"{x:g}: {y:.4g} {escape(unit)}</title></circle>"
            for x, y in values
        )
    return _svg(parts)


def standalone(svg: str) -> str:
    """A plot as a file of its own: with colours, which a page gives to those that stand in it, and a white ground."""
    style = (
        "svg{--first:#8a94a0;--second:#0a6ebd;--third:#c2570c;--fourth:#2c8a4b;--fifth:#8a3ffc;--sixth:#b8860b;"
        "background:#fff;font:12px sans-serif}.title{font-size:14px;font-weight:600}.grid{stroke:#d6dbe1}"
    )
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f"><style>{style}</style>", 1
    )


def _ticks(highest: Number) -> list[float]:
    """Round numbers from 0 up to the first that is not below `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * count for count in range(math.ceil(highest / step - 1e-9) + 1)]


def _y(value: Number, top: Number) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top


def _axes(title: str, unit: str, ticks: Sequence[float]) -> str:
    parts = [
        f'<text x="{LEFT}" y="18" class="title">{escape(title)}</text>',
        _text(LEFT - 8, TOP - 8, unit, anchor="end"),
    ]
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    parts = []
    x = float(WIDTH - RIGHT)
    for index in reversed(range(len(names))):
        x -= 7 * len(names[index]) + 24
        parts.append(f'<rect x="{x:.1f}" y="24" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(_text(x + 14, 33, names[index], anchor="start"))
    return "".join(parts)


def _text(x: Number, y: Number, text: str, *, anchor: str = "middle", turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    anchor = "end" if turn else anchor
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escape(text)}</text>'


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" width="{WIDTH}">{"".join(parts)}</svg>'
