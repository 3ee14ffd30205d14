"""The target's own choice: the highest sum of score and noise. The one place where a faster kernel plugs in."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from pilotfish.sampling.noise import TOKENS_PER_BLOCK, gumbel, gumbel_at


def gumbel_argmax(scores: Float[Tensor, "row vocab"], seed: int, positions: Sequence[int]) -> list[int]:
    """argmax over tokens of score + g(seed, position, token), per row, summed in float64; ties by lowest id.

    With scores that are a log law up to a constant, the choice is distributed by that law (Gumbel-max), and it is a
    function of law, seed and position alone.

    Args:
        scores: float32; minus infinity where a token cannot be chosen.
        positions: `[row]` the absolute position that each row chooses for.
    """
    rows = scores.detach().cpu().numpy()
    return [_choose(row, seed, position) for row, position in zip(rows, positions, strict=True)]


def _choose(scores: np.ndarray, seed: int, position: int) -> int:
    support = np.flatnonzero(scores > -np.inf)
    assert support.size, "no token has a score: every logit is masked or not a number"
    # A block of noise serves four tokens, so noise for the support alone pays below a quarter of the vocabulary.
    if support.size * TOKENS_PER_BLOCK < scores.size:
        return int(support[np.argmax(scores[support] + gumbel_at(seed, position, support))])
    return int(np.argmax(scores + gumbel(seed, position, scores.size)))
