"""Temperature and the options that cut a law's tail: top_k, top_p, min_p, typical_p.

Each looks at the scores of the rows' candidates and nothing else.
"""

from dataclasses import dataclass, field

import numpy as np

from pilotfish.sampling.candidates import (
    Candidates,
    Places,
    Scores,
    highest_in_rows,
    log_normaliser,
    normalised,
    ranking,
    weights_of,
)
from pilotfish.sampling.extension import extension
from pilotfish.sampling.step import Truncation

_SMALL = 2048
"""Fewer scores than this are sorted as they are."""
_TINY = float(np.finfo(np.float32).tiny)
_DEPTHS = (6.0, 12.0, 24.0)
"""How far below the best score top_p looks for its tokens among many, in nats, one after the other."""


@dataclass(frozen=True, slots=True)
class Greedy(Truncation):
    """Temperature 0: the highest logit alone (ties: the lowest id), with score 0."""

    def candidates(self, found: Candidates) -> Candidates:
        best = found.at(found.scores.argmax(axis=1, keepdims=True))
        return Candidates(best.ids, np.zeros_like(best.scores))


@dataclass(frozen=True, slots=True)
class Temperature(Truncation):
    """Divides the logits by a temperature above 0; drops nothing."""

    temperature: float
    divisor: float = field(init=False)
    """The temperature as float32; one too small for that is the smallest normal number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "divisor", float(np.float32(max(self.temperature, _TINY))))

    def candidates(self, found: Candidates) -> Candidates:
        # The maximum goes first, so that a tiny temperature sends the others to minus infinity and leaves the best at
        # 0 instead of making inf - inf; one too small for float32 does the same without becoming 0 / 0.
        scores = found.scores - found.scores.max(axis=1, keepdims=True)
        scores += np.float32(0)  # which zero of two signs counts as the highest is not defined: -0 becomes 0
        with np.errstate(over="ignore"):
            scores /= np.float32(self.divisor)
        return Candidates(found.ids, scores, highest_is_zero=True)


@dataclass(frozen=True, slots=True)
class TopK(Truncation):
    """Keeps the `k` highest scores."""

    k: int

    def candidates(self, found: Candidates) -> Candidates:
        return found if self.k >= found.scores.shape[1] else found.at(highest_in_rows(found.scores, self.k))


@dataclass(frozen=True, slots=True)
class TopP(Truncation):
    """Keeps the smallest set of highest probability whose mass reaches `mass`.

    The mass is that of the float32 softmax, added up from the highest in float64. Where rounding leaves the whole
    law short of `mass`, everything stays.
    """

    mass: float

    def candidates(self, found: Candidates) -> Candidates:
        scores, weights = found.scores, weights_of(found)
        if scores.shape[1] > _SMALL:
            probs = normalised(weights)
            kept = np.zeros(scores.shape, dtype=np.bool_)
            for own, row_probs, row in zip(kept, probs, scores, strict=True):
                own[_nearest(self.mass, row_probs, row)] = True
            return found.only(kept)
        native = extension()
        if native is None or not scores.flags.c_contiguous:
            return Candidates(found.ids, keep_mass_by_numpy(scores, weights, self.mass))
        return Candidates(found.ids, native.keep_mass(scores, weights, self.mass))


@dataclass(frozen=True, slots=True)
class MinP(Truncation):
    """Keeps the tokens whose probability is at least `share` of the highest."""

    share: float

    def candidates(self, found: Candidates) -> Candidates:
        return found.only(weights_of(found) >= np.float32(self.share))


@dataclass(frozen=True, slots=True)
class TypicalP(Truncation):
    """Keeps the smallest set of tokens with information nearest to the entropy whose mass reaches `mass`.

    After Meister et al., "Locally Typical Sampling" (https://arxiv.org/abs/2202.00666). Ties: the lowest id first.
    """

    mass: float

    def candidates(self, found: Candidates) -> Candidates:
        kept = np.zeros(found.scores.shape, dtype=np.bool_)
        for own, scores in zip(kept, found.scores, strict=True):
            possible = np.flatnonzero(scores > -np.inf)
            logprobs = scores[possible] - np.float32(log_normaliser(scores))
            probs = np.exp(logprobs)
            entropy = np.float32(-np.sum(probs.astype(np.float64) * logprobs))
            own[possible[_nearest(self.mass, probs, -np.abs(-logprobs - entropy))]] = True
        return found.only(kept)


def keep_mass_by_numpy(scores: Scores, weights: Scores, mass: float) -> Scores:
    """`[row, token]` the scores that top_p keeps and minus infinity: what the native form must equal."""
    kept = np.zeros(scores.shape, dtype=np.bool_)
    ranked = ranking(scores)
    cumulative = np.cumsum(np.take_along_axis(normalised(weights), ranked, axis=1), axis=1, dtype=np.float64)
    counts = (cumulative < mass).sum(axis=1, keepdims=True) + 1
    np.put_along_axis(kept, ranked, np.arange(scores.shape[1]) < counts, axis=1)
    return np.where(kept, scores, np.float32(-np.inf))


def _nearest(mass: float, probs: Scores, order: Scores) -> Places:
    """Places of one row from the highest `order` down, up to the one where their mass reaches `mass`."""
    # Sorting the vocabulary would be the dearest thing in the pipeline. Most laws reach the mass within a few nats of
    # the best token; looking deeper only adds tokens behind those already sorted.
    best = order.max()
    for depth in _DEPTHS if order.size > _SMALL else ():
        near = np.flatnonzero(order >= best - np.float32(depth))
        ranked = near[ranking(order[near])]
        cumulative = np.cumsum(probs[ranked], dtype=np.float64)
        if cumulative[-1] >= mass:
            return ranked[: int(np.searchsorted(cumulative, mass)) + 1]
    ranked = ranking(order)
    return ranked[: int(np.searchsorted(np.cumsum(probs[ranked], dtype=np.float64), mass)) + 1]
