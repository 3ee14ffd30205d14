"""Each option's meaning, on its own and at the edges, and against `transformers` on random logits."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from pilotfish import _native
from pilotfish.sampling import Prefix, Sampler, SamplingParams, build_pipeline
from pilotfish.sampling.candidates import (
    highest,
    highest_by_numpy,
    highest_in_rows,
    highest_in_rows_by_numpy,
    ranking,
)
from pilotfish.sampling.noise import uniforms_by_numpy

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
VOCAB = 40


def random_logits(rows, vocab=VOCAB, seed=0, scale=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def scores(logits, prefixes, *, eos_ids=(), bad_words=(), **options):
    pipeline = build_pipeline(SamplingParams(**options), eos_ids=eos_ids, bad_words=bad_words)
    return pipeline.scores(logits, prefixes)


def support(row):
    return {token for token, score in enumerate(row.tolist()) if score > -math.inf}


HISTORY = [3, 7, 7, 1, 3, 9, 7, 1, 3]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("chosen", "processors"),
    [
        ({"repetition_penalty": 1.7}, [RepetitionPenaltyLogitsProcessor(1.7)]),
        ({"repetition_penalty": 0.6}, [RepetitionPenaltyLogitsProcessor(0.6)]),
        ({"no_repeat_ngram_size": 2}, [NoRepeatNGramLogitsProcessor(2)]),
        ({"no_repeat_ngram_size": 3}, [NoRepeatNGramLogitsProcessor(3)]),
        ({"logit_bias": {4: 2.5, 9: -30.0}}, [SequenceBiasLogitsProcessor({(4,): 2.5, (9,): -30.0})]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        ({"typical_p": 0.6}, [TypicalLogitsWarper(0.6)]),
        (
            {"logit_bias": {7: 5.0}, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
            [
                SequenceBiasLogitsProcessor({(7,): 5.0}),
                RepetitionPenaltyLogitsProcessor(1.3),
                NoRepeatNGramLogitsProcessor(2),
            ],
        ),
        (
            {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8},
            [
                TemperatureLogitsWarper(1.4),
                TopKLogitsWarper(30),
                TopPLogitsWarper(0.9),
                MinPLogitsWarper(0.02),
                TypicalLogitsWarper(0.8),
            ],
        ),
    ],
)
def test_options_agree_with_transformers(chosen, processors, seed):
    """Prompt and output play the same part here: where they do not (bad words), transformers' own test is below."""
    logits = random_logits(2, seed=seed)
    histories = [HISTORY, [*HISTORY[:4], 20, 7]]
    expected = torch.cat(
        [
            LogitsProcessorList(processors)(torch.tensor([history]), row[None].clone())
            for history, row in zip(histories, logits, strict=True)
        ]
    )
    prefixes = [Prefix(HISTORY, 2), Prefix(HISTORY[:4], 2, (20, 7))]
    found = torch.cat([scores(row[None], [own], **chosen) for row, own in zip(logits, prefixes, strict=True)])
    assert torch.equal(found > -math.inf, expected > -math.inf)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=1e-5, atol=1e-8)


def test_bad_words_agree_with_transformers_on_the_output():
    sequences = [[5], [7, 1], [9, 7, 1], [3, 9, 7, 2]]
    output = [3, 9, 7]
    logits = random_logits(1)
    expected = NoBadWordsLogitsProcessor(sequences)(torch.tensor([output]), logits.clone())
    found = scores(logits, [Prefix([4, *output[:2]], 1, (7,))], bad_words=sequences)
    assert torch.equal(found, expected)
    assert support(found[0]) == set(range(VOCAB)) - {5, 1, 2}


def test_bad_words_begin_in_the_output_only():
    assert support(scores(random_logits(1), [Prefix([9, 7], 2)], bad_words=[[7, 1]])[0]) == set(range(VOCAB))


def test_output_penalties_count_each_token_of_the_output_and_none_of_the_prompt():
    logits = random_logits(1)
    found = scores(logits, [Prefix([1, 2, 3, 3], 2, (3, 4))], frequency_penalty=0.5, presence_penalty=0.25)
    expected = logits.clone()
    expected[0, 3] -= 3 * 0.5 + 0.25
    expected[0, 4] -= 0.5 + 0.25
    torch.testing.assert_close(found, expected)


def test_allowed_and_banned_tokens_are_masks():
    found = scores(random_logits(2), [Prefix([1], 1)] * 2, allowed_token_ids=[4, 7, 9], banned_token_ids=[7])
    assert [support(row) for row in found] == [{4, 9}, {4, 9}]


