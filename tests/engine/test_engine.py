"""What the engine refuses before any work, and what it gives back afterwards."""

import pytest

from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.errors import PromptError, RowsError, SamplingParamsError, SpeculativeConfigError
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.sampling.params import SamplingParams
from tests.engine.tiny import run, similar_draft, tiny_engine, tiny_target


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no tokens"),
        ([1] * 96, "96 tokens: expected fewer than the model's context of 96"),
        ([1, 64], "prompt token 1 is 64"),
        ([-1], "prompt token 0 is -1"),
    ],
)
def test_prompt_that_cannot_be_continued_is_refused(prompt, message):
    target = tiny_target()
    with pytest.raises(PromptError, match=message):
        run(tiny_engine(target), [[1, 2], prompt], SamplingParams(max_tokens=2))
    assert target.open(1) == 0, "nothing was started"


def test_stop_token_outside_the_vocabulary_is_refused():
    with pytest.raises(SamplingParamsError, match="stop_token_ids has 64"):
        run(tiny_engine(tiny_target()), [[1]], SamplingParams(stop_token_ids=[64]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_token_ids": [3, 64]}, "allowed_token_ids has 64: expected ids from 0 to 63"),
        ({"banned_token_ids": [99]}, "banned_token_ids has 99: expected ids from 0 to 63"),
        ({"logit_bias": {70: 1.0}}, "logit_bias has 70: expected ids from 0 to 63"),
        ({"logprobs": 65}, "logprobs is 65; expected at most the vocabulary, 64"),
        ({"prompt_logprobs": 65}, "prompt_logprobs is 65; expected at most the vocabulary, 64"),
        ({"n": 2}, "n is 2: an engine's request is one sample"),
        ({"bad_words": "x"}, "no tokenizer to encode them with|give stop_token_ids"),
        ({"bad_words": "x", "stop_token_ids": [3]}, "no tokenizer to encode them with"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs needs a tokenizer"),
        ({"skip_special_tokens": False}, "skip_special_tokens is False"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size may leave no token possible"),
    ],
)
def test_option_that_cannot_be_honoured_is_refused_before_any_work(options, message):
    target = tiny_target()
    with pytest.raises(SamplingParamsError, match=message):
        run(tiny_engine(target), [[1], [2]], [SamplingParams(max_tokens=2), SamplingParams(**options)])
    assert target.open(1) == 0, "nothing was started"


def test_negative_draft_length_is_refused():
    with pytest.raises(SpeculativeConfigError, match="num_speculative_tokens=-1"):
        run(tiny_engine(tiny_target(), NgramDrafter()), [[1]], SamplingParams(), draft_len=-1)


def test_ids_above_the_real_vocabulary_are_neither_drafted_nor_emitted():
    target, draft = tiny_target(vocab_size=80), similar_draft(vocab_size=72)
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=80)
    for drafter in (None, DraftModelDrafter(draft)):
        requests = run(tiny_engine(target, drafter, vocab_size=50), [[1], [2], [3]], params)
        assert max(max(request.output) for request in requests) < 50


def test_request_without_a_seed_reports_one_that_replays_it():
    target = tiny_target()
    params = SamplingParams(max_tokens=12)
    first, second = run(tiny_engine(target), [[1], [1]], params)
    assert first.sampler.seed != second.sampler.seed
    (again,) = run(tiny_engine(target), [[1]], params.with_seed(first.sampler.seed))
    assert again.output == first.output


def test_speculation_is_off_for_a_request_that_says_so():
    engine = tiny_engine(tiny_target(), NgramDrafter(1, 2), 4)
    prompt = [1, 2, 1, 2, 1, 2]
    (off,) = run(engine, [prompt], SamplingParams(temperature=0, max_tokens=12), draft_len=0)
    (on,) = run(engine, [prompt], SamplingParams(temperature=0, max_tokens=12))
    (short,) = run(engine, [prompt], SamplingParams(temperature=0, max_tokens=12), draft_len=1)
    assert off.output == on.output == short.output
    assert off.counters.drafted_tokens == 0 < on.counters.drafted_tokens
    assert len(short.counters.accepted_per_position) <= 1


def test_totals_are_the_sum_over_requests():
    engine = tiny_engine(tiny_target(), NgramDrafter(1, 2), 4)
    requests = run(engine, [[1, 2, 1, 2], [5], [7, 7, 7]], SamplingParams(temperature=0.8, seed=1, max_tokens=20))
    expected = SpeculationCounters()
    for request in requests:
        expected.add(request.counters)
        assert request.counters.delivered_tokens == len(request.output)
    assert engine.totals == expected


@pytest.mark.parametrize("stop_early", [False, True])
def test_caches_are_given_back(stop_early):
    target, draft = tiny_target(), similar_draft()
    engine = tiny_engine(target, DraftModelDrafter(draft), 3)
    rounds = engine.run([[1, 2], [3]], [SamplingParams(seed=1, max_tokens=9)] * 2)
    for delivered in rounds:
        if stop_early and delivered:
            break
    rounds.close()
    for executor in (target, draft):
        for sequence in (0, 1):
            with pytest.raises(RowsError, match="not open"):
                executor.length(sequence)
