"""From acceptance by depth and measured times to the speedup that a drafter will give.

Owns the formula: a round with k drafted tokens delivers `1 + sum over j <= k of prod over i <= j of a_i` tokens and
takes a pass of k + 1 rows, k times a drafted token, and the engine's work around them. Plain decoding is measured too,
not computed. Knows no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds on this machine.

    Attributes:
        plain: per token of plain decoding, the engine's own work included.
        passes: of a pass by rows.
        draft: per drafted token.
        around: per speculative round besides pass and draft.
    """

    plain: float
    passes: Mapping[int, float]
    draft: float
    around: float

    def round_seconds(self, draft_len: int) -> float:
        """Seconds of a round with that many drafted tokens."""
        return self.pass_seconds(1 + draft_len) + self.around + self.draft * draft_len

    def pass_seconds(self, rows: int) -> float:
        """Seconds of a pass: straight lines between the measured ones and beyond the last."""
        places = sorted(self.passes)
        if rows in self.passes or len(places) == 1:
            return self.passes.get(rows, self.passes[places[0]])
        right = next((place for place, count in enumerate(places) if count > rows), len(places) - 1)
        lower, upper = places[max(right - 1, 0)], places[max(right, 1)]
        share = (rows - lower) / (upper - lower)
        return self.passes[lower] + share * (self.passes[upper] - self.passes[lower])


@dataclass(frozen=True, slots=True)
class Projection:
    """What to expect of a drafter.

    Attributes:
        tokens_per_round: by draft length, from 1.
        speedups: over plain decoding, by draft length, from 1.
    """

    tokens_per_round: tuple[float, ...]
    speedups: tuple[float, ...]

    @property
    def draft_len(self) -> int:
        """The best draft length, at least 1."""
        return max(range(len(self.speedups)), key=self.speedups.__getitem__) + 1

    @property
    def speedup(self) -> float:
        """At the best draft length."""
        return max(self.speedups)


def tokens_per_round(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Delivered tokens per round at draft lengths 1, 2 and so on.

    Args:
        acceptance: by depth, each conditional on the prefix being accepted.
    """
    survival = accumulate(acceptance, mul)
    return tuple(1.0 + reached for reached in accumulate(survival))


def project(delivered: Sequence[float], costs: RoundCosts) -> Projection:
    """The speedup at each draft length.

    Args:
        delivered: tokens per round at draft lengths 1, 2 and so on.
    """
    speedups = (tokens * costs.plain / costs.round_seconds(draft_len) for draft_len, tokens in enumerate(delivered, 1))
    return Projection(tuple(delivered), tuple(speedups))