def test_bias_is_not_lost_behind_a_mask_and_a_mask_not_behind_a_bias():
    found = scores(random_logits(1), [Prefix([1], 1)], logit_bias={4: 1e38, 5: 100}, banned_token_ids=[4])
    assert 4 not in support(found[0])
    assert int(found.argmax()) == 5


@pytest.mark.parametrize(("path", "masked"), [((), True), ((4,), True), ((4, 4), False)])
def test_min_tokens_masks_every_end_until_so_many_tokens_came(path, masked):
    found = scores(random_logits(1), [Prefix([1, 2], 2, path)], eos_ids=[8], stop_token_ids=[9], min_tokens=2)
    assert support(found[0]) == set(range(VOCAB)) - ({8, 9} if masked else set())


def test_min_tokens_leaves_an_ignored_eos_alone():
    found = scores(random_logits(1), [Prefix([1], 1)], eos_ids=[8], ignore_eos=True, min_tokens=2)
    assert support(found[0]) == set(range(VOCAB))


def test_row_without_a_possible_token_ends_the_request():
    found = scores(random_logits(1), [Prefix([1], 1)], eos_ids=[8], allowed_token_ids=[3], bad_words=[[3]])
    assert support(found[0]) == {8}


def test_single_ngrams_never_repeat():
    found = scores(random_logits(1), [Prefix([1, 2], 1, (5, 5))], no_repeat_ngram_size=1)
    assert support(found[0]) == set(range(VOCAB)) - {1, 2, 5}


@PROPERTY
@given(
    history=st.lists(st.integers(0, 3), min_size=1, max_size=14),
    path=st.lists(st.integers(0, 3), max_size=6),
    size=st.integers(1, 4),
)
def test_no_ngram_of_prompt_output_and_path_repeats(history, path, size):
    whole = [*history, *path]
    seen = {tuple(whole[i : i + size]) for i in range(len(whole) - size + 1)}
    expected = {token for token in range(6) if (*whole[len(whole) - size + 1 :], token) not in seen}
    found = scores(random_logits(1, 6), [Prefix(history, 1, tuple(path))], no_repeat_ngram_size=size)
    assert support(found[0]) == expected


def test_min_p_keeps_the_token_at_the_edge():
    logits = torch.tensor([[0.0, -0.5, -1.0, -1.5]])
    assert support(scores(logits, [Prefix([1], 1)], min_p=float(np.exp(np.float32(-1.0))))[0]) == {0, 1, 2}
    assert support(scores(logits, [Prefix([1], 1)], min_p=1.0)[0]) == {0}


def test_processors_run_in_order_before_masks_and_see_the_rows_own_prefix():
    seen = []

    def first(prefix, logits):
        seen.append((tuple(prefix.committed), prefix.path))
        logits[3] = 50.0
        return logits

    def second(prefix, logits):
        return logits + torch.where(torch.arange(VOCAB) == 3, math.nan, math.inf)

    logits = random_logits(2)
    before = logits.clone()
    prefixes = [Prefix([1, 2], 1), Prefix([1, 2], 1, (9,))]
    found = scores(logits, prefixes, logits_processors=[first, second], banned_token_ids=[4])
    assert torch.equal(logits, before)
    assert seen == [((1, 2), ()), ((1, 2), (9,))]
    assert [support(row) for row in found] == [set(range(VOCAB)) - {3, 4}] * 2
    assert torch.isfinite(found[:, 5]).all()


def test_processor_that_returns_something_else_is_named():
    with pytest.raises(ValueError, match=r"returned \(3,\); expected a tensor of shape \(40,\)"):
        scores(random_logits(1), [Prefix([1], 1)], logits_processors=[lambda prefix, logits: logits[:3]])


# Row invariance, the whole pipeline at once: any options, one request's rows together, alone, and after other calls.
EVERYTHING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 1e-9, 0.6, 1.0, 1.7]),
        "top_k": st.integers(1, 20),
        "top_p": st.sampled_from([0.3, 0.8, 0.99]),
        "min_p": st.sampled_from([0.01, 0.3]),
        "typical_p": st.sampled_from([0.3, 0.9]),
        "repetition_penalty": st.sampled_from([0.7, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.3, 0.9]),
        "no_repeat_ngram_size": st.integers(1, 4),
        "logit_bias": st.dictionaries(st.integers(0, 11), st.floats(-5, 5), min_size=1, max_size=4),
        "banned_token_ids": st.lists(st.integers(2, 11), max_size=3),
        "min_tokens": st.integers(1, 6),
    },
)


