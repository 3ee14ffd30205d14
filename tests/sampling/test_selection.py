"""Penalties and top-k in one native look at the logits equal the steps one by one, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish import _native
from pilotfish.errors import RowsError
from pilotfish.sampling import Prefix, Sampler, SamplingParams, pipeline
from pilotfish.sampling.candidates import Candidates, normalised, weights_of
from pilotfish.sampling.penalties import RepetitionPenalty
from pilotfish.sampling.selection import selected
from pilotfish.sampling.truncation import TopK, keep_mass_by_numpy

VOCAB, WIDTH = 300, 304


@pytest.fixture
def by_steps(monkeypatch):
    """Calls something with the native way closed."""

    def call(function, *arguments):
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "selected", lambda *_: None)
            return function(*arguments)

    return call


def logits_of(kind, rows, seed):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(rows, WIDTH)).astype(np.float32) * 3
    if kind == "ties":
        logits = random.integers(-2, 3, size=(rows, WIDTH)).astype(np.float32)
    elif kind == "masked":
        logits[random.random(logits.shape) < 0.98] = -np.inf
    elif kind == "zeros of both signs":
        logits = np.where(logits > 0, np.float32(0.0), np.float32(-0.0))
    elif kind == "not a number":
        logits[random.random(logits.shape) < 0.01] = np.nan
    elif kind == "large":
        logits *= np.float32(1e37)
    logits[:, VOCAB:] = 1e30  # padding that must never be seen
    return logits


options = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0, 1e-9, 0.7, 1, 2.5])},
    optional={
        "top_k": st.sampled_from([1, 2, 50, 290, 299, 300, 5000]),
        "top_p": st.sampled_from([0.1, 0.9, 0.999]),
        "min_p": st.sampled_from([0.01, 0.5, 1.0]),
        "typical_p": st.just(0.8),
        "repetition_penalty": st.sampled_from([0.5, 1.1, 2.0]),
        "frequency_penalty": st.sampled_from([-1.5, 0.3]),
        "presence_penalty": st.sampled_from([-0.5, 1.0]),
        "logit_bias": st.just({3: 5.0, 7: -100.0}),
        "banned_token_ids": st.just((0, 1, 2)),
    },
)
KINDS = ["normal", "ties", "masked", "zeros of both signs", "not a number", "large"]
histories = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
paths = st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=4), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(options, st.sampled_from(KINDS), histories, st.integers(0, 3), paths, st.integers(0, 2**32))
def test_laws_and_choices_are_those_of_the_steps(chosen, kind, history, prompt, paths, seed):
    if kind == "not a number":  # typical_p has no entropy to go by there, whichever way the logits came
        chosen = {name: value for name, value in chosen.items() if name != "typical_p"}
    sampler = Sampler(SamplingParams(seed=seed, **chosen), VOCAB)
    logits = logits_of(kind, len(paths), seed)
    prefixes = [Prefix(history, min(prompt, len(history)), tuple(path)) for path in paths]
    with pytest.MonkeyPatch.context() as patched, np.errstate(all="ignore"):
        found = sampler.pipeline.of_rows(logits, VOCAB, prefixes)
        choices = None if kind in ("not a number", "large") else sampler.choices(logits, prefixes)
        patched.setattr(pipeline, "selected", lambda *_: None)
        expected = sampler.pipeline.of_rows(logits, VOCAB, prefixes)
        expected_choices = None if choices is None else sampler.choices(logits, prefixes)
    spread = found.spread(found.scores, -np.inf, VOCAB)
    assert spread.tobytes() == expected.spread(expected.scores, -np.inf, VOCAB).tobytes()
    assert choices == expected_choices


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_left_as_they_are(kind):
    logits = logits_of(kind, 3, 1)
    before = logits.tobytes()
    history = [1, 2, 3, 2]
    params = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_k": 5, "temperature": 0.5}
    sampler = Sampler(SamplingParams(seed=1, **params), VOCAB)
    found = selected(
        logits,
        VOCAB,
        [Prefix(history, 2, path) for path in ((), (3, 3), (200, 2))],
        sampler.pipeline.on_rows,
        sampler.pipeline.truncations,
    )
    assert found is not None
    assert logits.tobytes() == before


@pytest.mark.parametrize("isa", _native.instruction_sets())
@pytest.mark.parametrize("size", [63, 64, 200, 49_152])
@pytest.mark.parametrize("k", [1, 3, 50, 62])
def test_every_instruction_set_selects_the_same(isa, size, k, by_steps):
    logits = np.random.default_rng(size).normal(size=(2, size)).round(2).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=1, top_k=k, repetition_penalty=1.2), size)
    history = [5, 6, 7]
    prefixes = [Prefix(history, 1, path) for path in ((), (8, 6))]
    _native.select_isa(isa)
    try:
        found = sampler.pipeline.of_rows(logits, size, prefixes)
    finally:
        _native.select_isa("auto")
    expected = by_steps(sampler.pipeline.of_rows, logits, size, prefixes)
    assert np.array_equal(found.ids, expected.ids)
    assert found.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("k", [1, 50, 90])
@pytest.mark.parametrize("repetition_penalty", [0.8, 1.0, 1.5])
@pytest.mark.parametrize("frequency_penalty", [-0.5, 2.0])
def test_penalties_on_the_highest_tokens_bring_others_up(k, repetition_penalty, frequency_penalty, by_steps):
    logits = np.random.default_rng(k).normal(size=(3, 5000)).astype(np.float32) * 3
    history = np.argsort(-logits[0])[:2000].tolist()
    history += history[:30] * 3
    paths = ((), tuple(np.argsort(-logits[1])[:40].tolist()), (4999, 4999))
    prefixes = [Prefix(history, 1, path) for path in paths]
    options = {"top_k": k, "repetition_penalty": repetition_penalty, "frequency_penalty": frequency_penalty}
    sampler = Sampler(SamplingParams(seed=1, **options), 5000)
    found = sampler.pipeline.of_rows(logits, 5000, prefixes)
    expected = by_steps(sampler.pipeline.of_rows, logits, 5000, prefixes)
    assert np.array_equal(found.ids, expected.ids)
    assert found.scores.tobytes() == expected.scores.tobytes()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(1, 300), st.sampled_from([0.1, 0.5, 0.75, 0.999, 1 - 1e-9]), st.integers(0, 99)
)
def test_mass_is_reached_by_the_same_tokens(kind, size, mass, seed):
    scores = np.ascontiguousarray(logits_of(kind, 3, seed)[:, :size])
    with np.errstate(all="ignore"):
        weights = weights_of(Candidates(None, scores))
        expected = keep_mass_by_numpy(scores, weights, mass)
    assert _native.keep_mass(scores, weights, mass).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 50, 127, 128, 129, 200, 1000, 1025, 2048])
def test_mass_has_the_same_bits(size):
    """The mass asked for is exactly that of so many tokens: another last bit of a probability keeps one more."""
    scores = np.random.default_rng(size).normal(size=(1, size)).astype(np.float32) * 2
    weights = weights_of(Candidates(None, scores))
    probs = normalised(weights)[0]
    masses = np.cumsum(probs[np.argsort(-scores[0], kind="stable")], dtype=np.float64)
    for count in range(1, size + 1, max(1, size // 40)):
        for mass, expected in ((masses[count - 1], count), (np.nextafter(masses[count - 1], 2), min(count + 1, size))):
            assert np.isfinite(_native.keep_mass(scores, weights, float(mass))).sum() == expected


def test_shapes_of_a_mass_are_checked():
    rows = np.zeros((2, 3), dtype=np.float32)
    for weights in (rows[:1], rows[:, :2].copy()):
        with pytest.raises(RowsError, match="expected as many"):
            _native.keep_mass(rows, weights, 0.5)


def test_step_that_only_resembles_a_penalty_goes_its_own_way():
    class Wrong(RepetitionPenalty):
        def penalised(self, logits, counts):
            return logits + 100

    logits = logits_of("normal", 1, 0)
    assert selected(logits, VOCAB, [Prefix([1], 1)], [Wrong(1.1)], [TopK(5)]) is None
    assert selected(logits, VOCAB, [Prefix([1], 1)], [RepetitionPenalty(1.1)], [TopK(5)]) is not None
    logits.flags.writeable = False  # no reason to go another way: rows are looked at, never changed
    assert selected(logits, VOCAB, [Prefix([1], 1)], [RepetitionPenalty(1.1)], [TopK(5)]) is not None


def test_padded_tensor_gives_the_same_choices_as_its_rows():
    logits = logits_of("normal", 2, 0)
    sampler = Sampler(SamplingParams(seed=1, top_k=7, presence_penalty=1.0), VOCAB)
    history = [4, 9]
    prefixes = [Prefix(history, 1, path) for path in ((), (3,))]
    assert sampler.choices(torch.from_numpy(logits), prefixes) == sampler.choices(logits, prefixes)


def test_tokens_and_lengths_out_of_range_are_refused():
    logits = np.zeros((1, 8), dtype=np.float32)
    for token in (8, -1):
        with pytest.raises(RowsError, match="drafted token"):
            _native.penalised_rows(logits, 8, [(True, 1.5, 0.0, np.ones(1, dtype=np.float32))], [(token,)], 2, None)
    with pytest.raises(RowsError, match="counts of 9 tokens"):
        _native.penalised_rows(logits, 8, [(True, 1.5, 0.0, np.ones(9, dtype=np.float32))], [()], 2, None)
    with pytest.raises(RowsError, match="one per row"):
        _native.penalised_rows(logits, 8, [], [(), ()], 2, None)
    with pytest.raises(RowsError, match="rows have 8"):
        _native.penalised_rows(logits, 9, [], [()], 2, None)
    ids = np.zeros((1, 2), dtype=np.int64)
    with pytest.raises(RowsError, match="positions"):
        _native.noise_uniforms(1, [1, 2], ids)
    with pytest.raises(RowsError, match="as many scores"):
        _native.highest_differences(ids, np.zeros((1, 3), dtype=np.float32), np.zeros((1, 2)))
