"""The tokens a row may still become, with their scores: what the truncating options pass on to one another.

Owns the arithmetic they share, in single-threaded NumPy: a row of 50,000 floats is too little work to wake threads
for. Every function computes one row from that row alone, so a row has the same bits in any company.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pilotfish.sampling.extension import extension

Scores = NDArray[np.float32]
"""`[token]` log probabilities up to a constant; minus infinity where a token cannot be chosen."""
Places = NDArray[np.int64]

_GROUPS_PER_TOKEN = 8
_FEWEST_GROUPS = 512


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their scores.

    Attributes:
        ids: token ids, ascending; `None` stands for the whole vocabulary.
        scores: one for each.
    """

    ids: Places | None
    scores: Scores

    def keep(self, places: Places) -> "Candidates":
        """Only those at `places`, ascending."""
        return Candidates(places if self.ids is None else self.ids[places], self.scores[places])

    def token(self, place: int) -> int:
        """The id at a place."""
        return place if self.ids is None else int(self.ids[place])

    def write(self, row: Scores) -> None:
        """The scores as a row over the whole vocabulary, minus infinity for all other tokens."""
        if self.ids is None:
            row[:] = self.scores
        else:
            row.fill(-np.inf)
            row[self.ids] = self.scores


def highest(scores: Scores, count: int) -> Places:
    """Places of the `count` highest scores, ascending; ties by lowest place. Fewer where no more are above -inf."""
    native = extension()
    if native is None:
        return highest_by_numpy(scores, count)
    places: Places = native.highest(np.ascontiguousarray(scores), count)
    return places


def highest_by_numpy(scores: Scores, count: int) -> Places:
    """What the native form of `highest` must equal."""
    if count >= scores.size:
        return np.flatnonzero(scores > -np.inf)
    # The count-th highest maximum of disjoint groups is a lower bound of the count-th highest score, and finding it
    # costs one pass. Only what reaches it, seldom many more than `count`, has to be sorted.
    groups = max(_FEWEST_GROUPS, _GROUPS_PER_TOKEN * count)
    depth = scores.size // groups
    if depth >= 2:
        bounds = scores[: depth * groups].reshape(depth, groups).max(axis=0)
        bound = np.partition(bounds, groups - count)[groups - count]
    else:
        bound = np.partition(scores, scores.size - count)[scores.size - count]
    places = np.flatnonzero(scores >= bound) if bound > -np.inf else np.flatnonzero(scores > -np.inf)
    if places.size > count:
        places = np.sort(places[ranking(scores[places])[:count]])
    return places


def ranking(scores: Scores) -> Places:
    """Places from the highest score to the lowest, ties by lowest place."""
    return np.argsort(-scores, kind="stable")


def softmax(scores: Scores) -> Scores:
    """float32 probabilities; exactly 0 where a score is minus infinity."""
    weights: Scores = np.exp(scores - scores.max())
    weights /= np.float32(weights.sum(dtype=np.float64))
    return weights


def log_normaliser(scores: Scores) -> float:
    """log sum exp, float64: a score minus this is a log probability."""
    top = scores.max()
    return float(top) + float(np.log(np.exp(scores - top).sum(dtype=np.float64)))
