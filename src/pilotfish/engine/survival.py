"""How likely a drafted token is to be accepted, learned from what was committed.

Owns the counts. For each drafter and each level of confidence it claims, a decayed count of drafted tokens whose parent
was committed, and of those that were committed too; per request, with a prior from all requests. A drafter's confidence
is thereby calibrated by its own record: it need not be a probability, only say more where it means more.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pilotfish.terms import ROOT, Draft

LEVELS = 10
_UNKNOWN = LEVELS
"""The level of tokens whose drafter claims nothing."""
DISSENT = LEVELS + 1
"""Added to the level of a token that stands beside another drafter's choice: to differ from the better guess is a bad
sign, and how bad is learned apart."""
_SIZE = 2 * DISSENT

_ALL_DECAY = 0.999
_OWN_DECAY = 0.95
"""A request's own record forgets half of it in about a dozen tokens: text changes its kind that quickly."""
_PRIOR_WEIGHT = 3.0
_CAUTION = 0.5
"""Standard errors below the mean: a guess from few tokens counts for less than one from many."""


def levels(draft: Draft) -> list[int]:
    """The level of confidence of each node."""
    if draft.confidence is None:
        return [_UNKNOWN] * len(draft)
    return [min(int(confidence * LEVELS), LEVELS - 1) for confidence in draft.confidence]


def _first_guess(level: int) -> float:
    """Before anything was seen: what the drafter claims, a little less; a coin's toss where it claims nothing."""
    if level >= DISSENT:
        return 0.3 * _first_guess(level - DISSENT)
    return 0.5 if level == _UNKNOWN else 0.9 * (level + 0.5) / LEVELS


@dataclass(slots=True)
class _Counts:
    """Decayed numbers of tokens seen and accepted, by level."""

    decay: float
    seen: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    accepted: list[float] = field(default_factory=lambda: [0.0] * _SIZE)

    def record(self, level: int, accepted: bool) -> None:
        self.seen[level] = self.seen[level] * self.decay + 1.0
        self.accepted[level] = self.accepted[level] * self.decay + accepted


class Survival:
    """One drafter's record over all requests, and over each of those that are running."""

    def __init__(self) -> None:
        self._all = _Counts(_ALL_DECAY)
        self._own: dict[int, _Counts] = {}

    def begin(self, request: int) -> None:
        self._own[request] = _Counts(_OWN_DECAY)

    def end(self, request: int) -> None:
        del self._own[request]

    def acceptance(self, request: int, level: int) -> float:
        """Cautious estimate of P(accepted | parent accepted) at a level of confidence."""
        common, own = self._all, self._own[request]
        prior = (common.accepted[level] + 4.0 * _first_guess(level)) / (common.seen[level] + 4.0)
        weight = own.seen[level] + _PRIOR_WEIGHT
        mean = (own.accepted[level] + _PRIOR_WEIGHT * prior) / weight
        error = math.sqrt(mean * (1.0 - mean) / (weight + min(common.seen[level], 50.0)))
        return max(0.0, mean - _CAUTION * error)

    def typical(self, request: int) -> float:
        """The same over all levels, as they came in the past: for a draft that is not made yet."""
        common, own = self._all, self._own[request]
        seen = [own_seen + 0.05 * seen for own_seen, seen in zip(own.seen, common.seen, strict=True)]
        total = sum(seen)
        if total == 0.0:
            return self.acceptance(request, _UNKNOWN)
        return sum(count * self.acceptance(request, level) for level, count in enumerate(seen) if count) / total

    def of_nodes(self, request: int, draft: Draft, node_levels: Sequence[int]) -> list[float]:
        """For each node of a draft the estimated probability that it and its ancestors are accepted."""
        known: dict[int, float] = {}
        survival: list[float] = []
        for parent, level in zip(draft.parents, node_levels, strict=True):
            if level not in known:
                known[level] = self.acceptance(request, level)
            survival.append(known[level] * (1.0 if parent == ROOT else survival[parent]))
        return survival

    def record(
        self,
        request: int,
        draft: Draft,
        node_levels: Sequence[int],
        committed: Sequence[int],
        dissenters: Collection[int] = (),
    ) -> None:
        """Compares a draft, whether it was verified or not, with the tokens that were committed in its place.

        Args:
            dissenters: nodes that stood beside another drafter's choice. They count at their own level, which says how
                good the drafter is, and once more among their like.
        """
        parent = ROOT
        for token in committed:
            following = ROOT
            for node, above in enumerate(draft.parents):
                if above == parent and node > parent:
                    accepted = draft.tokens[node] == token
                    self._count(request, node_levels[node], accepted)
                    if node in dissenters:
                        self._count(request, node_levels[node] + DISSENT, accepted)
                    if accepted:
                        following = node
            if following == ROOT:
                return
            parent = following

    def _count(self, request: int, level: int, accepted: bool) -> None:
        self._own[request].record(level, accepted)
        self._all.record(level, accepted)
