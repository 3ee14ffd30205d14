"""The tokens rows may still become, with their scores: what the truncating options pass on to one another.

Owns the arithmetic they share, in single-threaded NumPy on all rows at once: rows of 50,000 floats are too little work
to wake threads for, and after a pass of the model every Python call is dear. Each row is computed from that row alone,
so it has the same bits in any company.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pilotfish.sampling.extension import extension

Scores = NDArray[np.float32]
"""Log probabilities up to a constant; minus infinity where a token cannot be chosen."""
Places = NDArray[np.int64]

_GROUPS_PER_TOKEN = 8
_FEWEST_GROUPS = 512


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their scores, as many for each row; minus infinity for those that are out.

    Attributes:
        ids: `[row, token]` token ids, ascending; `None` stands for the whole vocabulary.
        scores: `[row, token]`
        highest_is_zero: the highest score of each row is 0, unless it is not a number.
    """

    ids: Places | None
    scores: Scores
    highest_is_zero: bool = False

    def at(self, places: Places) -> "Candidates":
        """Only those at `places` `[row, token]`."""
        ids = places if self.ids is None else np.take_along_axis(self.ids, places, axis=1)
        return Candidates(ids, np.take_along_axis(self.scores, places, axis=1))

    def only(self, kept: NDArray[np.bool_]) -> "Candidates":
        """The others are out."""
        return Candidates(self.ids, np.where(kept, self.scores, np.float32(-np.inf)))

    def tokens(self, places: Places) -> list[int]:
        """The ids at one place of each row."""
        chosen = places if self.ids is None else np.take_along_axis(self.ids, places[:, None], axis=1)[:, 0]
        tokens: list[int] = chosen.tolist()
        return tokens

    def spread(self, values: Scores, rest: float, vocab_size: int) -> Scores:
        """`[row, vocab]` the candidates' values, and `rest` for all other tokens."""
        if self.ids is None:
            return values.copy()
        rows = np.full((len(values), vocab_size), rest, dtype=np.float32)
        np.put_along_axis(rows, self.ids, values, axis=1)
        return rows


def highest_in_rows(scores: Scores, count: int) -> Places:
    """`[row, count]` places of each row's highest scores, ascending; ties by lowest place.

    Where no more are above minus infinity the lowest other places fill the row.
    """
    native = extension()
    if native is not None:
        places: Places = native.highest_in_rows(np.ascontiguousarray(scores), count)
        return places
    return highest_in_rows_by_numpy(scores, count)


def highest_in_rows_by_numpy(scores: Scores, count: int) -> Places:
    """What the native form of `highest_in_rows` must equal."""
    found = np.empty((len(scores), count), dtype=np.int64)
    for own, row in zip(found, scores, strict=True):
        places = highest_by_numpy(row, count)
        if places.size < count:
            others = np.setdiff1d(np.arange(min(row.size, 2 * count)), places)
            places = np.sort(np.concatenate([places, others[: count - places.size]]))
        own[:] = places
    return found


def highest(scores: Scores, count: int) -> Places:
    """Places of the `count` highest scores of one row, ascending; ties by lowest place; none of minus infinity."""
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
    """Places from the highest score to the lowest, along the last axis; ties by lowest place."""
    return np.argsort(-scores, axis=-1, kind="stable")


def softmax(found: Candidates) -> Scores:
    """float32 probabilities of each row; exactly 0 where a score is minus infinity."""
    return normalised(weights_of(found))


def weights_of(found: Candidates) -> Scores:
    """The softmax before it is divided by its sum: 1 for the highest score of each row."""
    scores = found.scores
    if not found.highest_is_zero:
        scores = scores - np.maximum.reduce(scores, axis=1, keepdims=True)
    weights: Scores = np.exp(scores)
    return weights


def normalised(weights: Scores) -> Scores:
    """Rows that add up to 1."""
    # One sum per row: NumPy's buffers would let a sum over all of them depend on where a row stands.
    sums: Scores = np.array([[row.sum(dtype=np.float64)] for row in weights], dtype=np.float32)
    probs: Scores = weights / sums
    return probs


def log_normaliser(scores: Scores) -> float:
    """log sum exp of one row, float64: a score minus this is a log probability."""
    top = scores.max()
    return float(top) + float(np.log(np.exp(scores - top).sum(dtype=np.float64)))
