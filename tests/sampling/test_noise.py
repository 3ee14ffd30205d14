import numpy as np
import pytest
from scipy import stats

from pilotfish.sampling.noise import Stream, gumbel, gumbel_at, philox, uniforms

RATIO_STREAMS = (Stream.DRAFT, Stream.ACCEPT, Stream.RESAMPLE)

# Random123's known answers for philox4x32, 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(*values):
    return tuple(np.atleast_1d(np.array(value, dtype=np.uint64)) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_vectors(counter, key, expected):
    assert philox(counter, key) == expected
    assert tuple(word.item() for word in philox(words(*counter), key)) == expected


def test_philox_is_vectorised_without_changing_a_word():
    counters = [answer[0] for answer in KNOWN_ANSWERS]
    together = philox(words(*zip(*counters, strict=True)), (5, 6))
    for index, counter in enumerate(counters):
        assert [word[index].item() for word in together] == [word.item() for word in philox(words(*counter), (5, 6))]


def test_gumbel_follows_the_documented_layout():
    seed, position, token = (7 << 32) | 9, 1234, 4567
    out = philox(words(token // 4, position, 0, 0), (9, 7))
    uniform = (out[token % 4].item() + 0.5) * 2.0**-32
    assert gumbel(seed, position, 5000)[token] == -np.log(-np.log(uniform))


def test_uniforms_follow_the_documented_layout():
    seed, node, position, start = (7 << 32) | 9, 3, 1234, 1200
    high, low, _, _ = philox((node, position, 2, start), (9, 7))
    expected = (((high >> 6) << 26 | low >> 6) + 0.5) / 2**52
    assert uniforms(seed, Stream.ACCEPT, [node], [position], start) == [expected]


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 5, 1001])
def test_gumbel_of_a_support_equals_the_full_noise_bit_for_bit(vocab_size):
    full = gumbel(2**64 - 1, 77, vocab_size)
    assert full.shape == (vocab_size,)
    tokens = np.random.default_rng(0).permutation(vocab_size)[: max(1, vocab_size // 3)]
    assert gumbel_at(2**64 - 1, [77], tokens[None]).tobytes() == full[tokens].tobytes()


def test_gumbel_does_not_depend_on_the_vocabulary_size():
    assert gumbel(1, 2, 999).tobytes() == gumbel(1, 2, 5000)[:999].tobytes()


def test_noise_is_finite_and_uniforms_are_open_at_the_extreme_words(monkeypatch):
    for word in (0, 0xFFFFFFFF):
        monkeypatch.setattr("pilotfish.sampling.noise.philox", lambda counter, key, w=word: (0 * counter[0] + w,) * 4)
        assert np.isfinite(gumbel(0, 0, 4)).all()
        (uniform,) = uniforms(0, Stream.DRAFT, [0], [0], 0)
        assert 0 < uniform < 1


def test_gumbel_noise_has_the_gumbel_law():
    """Kolmogorov-Smirnov, n = 200,000, false-alarm rate 1e-6, sees a CDF off by 0.01 with probability 0.99.

    The control, normal noise of the same mean and variance, must fail.
    """
    sample = np.concatenate([gumbel(3, position, 20_000) for position in range(10)])
    assert stats.kstest(sample, stats.gumbel_r.cdf).pvalue > 1e-6
    control = stats.gumbel_r.mean() + stats.gumbel_r.std() * np.random.default_rng(0).standard_normal(sample.size)
    assert stats.kstest(control, stats.gumbel_r.cdf).pvalue < 1e-6


@pytest.mark.parametrize("stream", RATIO_STREAMS)
def test_uniforms_are_uniform(stream):
    """Kolmogorov-Smirnov, n = 100,000, false-alarm rate 1e-6, sees a CDF off by 0.014 with probability 0.99.

    The control, a uniform to the power 1.1, must fail.
    """
    count = 100_000
    sample = np.array(uniforms(5, stream, [0] * count, range(count), 17))
    assert stats.kstest(sample, "uniform").pvalue > 1e-6
    assert stats.kstest(sample**1.1, "uniform").pvalue < 1e-6


def series(count):
    """One series of numbers per way in which two numbers of one request can differ."""
    nodes, positions = [0] * count, range(count)
    found = {
        **{stream.name: uniforms(5, stream, nodes, positions, 17) for stream in RATIO_STREAMS},
        "next position": uniforms(5, Stream.ACCEPT, nodes, range(1, count + 1), 17),
        "next node": uniforms(5, Stream.ACCEPT, [1] * count, positions, 17),
        "next round": uniforms(5, Stream.ACCEPT, nodes, positions, 18),
        "next seed": uniforms(6, Stream.ACCEPT, nodes, positions, 17),
        "high half of the seed": uniforms(5 + (1 << 32), Stream.ACCEPT, nodes, positions, 17),
        "target": np.exp(-np.exp(-gumbel(5, 0, count))),
    }
    return {name: np.asarray(values) for name, values in found.items()}


def test_streams_nodes_positions_rounds_and_seeds_are_independent():
    """8 x 8 contingency tables of all pairs, n = 20,000, false-alarm rate 1e-6 over the test.

    Smallest effect seen with probability 0.99: lambda = n * phi^2 = 127, so phi = 0.08. The control, a series against
    a mixture that repeats it one time in ten, must fail.
    """
    found = series(20_000)

    def p_value(left, right):
        table = np.histogram2d(left, right, bins=8, range=((0, 1), (0, 1)))[0]
        return stats.chi2_contingency(table).pvalue

    names = list(found)
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1 :]]
    for a, b in pairs:
        assert p_value(found[a], found[b]) > 1e-6 / len(pairs), (a, b)
    repeats = np.arange(20_000) % 10 == 0
    control = np.where(repeats, found["DRAFT"], found["ACCEPT"])
    assert p_value(found["DRAFT"], control) < 1e-6 / len(pairs)


def test_numbers_are_never_reused():
    found = series(5_000)
    found.pop("next position")  # the series itself, shifted
    values = np.concatenate(list(found.values()))
    assert np.unique(values).size == values.size
