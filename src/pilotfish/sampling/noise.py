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
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pilotfish.sampling.extension import extension

Words = NDArray[np.uint64]
"""32-bit words, each in 64 bits so that a product of two fits."""
Word = TypeVar("Word", int, Words)
"""One counter as Python integers, the faster form for a few numbers, or many as arrays."""

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
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
    SAMPLE = 4
    """Seeds of a prompt's further samples: counter (index, 0, 4, 0)."""


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Philox 4x32-10 under one key, of one counter or of many (arrays that broadcast together)."""
    c0: Any
    c1: Any
    c2: Any
    c3: Any
    c0, c1, c2, c3 = counter  # numpy's stubs lose the type of an unsigned array that meets a Python integer
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: int, position: int, vocab_size: int) -> NDArray[np.float64]:
    """`[vocab]` standard Gumbel noise of every token at a position, from the `TARGET` stream."""
    blocks = np.arange(-(-vocab_size // TOKENS_PER_BLOCK), dtype=np.uint64)
    return np.negative(_log_exponentials(_uniforms(_target_words(seed, position, blocks).reshape(-1)[:vocab_size])))


def gumbel_at(seed: int, positions: Sequence[int], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[row, token]` the noise of `gumbel`, bit for bit, of these tokens only, at each row's position."""
    return np.negative(log_exponentials(seed, positions, tokens))


def log_exponentials(seed: int, positions: Sequence[int], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[row, token]` the same noise without its sign: logarithms of exponentially distributed numbers."""
    native = extension()
    if native is None:
        return _log_exponentials(uniforms_by_numpy(seed, positions, tokens))
    return _log_exponentials(native.noise_uniforms(seed, positions, tokens))


def uniforms_by_numpy(seed: int, positions: Sequence[int], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[row, token]` the uniform numbers behind the noise: what the native form must equal."""
    at = np.array(positions, dtype=np.uint64)[:, None]
    words = _target_words(seed, at, (tokens // TOKENS_PER_BLOCK).astype(np.uint64))
    return _uniforms(np.take_along_axis(words, (tokens % TOKENS_PER_BLOCK)[..., None], axis=-1)[..., 0])


def derived_seed(seed: int, index: int) -> int:
    """The seed of a prompt's sample: for sample 0 the seed itself, for others 53 bits of the `SAMPLE` stream."""
    if index == 0:
        return seed
    high, low, _, _ = philox((index, 0, int(Stream.SAMPLE), 0), _key(seed))
    return (high << 32 | low) >> 11


def uniforms(seed: int, stream: Stream, nodes: Sequence[int], positions: Sequence[int], start: int) -> list[float]:
    """`[node]` uniform numbers in the open interval (0, 1) of a ratio stream, one per node and its position.

    52 bits of two words and a half step: every value is exact in float64, and neither 0 nor 1 can come out.
    """
    assert stream is not Stream.TARGET, "the target's noise is by token: gumbel"
    values = []
    for node, position in zip(nodes, positions, strict=True):
        high, low, _, _ = philox((node, position, int(stream), start), _key(seed))
        values.append((((high >> 6) << 26 | low >> 6) + 0.5) * 2.0**-52)
    return values


def _key(seed: int) -> tuple[int, int]:
    return seed & _MASK, seed >> 32


def _target_words(seed: int, positions: int | Words, blocks: Words) -> Words:
    """`[..., block, 4]` output words of the `TARGET` stream."""
    at, stream, start = (np.asarray(word, dtype=np.uint64) for word in (positions, Stream.TARGET, 0))
    return np.stack(philox((blocks, at, stream, start), _key(seed)), axis=-1)


def _uniforms(words: Words) -> NDArray[np.float64]:
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def _log_exponentials(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    return np.log(uniform, out=uniform)
