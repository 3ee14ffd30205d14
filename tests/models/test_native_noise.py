import math

import numpy as np
import pytest

from pilotfish import _native
from pilotfish.errors import RowsError

# Published with the generator (Random123, kat_vectors).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter, key):
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (right >> 32) ^ b ^ low, right & 0xFFFFFFFF, (left >> 32) ^ d ^ high, left & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def noise(seed, position, vocabulary):
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words = [philox((group, position & 0xFFFFFFFF, 0, 0), key) for group in range(-(-vocabulary // 4))]
    uniforms = [(word + 0.5) * 2.0**-32 for group in words for word in group][:vocabulary]
    return np.array([-math.log(-math.log(uniform)) for uniform in uniforms])


@pytest.fixture(autouse=True)
def best_isa():
    yield
    _native.select_isa("auto")


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_reference_generator_gives_the_published_words(counter, key, expected):
    assert philox(counter, key) == expected


@pytest.mark.parametrize("name", _native.instruction_sets())
@pytest.mark.parametrize("vocabulary", [1, 3, 63, 64, 65, 1000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_choice_is_the_argmax_of_score_plus_noise(name, vocabulary, spread):
    assert _native.select_isa(name)
    generator = np.random.default_rng(vocabulary)
    for seed, position in [(0, 0), (1, 7), (2**64 - 1, 123456), (0xA4093822299F31D0, 2**33 + 5)]:
        scores = (generator.standard_normal((3, vocabulary)) * spread).astype(np.float32)
        positions = [position, position + 1, position + 2]
        got = _native.gumbel_argmax(scores, vocabulary, seed, positions)
        expected = [
            int(np.argmax(row.astype(np.float64) + noise(seed, at, vocabulary)))
            for row, at in zip(scores, positions, strict=True)
        ]
        assert got == expected
        padded = np.concatenate([scores, np.full((3, 5), 1e9, dtype=np.float32)], axis=1)
        assert _native.gumbel_argmax(padded, vocabulary, seed, positions) == expected


def test_a_token_of_lowest_noise_needs_a_far_higher_score():
    # Known-bad control for the shortcut that skips tokens: a score lead below the spread of the noise must not decide.
    scores = np.zeros((1, 4000), dtype=np.float32)
    scores[0, 17] = 5.0
    wins = sum(int(_native.gumbel_argmax(scores, 4000, seed, [0])[0]) == 17 for seed in range(400))
    chance = math.exp(5.0) / (math.exp(5.0) + 3999)  # 0.0358; 400 draws give 14.3 +- 3.7
    assert 2 <= wins <= 400 * chance + 15


def test_minus_infinity_never_wins_and_alone_is_refused():
    scores = np.full((2, 200), -np.inf, dtype=np.float32)
    scores[0, 150] = -1e30
    assert _native.gumbel_argmax(scores[:1], 200, 3, [0]) == [150]
    with pytest.raises(RowsError, match="row 1"):
        _native.gumbel_argmax(scores, 200, 3, [0, 0])
    with pytest.raises(RowsError, match="positions has 1"):
        _native.gumbel_argmax(scores, 200, 3, [0])
    with pytest.raises(RowsError, match="vocabulary is 201"):
        _native.gumbel_argmax(scores, 201, 3, [0, 0])


def test_no_rows_give_no_choices():
    assert _native.gumbel_argmax(np.zeros((0, 5), dtype=np.float32), 5, 0, []) == []
