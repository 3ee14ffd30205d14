"""Small pictures as inline SVG: bars and histograms. No style sheets, scripts or files beside the page."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 640, 220, 34
_INK, _GRID, _OBSERVED, _EXPECTED = "#1b2a33", "#d5dde1", "#2a7f9e", "#e0912f"


def bars(title: str, observed: Sequence[float], expected: Sequence[float]) -> str:
    """Observed shares as bars, expected ones as marks across them."""
    top = max([*observed, *expected, 1e-9])
    width = (WIDTH - 2 * MARGIN) / max(1, len(observed))
    parts = [_axis(top)]
    for place, (seen, due) in enumerate(zip(observed, expected, strict=True)):
        left = MARGIN + place * width
        height = _scaled(seen, top)
        parts.append(_rect(left + width * 0.15, HEIGHT - MARGIN - height, width * 0.7, height, _OBSERVED))
        level = HEIGHT - MARGIN - _scaled(due, top)
        parts.append(_line(left, level, left + width, level, _EXPECTED, 2))
    return _picture(title, parts, legend=(("observed", _OBSERVED), ("expected", _EXPECTED)))


def histogram(title: str, values: Sequence[float], bins: int = 20) -> str:
    """How often values in [0, 1] fall into equal bins; the mark is what a uniform law gives."""
    counts = [0.0] * bins
    for value in values:
        counts[min(bins - 1, int(value * bins))] += 1
    return bars(title, counts, [len(values) / bins] * bins)


def columns(title: str, shares: Sequence[float]) -> str:
    """Shares of 1 by position, from 1."""
    width = (WIDTH - 2 * MARGIN) / max(1, len(shares))
    parts = [_axis(1.0)]
    for place, share in enumerate(shares):
        left = MARGIN + place * width
        height = _scaled(share, 1.0)
        parts.append(_rect(left + width * 0.25, HEIGHT - MARGIN - height, width * 0.5, height, _OBSERVED))
        parts.append(_text(left + width / 2, HEIGHT - MARGIN - height - 5, f"{share:.2f}", "middle"))
        parts.append(_text(left + width / 2, HEIGHT - MARGIN + 14, str(place + 1), "middle"))
    return _picture(title, parts)


def _picture(title: str, parts: Sequence[str], legend: Sequence[tuple[str, str]] = ()) -> str:
    marks = [_text(MARGIN, 16, title, "start")]
    for place, (word, colour) in enumerate(legend):
        left = WIDTH - MARGIN - 90 * (len(legend) - place)
        marks += [_rect(left, 24, 10, 10, colour), _text(left + 15, 33, word, "start")]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}" font-family="sans-serif" font-size="11">'
        f"{''.join([*marks, *parts])}</svg>"
    )


def _axis(top: float) -> str:
    low, high = HEIGHT - MARGIN, HEIGHT - MARGIN - _scaled(top, top)
    return (
        _line(MARGIN, low, WIDTH - MARGIN, low, _INK, 1)
        + _line(MARGIN, high, WIDTH - MARGIN, high, _GRID, 1)
        + _text(MARGIN - 4, high + 4, f"{top:.3g}", "end")
        + _text(MARGIN - 4, low + 4, "0", "end")
    )


def _scaled(value: float, top: float) -> float:
    return value / top * (HEIGHT - 2 * MARGIN - 12)


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}">{escape(text)}</text>'
