"""What a pass of so many rows takes on this machine: measured by a calibration, then by the passes themselves.

Owns the table. The engine's own work around a pass (choices, verdicts, text) is part of what it learns, because a
round is worth only what it takes as a whole. Knows no executor.
"""

import math
from collections.abc import Mapping, Sequence

_SHARED_RATE = 0.1
"""How much of a deviation is laid to the machine: it is busy, or the context has grown, and all passes take longer."""
_OWN_RATE = 0.03
"""How much of it to passes of that many rows. Less, or passes would look cheap after having met a quiet moment."""
_FORGETTING = 0.005
"""Of what a number of rows was seen to take more or less than the calibration says, per pass of another number."""
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
        self._calibrated: list[float] = [0.0]
        self._pace = 1.0
        self._own: dict[int, float] = {}
        self._latest: tuple[int, float] | None = None
        self._table: list[float] = [0.0]

    def __call__(self, rows: int) -> float:
        """Expected seconds of a pass of `rows` rows."""
        return self.table(rows)[rows]

    def table(self, rows: int) -> Sequence[float]:
        """Expected seconds by number of rows, from 1 to `rows` at least; good until the next observation."""
        table = self._table
        while len(table) <= rows:
            count = len(table)
            seconds = self._estimate(count)
            if self._latest is not None and count <= self._latest[0]:
                seconds = min(seconds, self._latest[1])  # what was seen last is known best
            table.append(max(table[-1], seconds))
        return table

    def observe(self, rows: int, seconds: float) -> None:
        """A pass of `rows` rows took `seconds`. What is far off is taken for a disturbance and counts for less."""
        # In logarithms, so that what a delay adds is taken off again by the passes after it.
        deviation = math.log(max(min(seconds / self(rows), _OUTLIER), 1 / _OUTLIER))
        self._pace *= math.exp(_SHARED_RATE * deviation)
        own = self._own.get(rows, 1.0) * math.exp(_OWN_RATE * deviation)
        # What held others up may lift a number of rows for long, if it is seldom tried again; hence the forgetting.
        self._own = {
            count: 1.0 + (factor - 1.0) * (1.0 - _FORGETTING) for count, factor in self._own.items() if count != rows
        } | {rows: own}
        self._latest = rows, self._estimate(rows)
        self._table = [0.0]

    def _estimate(self, rows: int) -> float:
        while len(self._calibrated) <= rows:
            self._calibrated.append(self._interpolated(len(self._calibrated)))
        return self._pace * self._calibrated[rows] * self._own.get(rows, 1.0)

    def _interpolated(self, rows: int) -> float:
        places = self._rows
        if len(places) == 1 or rows <= places[0]:
            return self._seconds[0] * (rows / places[0] if rows > places[0] else 1.0)
        right = next((i for i, place in enumerate(places) if place >= rows), len(places) - 1)
        left = right - 1
        share = (rows - places[left]) / (places[right] - places[left])
        return max(self._seconds[left] + share * (self._seconds[right] - self._seconds[left]), self._seconds[0])
