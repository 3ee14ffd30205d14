"""What a pass of so many rows takes on this machine: measured by a calibration, then by the passes themselves.

Owns the table. The engine's own work around a pass (choices, verdicts, text) is part of what it learns, because a
round is worth only what it takes as a whole. Knows no executor.
"""

from collections.abc import Mapping, Sequence

_SHARED_RATE = 0.1
"""How much of a deviation is laid to the machine: it is busy, or the context has grown, and all passes take longer."""
_OWN_RATE = 0.03
"""How much of it to passes of that many rows. Less, or passes would look cheap after having met a quiet moment."""
_OUTLIER = 3.0


class PassTime:
    """Seconds by number of rows, smoothed; between and beyond what was measured, straight lines.

    More rows never take less time: whoever runs passes of a few rows only learns by them that one row is no dearer.

    Args:
        measured: seconds of a pass by rows; at least one entry.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        assert measured, "a calibration has at least one entry"
        self._rows = sorted(measured)
        self._seconds = [measured[rows] for rows in self._rows]
        self._pace = 1.0
        self._table: list[float] = [0.0]

    def __call__(self, rows: int) -> float:
        """Expected seconds of a pass of `rows` rows."""
        return self.table(rows)[rows]

    def table(self, rows: int) -> Sequence[float]:
        """Expected seconds by number of rows, from 1 to `rows` at least; good until the next observation."""
        while len(self._table) <= rows:
            self._table.append(max(self._table[-1], self._pace * self._interpolated(len(self._table))))
        return self._table

    def observe(self, rows: int, seconds: float) -> None:
        """A pass of `rows` rows took `seconds`. What is far off is taken for a disturbance and counts for less."""
        expected = self(rows)
        deviation = max(min(seconds / expected, _OUTLIER), 1 / _OUTLIER) - 1.0
        pace = 1.0 + _SHARED_RATE * deviation
        own = expected * pace * (1.0 + _OWN_RATE * deviation)
        self._pace *= pace
        self._table = [
            min(known * pace, own) if place <= rows else max(known * pace, own)
            for place, known in enumerate(self._table)
        ]
        self._table[rows] = own

    def _interpolated(self, rows: int) -> float:
        places = self._rows
        if len(places) == 1 or rows <= places[0]:
            return self._seconds[0] * (rows / places[0] if rows > places[0] else 1.0)
        right = next((i for i, place in enumerate(places) if place >= rows), len(places) - 1)
        left = right - 1
        share = (rows - places[left]) / (places[right] - places[left])
        return max(self._seconds[left] + share * (self._seconds[right] - self._seconds[left]), self._seconds[0])
