"""The highest logits of each row: the greedy choice, and what drafters that recycle are told, in one look at the rows.

Owns the search and its order. Knows no options, no prefix and no draft.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pilotfish.sampling.candidates import ranking
from pilotfish.sampling.extension import extension
from pilotfish.sampling.rows import Rows


@dataclass(frozen=True, slots=True)
class HighestTokens:
    """The tokens of each row's highest logits.

    Attributes:
        ids: `[row][token]` highest first, of equals the lowest id.
        shares: `[row][token]` the softmax of their logits over these tokens alone.
        regular: no logit is plus infinity or not a number, so the first of each row is the row's argmax.
    """

    ids: list[list[int]]
    shares: list[list[float]]
    regular: bool


def highest_tokens(logits: Rows, vocab_size: int, count: int, maxima: Rows | None = None) -> HighestTokens:
    """The `count` highest of the first `vocab_size` columns of each row; fewer in a smaller vocabulary.

    Args:
        maxima: `[row, block]` where they are known, see `PassOutput`: they tell which part of a row to look at.
    """
    native = extension()
    count = min(count, vocab_size)
    if native is None or not logits.flags.c_contiguous:
        return highest_by_numpy(logits, vocab_size, count)
    return HighestTokens(*native.top_rows(logits, vocab_size, count, maxima))


def highest_by_numpy(logits: Rows, vocab_size: int, count: int) -> HighestTokens:
    """`highest_tokens` by a stable sort: the reference. The native shares may differ in their last bit."""
    real = logits[:, :vocab_size]
    places = ranking(real)[:, :count]
    shares = [_shares(row) for row in np.take_along_axis(real, places, axis=1).tolist()]
    return HighestTokens(places.tolist(), shares, bool((real < np.inf).all()))


def _shares(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit - logits[0]) for logit in logits]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]
