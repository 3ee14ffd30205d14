"""How likely a drafted token is to be accepted, learned from what was committed.

Owns the counts. For each drafter and each level of confidence it claims, a decayed count of drafted tokens whose parent
was committed, of those that were committed too, and of how many would have been by what was claimed; per request, with
a prior from all requests. A drafter's confidence is thereby calibrated by its own record: it need not be a probability,
only say more where it means more. Within a level, a token that claims more is taken to be worth more. A drafter that
claims nothing is judged by how many tokens it has just been right about.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pilotfish.terms import ROOT, Draft

EDGES = (0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6, 0.75, 0.9)
"""Between levels: closest together where a row is just worth its time, if rows are cheap."""
LEVELS = len(EDGES) + 1
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True))
STREAKS = (1, 2, 4, 8, 16)
"""Where a drafter claims nothing, its levels are how many tokens it has just been right about, from so many on the
next: one that copies is right for long or not at all, and that it begins to shows within as many tokens."""
_STREAK_CLAIMS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""What tokens of these levels are taken to claim."""
DISSENT = LEVELS + len(_STREAK_CLAIMS)
"""Added to the level of a token that stands beside another drafter's choice: to differ from the better guess is a bad
sign, and how bad is learned apart."""
_SIZE = 2 * DISSENT
_CLAIMS = (_MIDDLES + _STREAK_CLAIMS) * 2
"""What a token of a level claims, if no more is known."""

_ALL_DECAY = 0.999
_OWN_DECAY = 0.96
"""A request's own record forgets half of it in about a dozen tokens: text changes its kind that quickly."""
_FIRST_WEIGHT = 8.0
_PRIOR_WEIGHT = 10.0
"""Tokens that a claim counts for beside all requests' record, and that record beside the request's own."""
_BLIND_FIRST_WEIGHT = 4.0
_BLIND_PRIOR_WEIGHT = 3.0
"""The same where nothing was claimed: then only the latest tokens tell what text this is."""
_CAUTION = 0.25
"""Standard errors below the mean: a guess from few tokens counts for less than one from many."""
_MOST = 0.999


def claims(draft: Draft, node_levels: Sequence[int]) -> Sequence[float]:
    """The confidence of each node."""
    return [_CLAIMS[level] for level in node_levels] if draft.confidence is None else draft.confidence


def _first_guess(level: int) -> float:
    """Before anything was seen, how much of a claim comes true: nearly all; less beside another's choice."""
    if level >= DISSENT:
        return 0.3 * _first_guess(level - DISSENT)
    return 1.0 if level >= LEVELS else 0.95


@dataclass(slots=True)
class _Counts:
    """Decayed numbers of tokens seen and accepted, and of those that were claimed to be, by level."""

    decay: float
    seen: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    accepted: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    claimed: list[float] = field(default_factory=lambda: [0.0] * _SIZE)

    def record(self, level: int, accepted: bool, claim: float) -> None:
        self.seen[level] = self.seen[level] * self.decay + 1.0
        self.accepted[level] = self.accepted[level] * self.decay + accepted
        self.claimed[level] = self.claimed[level] * self.decay + claim


class Survival:
    """One drafter's record over all requests, and over each of those that are running."""

    def __init__(self) -> None:
        self._all = _Counts(_ALL_DECAY)
        self._own: dict[int, _Counts] = {}
        self._streaks: dict[int, int] = {}

    def begin(self, request: int) -> None:
        self._own[request] = _Counts(_OWN_DECAY)
        self._streaks[request] = 0

    def end(self, request: int) -> None:
        del self._own[request]
        del self._streaks[request]

    def levels(self, request: int, draft: Draft) -> list[int]:
        """The level of each node: of its confidence, or of how many tokens will have been right if its parent is."""
        if draft.confidence is not None:
            return [bisect_right(EDGES, confidence) for confidence in draft.confidence]
        right: list[int] = []
        for parent in draft.parents:
            right.append(self._streaks[request] if parent == ROOT else right[parent] + 1)
        return [LEVELS + bisect_right(STREAKS, count) for count in right]

    def acceptance(self, request: int, level: int, claim: float | None = None) -> float:
        """Cautious estimate of P(accepted | parent accepted) at a level of confidence, for one that claims so much."""
        ratio, spread = self._calibration(request, level)
        mean = min(ratio * (_CLAIMS[level] if claim is None else claim), _MOST)
        return max(0.0, mean - spread * math.sqrt(mean * (1.0 - mean)))

    def _calibration(self, request: int, level: int) -> tuple[float, float]:
        """How much of what is claimed at a level comes true, and the caution by which to stay below."""
        common, own = self._all, self._own[request]
        blind = level % DISSENT >= LEVELS
        before = _BLIND_PRIOR_WEIGHT if blind else _PRIOR_WEIGHT
        weight = own.seen[level] + before + min(common.seen[level], 50.0)
        before *= _CLAIMS[level]
        first = (_BLIND_FIRST_WEIGHT if blind else _FIRST_WEIGHT) * _CLAIMS[level]
        prior = (common.accepted[level] + first * _first_guess(level)) / (common.claimed[level] + first)
        ratio = (own.accepted[level] + before * prior) / (own.claimed[level] + before)
        return ratio, _CAUTION / math.sqrt(weight)

    def typical(self, request: int) -> float:
        """The same over all levels, as they came in the past: for a draft that is not made yet."""
        common, own = self._all, self._own[request]
        seen = [own_seen + 0.05 * seen for own_seen, seen in zip(own.seen, common.seen, strict=True)]
        total = sum(seen)
        if total == 0.0:
            return self.acceptance(request, LEVELS)
        return sum(count * self.acceptance(request, level) for level, count in enumerate(seen) if count) / total

    def of_nodes(self, request: int, draft: Draft, node_levels: Sequence[int]) -> list[float]:
        """For each node of a draft the estimated probability that it and its ancestors are accepted."""
        known: dict[int, tuple[float, float]] = {}
        survival: list[float] = []
        for parent, level, claim in zip(draft.parents, node_levels, claims(draft, node_levels), strict=True):
            calibration = known.get(level)
            if calibration is None:
                calibration = known[level] = self._calibration(request, level)
            ratio, spread = calibration
            mean = min(ratio * claim, _MOST)
            own = max(0.0, mean - spread * math.sqrt(mean * (1.0 - mean)))
            survival.append(own if parent == ROOT else own * survival[parent])
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
        own, common, claimed = self._own[request], self._all, claims(draft, node_levels)
        parent = ROOT
        for token in committed:
            following, tried = ROOT, False
            for node, above in enumerate(draft.parents):
                if above == parent and node > parent:
                    accepted, tried = draft.tokens[node] == token, True
                    level, claim = node_levels[node], claimed[node]
                    own.record(level, accepted, claim)
                    common.record(level, accepted, claim)
                    if node in dissenters:
                        own.record(level + DISSENT, accepted, claim)
                        common.record(level + DISSENT, accepted, claim)
                    if accepted:
                        following = node
            if tried:
                self._streaks[request] = 0 if following == ROOT else self._streaks[request] + 1
            if following == ROOT:
                return
            parent = following
