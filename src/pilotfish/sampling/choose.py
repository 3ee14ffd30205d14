"""The target's own choice: the highest sum of score and noise.

Owns which way is the cheapest: noise for the candidates that are left, the native kernel for whole rows of scores or of
logits that a temperature divides, or all noise in NumPy. They give the same token; the native kernel's
double-precision logarithm may differ from NumPy's in its last bit.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from pilotfish.errors import RowsError
from pilotfish.sampling.candidates import Candidates, Scores
from pilotfish.sampling.extension import extension
from pilotfish.sampling.noise import TOKENS_PER_BLOCK, gumbel, gumbel_at, log_exponentials
from pilotfish.sampling.rows import Rows


def choose(found: Candidates, seed: int, positions: Sequence[int]) -> list[int]:
    """argmax over each row's candidates of score + g(seed, position, token), summed in float64; ties by lowest id.

    With scores that are a log law up to a constant, the choice is distributed by that law (Gumbel-max), and it is a
    function of law, seed and position alone.

    Args:
        positions: `[row]` the absolute position that each row chooses for.
    """
    native = extension()
    if native is None:
        return _choose_by_numpy(found, seed, positions)
    try:
        if found.ids is not None:
            logs = log_exponentials(seed, positions, found.ids)
            chosen: list[int] = native.highest_differences(found.ids, np.ascontiguousarray(found.scores), logs)
            return chosen
        rows = np.ascontiguousarray(found.scores)
        tokens: list[int] = native.gumbel_argmax(rows, rows.shape[1], seed, positions)
    except RowsError as error:
        raise AssertionError(_NO_SCORE) from error
    return tokens


def choose_from_logits(
    logits: Rows, vocab_size: int, divisor: float, seed: int, positions: Sequence[int]
) -> list[int] | None:
    """`choose` in one native look at the first `vocab_size` columns of the logits, for a pipeline without other steps.

    Args:
        divisor: of the temperature step; 0 where there is none.

    Returns:
        `None` where this way is not open: the step and `choose` one after the other are the reference.
    """
    native = extension()
    if native is None or not logits.flags.c_contiguous:
        return None
    try:
        tokens: list[int] | None = native.gumbel_argmax(logits, vocab_size, seed, positions, divisor)
    except RowsError as error:
        raise AssertionError(_NO_SCORE) from error
    return tokens


_NO_SCORE = "no token has a score: every logit is masked or not a number"


def _choose_by_numpy(found: Candidates, seed: int, positions: Sequence[int]) -> list[int]:
    assert (found.scores.max(axis=1) > -np.inf).all(), _NO_SCORE
    if found.ids is None:
        return [choose_by_numpy(row, seed, place) for row, place in zip(found.scores, positions, strict=True)]
    return found.tokens((found.scores + gumbel_at(seed, positions, found.ids)).argmax(axis=1))


def gumbel_argmax(scores: Float[Tensor, "row vocab"], seed: int, positions: Sequence[int]) -> list[int]:
    """`choose` from whole rows of float32 scores."""
    return choose(Candidates(None, scores.detach().cpu().numpy()), seed, positions)


def choose_by_numpy(scores: Scores, seed: int, position: int) -> int:
    """The choice from one whole row in plain NumPy: what the native kernel must equal."""
    support = np.flatnonzero(scores > -np.inf)
    # A block of noise serves four tokens, so noise for the support alone pays below a quarter of the vocabulary.
    if support.size * TOKENS_PER_BLOCK < scores.size:
        return int(support[np.argmax(scores[support] + gumbel_at(seed, [position], support[None])[0])])
    return int(np.argmax(scores + gumbel(seed, position, scores.size)))
