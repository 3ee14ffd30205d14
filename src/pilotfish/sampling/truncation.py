"""Temperature and the options that cut a law's tail: top_k, top_p, min_p, typical_p.

Each looks at the scores of the rows' candidates and nothing else.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pilotfish.sampling.candidates import (
    Candidates,
    Places,
    Scores,
    highest_in_rows,
    log_normaliser,
    ranking,
    softmax,
)
from pilotfish.sampling.extension import extension
from pilotfish.sampling.step import Truncation

_SMALL = 2048
"""Fewer scores than this are sorted as they are."""
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

    def candidates(self, found: Candidates) -> Candidates:
        # The maximum goes first, so that a tiny temperature sends the others to minus infinity and leaves the best at
        # 0 instead of making inf - inf; one too small for float32 does the same without becoming 0 / 0.
        divisor = np.float32(max(self.temperature, float(np.finfo(np.float32).tiny)))
        scores = found.scores - found.scores.max(axis=1, keepdims=True)
        with np.errstate(over="ignore"):
            scores /= divisor
        return Candidates(found.ids, scores)


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
        return found.only(_reaching(self.mass, softmax(found.scores), found.scores))


@dataclass(frozen=True, slots=True)
class MinP(Truncation):
    """Keeps the tokens whose probability is at least `share` of the highest."""

    share: float

    def candidates(self, found: Candidates) -> Candidates:
        relative = np.exp(found.scores - found.scores.max(axis=1, keepdims=True))
        return found.only(relative >= np.float32(self.share))


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


def _reaching(mass: float, probs: Scores, order: Scores) -> NDArray[np.bool_]:
    """`[row, token]` what comes up to the place where a row's mass, from its highest `order` down, reaches `mass`."""
    kept = np.zeros(order.shape, dtype=np.bool_)
    if order.shape[1] > _SMALL:
        for own, row_probs, row_order in zip(kept, probs, order, strict=True):
            own[_nearest(mass, row_probs, row_order)] = True
        return kept
    native = extension()
    if native is not None and order.flags.c_contiguous and probs.flags.c_contiguous:
        native.reaching(order, probs, mass, kept)
        return kept
    return reaching_by_numpy(mass, probs, order)


def reaching_by_numpy(mass: float, probs: Scores, order: Scores) -> NDArray[np.bool_]:
    """What the native form of few scores per row must equal."""
    kept = np.zeros(order.shape, dtype=np.bool_)
    ranked = ranking(order)
    cumulative = np.cumsum(np.take_along_axis(probs, ranked, axis=1), axis=1, dtype=np.float64)
    counts = (cumulative < mass).sum(axis=1, keepdims=True) + 1
    np.put_along_axis(kept, ranked, np.arange(order.shape[1]) < counts, axis=1)
    return kept


def _nearest(mass: float, probs: Scores, order: Scores) -> Places:
    """The same for one row, as places from the highest `order` down."""
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
