"""The random numbers of a request: a documented pure function of (seed, position, stream, token or node, round).

Owns the counter-based generator (Philox 4x32-10, Salmon et al., https://doi.org/10.1145/2063384.2063405), its layout
and the map from words to uniforms and Gumbel noise. Knows no logits, no law and no request. There is no state: the
same arguments give the same number in any order, batch or process.

The layout is public API; changing it changes what a seed means.

| | word | holds |
|---|---|---|
| key | 0, 1 | seed, low and high 32 bits |
| counter | 0 | `TARGET`: token // 4 (output word token % 4 is the token's); others: the node's number in the draft |
| counter | 1 | absolute position of the token that is chosen |
| counter | 2 | stream |
| counter | 3 | start: `TARGET` 0; other streams the committed length at the beginning of the round |

Why `start`: the target's noise must be the same whatever rounds looked like, so it has none. The ratio rules need
numbers that are *fresh* in each round. A round spends numbers at positions beyond the place where its draft is cut
(block and traversal look at the whole draft before they decide), and the next round comes to the same positions
again; were its numbers the same, they would no longer be independent of what has been emitted. Every round commits at
least one token, so the committed length names the round.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""32-bit words, each in 64 bits so that a product of two fits."""

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_HALF = np.uint64(32)
_ROUNDS = 10
TOKENS_PER_BLOCK = 4


class Stream(IntEnum):
    """Independent sequences of numbers within one request."""

    TARGET = 0
    """Gumbel noise by position and token: the target's own choice, and drafts coupled with it."""
    DRAFT = 1
    """Draws of a drafter that samples from its own law, for the ratio rules."""
    ACCEPT = 2
    """The acceptance tests of the ratio rules."""
    RESAMPLE = 3
    """The residual or bonus token of the ratio rules."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox 4x32-10 of every counter (four arrays that broadcast together) under one key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c1 = product1 & _LOW
        c2 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c3 = product0 & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: int, position: int, vocab_size: int) -> NDArray[np.float64]:
    """`[vocab]` standard Gumbel noise of every token at a position, from the `TARGET` stream."""
    blocks = np.arange(-(-vocab_size // TOKENS_PER_BLOCK), dtype=np.uint64)
    words = np.stack(_block(seed, blocks, position, Stream.TARGET, 0), axis=-1).reshape(-1)[:vocab_size]
    return _gumbel(words)


def gumbel_at(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[token]` the same noise as `gumbel`, bit for bit, of these tokens only."""
    ids = tokens.astype(np.uint64)
    words = np.stack(_block(seed, ids // np.uint64(TOKENS_PER_BLOCK), position, Stream.TARGET, 0), axis=-1)
    return _gumbel(np.take_along_axis(words, (tokens % TOKENS_PER_BLOCK)[:, None], axis=-1)[:, 0])


def uniforms(
    seed: int, stream: Stream, nodes: Sequence[int], positions: Sequence[int], start: int
) -> NDArray[np.float64]:
    """`[node]` uniform numbers in the open interval (0, 1) of a ratio stream, one per node and its position.

    52 bits of two words and a half step: every value is exact in float64, and neither 0 nor 1 can come out.
    """
    assert stream is not Stream.TARGET, "the target's noise is by token: gumbel"
    high, low, _, _ = _block(
        seed, np.asarray(nodes, dtype=np.uint64), np.asarray(positions, dtype=np.uint64), stream, start
    )
    mantissa = ((high >> np.uint64(6)) << np.uint64(26)) | (low >> np.uint64(6))
    return (mantissa.astype(np.float64) + 0.5) * 2.0**-52


def _block(
    seed: int, first: Words, position: int | Words, stream: Stream, start: int
) -> tuple[Words, Words, Words, Words]:
    counter = (
        first,
        np.asarray(position, dtype=np.uint64),
        np.asarray(stream, dtype=np.uint64),
        np.asarray(start, dtype=np.uint64),
    )
    return philox(counter, (seed & _MASK, seed >> 32))


def _gumbel(words: Words) -> NDArray[np.float64]:
    noise = (words.astype(np.float64) + 0.5) * 2.0**-32
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)