@PROPERTY
@given(
    options=EVERYTHING,
    history=st.lists(st.integers(0, 11), min_size=3, max_size=20),
    path=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_every_row_has_the_bits_it_has_in_plain_decoding(options, history, path, seed):
    logits = random_logits(len(path) + 1, 12, seed)
    drafted = [Prefix(history, 2, tuple(path[:length])) for length in range(len(path) + 1)]
    build = lambda: build_pipeline(SamplingParams(**options), eos_ids=[0], bad_words=[[4, 5], [6]])  # noqa: E731
    speculative = build()
    together = speculative.scores(logits, drafted)
    again = speculative.scores(logits.flip(0), drafted[::-1]).flip(0)
    assert together.numpy().tobytes() == again.numpy().tobytes(), "a call's result depends on no call before it"
    plain = build()
    committed = list(history)
    for row, token in enumerate([*path, None]):
        alone = plain.scores(logits[row : row + 1], [Prefix(committed, 2)])[0]
        assert alone.numpy().tobytes() == together[row].numpy().tobytes()
        committed.append(token)


def test_rejected_draft_leaves_no_trace_in_any_option():
    options = {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "no_repeat_ngram_size": 2,
        "presence_penalty": 0.3,
    }
    logits = random_logits(1)
    committed = [1, 2, 3]
    used, fresh = (build_pipeline(SamplingParams(**options), eos_ids=[0]) for _ in range(2))
    for path in [(), (9,), (9, 3), (2, 3)]:
        used.scores(logits, [Prefix(committed, 1, path)])
    committed.extend([7, 2])
    assert torch.equal(used.scores(logits, [Prefix(committed, 1)]), fresh.scores(logits, [Prefix([1, 2, 3, 7, 2], 1)]))


def test_history_is_read_once():
    """A history of 8,000 tokens costs its tokens once: the memory is asked for each place a single time."""
    from pilotfish.sampling.history import TokenCounts

    class Counting(TokenCounts):
        taken = 0

        def take(self, committed, place, prompt_length):
            self.taken += 1
            super().take(committed, place, prompt_length)

    memory = Counting(with_prompt=True)
    committed = list(itertools.islice(itertools.cycle(range(500)), 8000))
    for _ in range(20):
        memory.follow(Prefix(committed, 10, (1, 2, 3)))
        committed.append(7)
    assert memory.taken == 8019
    assert memory.counts[7] == 16 + 19
    assert memory.counts.tolist() == [committed[:-1].count(token) for token in range(500)]


@PROPERTY
@given(
    values=st.lists(st.sampled_from([-math.inf, -2.0, 0.0, 1.0, 1.5, 9.0]), min_size=1, max_size=60),
    repeats=st.sampled_from([1, 40, 300]),
    count=st.integers(1, 80),
)
def test_highest_finds_the_best_and_ties_by_lowest_place(values, repeats, count):
    row = torch.tensor(values).repeat(repeats).numpy()
    expected = sorted(place for place in ranking(row)[:count].tolist() if row[place] > -math.inf)
    assert highest(row, count).tolist() == highest_by_numpy(row, count).tolist() == expected
    if count <= row.size:
        rows = np.stack([row, row[::-1], np.zeros_like(row)])
        found = highest_in_rows(rows, count)
        assert found.tolist() == highest_in_rows_by_numpy(rows, count).tolist()
        assert all(len(set(own)) == count for own in found.tolist())


def test_native_uniforms_equal_numpys():
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 2**18, (20, 25))
    positions = generator.integers(0, 2**31, 20).tolist()
    for seed in (0, 7, 2**53 - 1, 2**64 - 1):
        found = _native.noise_uniforms(seed, positions, tokens)
        assert found.tolist() == uniforms_by_numpy(seed, positions, tokens).tolist()


def test_without_the_extension_the_numbers_are_the_same(monkeypatch):
    logits = random_logits(6, 5000)
    committed = [1, 2]
    prefixes = [Prefix(committed, 1, (3,) * row) for row in range(6)]
    tempered = {"temperature": 0.7, "top_k": 500, "top_p": 0.9}
    penalised = {**tempered, "repetition_penalty": 1.3, "frequency_penalty": 0.5}
    options = [{}, {"top_k": 40}, tempered, penalised, {"top_p": 0.99}, {"min_p": 0.01}]
    samplers = [Sampler(SamplingParams(seed=3, **own), 5000) for own in options]
    native = [sampler.choices(logits, prefixes) for sampler in samplers]
    for module in ("candidates", "choose", "noise", "selection", "truncation"):
        monkeypatch.setattr(f"pilotfish.sampling.{module}.extension", lambda: None)
    assert [sampler.choices(logits, prefixes) for sampler in samplers] == native
