"""The target's own choice: the highest sum of score and noise.

Owns which of three ways is the cheapest: noise for a few candidates, the native kernel, or all noise in NumPy. They
give the same token; the native kernel's double-precision logarithm may differ from NumPy's in its last bit.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from pilotfish.sampling.candidates import Candidates, Scores
from pilotfish.sampling.extension import extension
from pilotfish.sampling.noise import TOKENS_PER_BLOCK, gumbel, gumbel_at

_FEW = 4096
"""Noise for so many candidates costs less than one for a whole vocabulary of usual size."""


def choose(rows: Sequence[Candidates], seed: int, positions: Sequence[int]) -> list[int]:
    """argmax over each row's candidates of score + g(seed, position, token), summed in float64; ties by lowest id.

    With scores that are a log law up to a constant, the choice is distributed by that law (Gumbel-max), and it is a
    function of law, seed and position alone.

    Args:
        rows: candidates of each row.
        positions: `[row]` the absolute position that each row chooses for.
    """
    few = [place for place, row in enumerate(rows) if row.ids is not None and len(row.ids) <= _FEW]
    chosen = dict(zip(few, _among_few([rows[i] for i in few], seed, [positions[i] for i in few]), strict=True))
    for place, row in enumerate(rows):
        if place not in chosen:
            assert (row.scores > -np.inf).any(), "no token has a score: every logit is masked or not a number"
            if row.ids is None:
                chosen[place] = _among_all(row.scores, seed, positions[place])
            else:
                chosen[place] = _among(row, seed, positions[place])
    return [chosen[place] for place in range(len(rows))]


def gumbel_argmax(scores: Float[Tensor, "row vocab"], seed: int, positions: Sequence[int]) -> list[int]:
    """`choose` from whole rows of float32 scores."""
    return choose([Candidates(None, row) for row in scores.detach().cpu().numpy()], seed, positions)


def choose_by_numpy(scores: Scores, seed: int, position: int) -> int:
    """The choice from one whole row in plain NumPy: what the native kernel must equal."""
    support = np.flatnonzero(scores > -np.inf)
    # A block of noise serves four tokens, so noise for the support alone pays below a quarter of the vocabulary.
    if support.size * TOKENS_PER_BLOCK < scores.size:
        return _among(Candidates(support, scores[support]), seed, position)
    return int(np.argmax(scores + gumbel(seed, position, scores.size)))


def _among(row: Candidates, seed: int, position: int) -> int:
    assert row.ids is not None, "noise by token needs the tokens"
    return row.token(int(np.argmax(row.scores + gumbel_at(seed, position, row.ids))))


def _among_few(rows: Sequence[Candidates], seed: int, positions: Sequence[int]) -> list[int]:
    """The choices of rows with few candidates each: one call makes the noise of all of them."""
    if not rows:
        return []
    ids = [row.ids for row in rows if row.ids is not None]
    sizes = [len(own) for own in ids]
    assert all(sizes), "no token has a score: every logit is masked or not a number"
    noise = gumbel_at(seed, np.repeat(np.array(positions, dtype=np.int64), sizes), np.concatenate(ids))
    noisy = np.concatenate([row.scores for row in rows]) + noise
    ends = np.cumsum(sizes)
    return [
        row.token(int(np.argmax(noisy[end - size : end]))) for row, size, end in zip(rows, sizes, ends, strict=True)
    ]


def _among_all(scores: Scores, seed: int, position: int) -> int:
    """The choice from a whole row, by the native kernel where there is one."""
    native = extension()
    if native is None:
        return choose_by_numpy(scores, seed, position)
    row = np.ascontiguousarray(scores)[None]
    return int(native.gumbel_argmax(row, seed, np.array([position], dtype=np.int64))[0])
