"""The exact law of a rule's outcome: its uniforms integrated out of the very function that production calls.

A rule is a function of its uniforms that is constant on boxes. For one uniform after another the places where the
outcome changes are found by bisection, to 1e-13, and the boxes' volumes are added up. Hints (the oracle's thresholds)
only say where to look first: a rule that changes elsewhere is bisected there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

TOLERANCE = 1e-13
_LOW, _HIGH = 2.0**-53, 1 - 2.0**-53
_GRID = (_LOW, 0.31830988, 0.69314718, _HIGH)
_PROBES = (_LOW, 0.4142135, _HIGH)

Outcome = tuple[tuple[int, ...], int]
"""(emitted tokens before the last, the last token)."""

Function = Callable[[Sequence[float]], Outcome]


def outcome_law(function: Function, order: Sequence[int], hints: Mapping[int, Sequence[float]]) -> dict[Outcome, float]:
    """Probability of every outcome under independent uniforms.

    Args:
        function: takes one uniform per coordinate.
        order: the coordinates, those that decide first in front.
        hints: by coordinate, places where an outcome may change.
    """
    masses: dict[Outcome, float] = defaultdict(float)
    point = [0.5] * len(order)

    def signature(depth: int, value: float) -> tuple[Outcome, ...]:
        point[order[depth]] = value
        rest = order[depth + 1 :]
        if not rest:
            return (function(point),)
        seen = []
        for probe in _PROBES:
            for coordinate in rest:
                point[coordinate] = probe
            seen.append(function(point))
        return tuple(seen)

    def integrate(depth: int, volume: float) -> None:
        own = hints.get(order[depth], ())
        for low, high, seen in _pieces(lambda value: signature(depth, value), own):
            if depth == len(order) - 1:
                masses[seen[0]] += volume * (high - low)
                continue
            point[order[depth]] = (low + high) / 2
            integrate(depth + 1, volume * (high - low))

    integrate(0, 1.0)
    return masses


def _pieces(
    signature: Callable[[float], tuple[Outcome, ...]], hints: Sequence[float]
) -> Iterator[tuple[float, float, tuple[Outcome, ...]]]:
    """Intervals of (0, 1) on which the signature is constant."""
    places = {*_GRID}
    for hint in hints:
        places.update(value for value in (hint - TOLERANCE / 4, hint + TOLERANCE / 4) if _LOW < value < _HIGH)
    ordered = sorted(places)
    known = [(place, signature(place)) for place in ordered]
    found: list[tuple[float, float, tuple[Outcome, ...]]] = []

    def split(low: float, low_seen: tuple[Outcome, ...], high: float, high_seen: tuple[Outcome, ...]) -> None:
        if low_seen == high_seen:
            found.append((low, high, low_seen))
        elif high - low < TOLERANCE:
            middle = (low + high) / 2
            found.append((low, middle, low_seen))
            found.append((middle, high, high_seen))
        else:
            middle = (low + high) / 2
            seen = signature(middle)
            split(low, low_seen, middle, seen)
            split(middle, seen, high, high_seen)

    found.append((0.0, known[0][0], known[0][1]))
    for (low, low_seen), (high, high_seen) in pairwise(known):
        split(low, low_seen, high, high_seen)
    found.append((known[-1][0], 1.0, known[-1][1]))
    merged: list[tuple[float, float, tuple[Outcome, ...]]] = []
    for low, high, seen in found:
        if merged and merged[-1][2] == seen:
            merged[-1] = (merged[-1][0], high, seen)
        else:
            merged.append((low, high, seen))
    return iter(merged)
