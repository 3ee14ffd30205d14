"""`LLM` on tiny models from disk: prompts, chats, streams, drafters by name, and callers' mistakes."""

import re
import subprocess
import sys

import pytest

from pilotfish import LLM, FinishReason, SamplingParams
from pilotfish.errors import (
    InvalidInputError,
    ModelNotFoundError,
    PromptError,
    SamplingParamsError,
    SpeculativeConfigError,
    TokenizerMismatchError,
    UnsupportedModelError,
)
from pilotfish.sampling import derived_seed
from tests.models.tiny_models import tiny_hf_directory, tiny_tokenizer

PROMPT = "The shark looks once, and once more the shark looks"
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=5, max_tokens=24)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("target"), padding=16)


@pytest.fixture(scope="module")
def draft_directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("draft"), num_hidden_layers=1, padding=40)


@pytest.fixture(scope="module")
def plain(directory):
    return LLM(directory, speculative_config=None)


@pytest.fixture(scope="module")
def ngram(directory):
    return LLM(directory, speculative_config={"method": "ngram", "prompt_lookup_min": 1})


def test_generate_gives_text_ids_and_counts(plain, ngram):
    for params in (GREEDY, SAMPLED):
        (before,), (after,) = plain.generate(PROMPT, params), ngram.generate(PROMPT, params)
        completion = after.outputs[0]
        assert completion.token_ids == before.outputs[0].token_ids
        assert completion.text == before.outputs[0].text
        assert (
            completion.text == plain.tokenizer.decode([*after.prompt_token_ids, *completion.token_ids])[len(PROMPT) :]
        )
        assert len(completion.token_ids) == len(completion.from_draft)
        assert completion.metrics.accepted_tokens == sum(completion.from_draft)
        assert completion.metrics.tokens_per_round == len(completion.token_ids) / completion.metrics.rounds
        assert completion.metrics.drafted_tokens > 0
        assert completion.finish_reason in FinishReason
        assert completion.seed == (params.seed if params.seed is not None else completion.seed)


def test_draft_model_with_another_padding_drafts(directory, plain, draft_directory):
    llm = LLM(directory, speculative_config={"model": str(draft_directory), "num_speculative_tokens": 3})
    for params in (GREEDY, SAMPLED):
        (before,), (after,) = plain.generate(PROMPT, params), llm.generate(PROMPT, params)
        assert after.outputs[0].token_ids == before.outputs[0].token_ids
        assert after.outputs[0].metrics.drafted_tokens > 0


def test_batch_takes_params_for_each_prompt(ngram):
    prompts = [PROMPT, [5, 6, 7], "naïve façade"]
    each = [GREEDY, SAMPLED, SamplingParams(temperature=0, max_tokens=3)]
    batch = ngram.generate(prompts, each)
    alone = [ngram.generate(prompt, params)[0] for prompt, params in zip(prompts, each, strict=True)]
    assert [o.outputs[0].token_ids for o in batch] == [o.outputs[0].token_ids for o in alone]
    assert [o.prompt for o in batch] == [PROMPT, None, "naïve façade"]
    assert len(batch[2].outputs[0].token_ids) == 3


def test_chat_is_generate_on_the_templates_ids(ngram):
    messages = [{"role": "user", "content": "Where to?"}]
    (chat,) = ngram.chat(messages, GREEDY)
    (generated,) = ngram.generate([ngram.tokenizer.chat(messages)], GREEDY)
    assert chat.outputs[0].token_ids == generated.outputs[0].token_ids
    two = ngram.chat([messages, messages], GREEDY)
    assert [o.outputs[0].token_ids for o in two] == [chat.outputs[0].token_ids] * 2


def test_stream_deltas_join_to_the_output(ngram):
    for prompt in (PROMPT, [{"role": "user", "content": "Where to?"}]):
        deltas = list(ngram.stream(prompt, SAMPLED))
        output = deltas[-1].output.outputs[0]
        assert all(delta.output is None for delta in deltas[:-1])
        assert "".join(delta.text for delta in deltas) == output.text
        assert tuple(token for delta in deltas for token in delta.token_ids) == output.token_ids
        assert tuple(flag for delta in deltas for flag in delta.from_draft) == output.from_draft


def test_samples_are_requests_with_derived_seeds(plain, ngram):
    params = SamplingParams(seed=5, n=3, max_tokens=16, temperature=1.1)
    (output,) = ngram.generate(PROMPT, params)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({completion.token_ids for completion in output.outputs}) == 3
    for completion, own in zip(output.outputs, params.samples(), strict=True):
        (alone,) = plain.generate(PROMPT, own)
        assert completion.token_ids == alone.outputs[0].token_ids
        assert completion.seed == own.seed
        assert completion.logprobs is None
    (without_seed,) = ngram.generate(PROMPT, SamplingParams(n=2, max_tokens=8))
    assert without_seed.outputs[1].seed == derived_seed(without_seed.outputs[0].seed, 1)


def test_best_of_gives_the_samples_of_highest_cumulative_logprob(ngram):
    options = {"seed": 5, "max_tokens": 8, "temperature": 1.1}
    (every,) = ngram.generate(PROMPT, SamplingParams(n=6, logprobs=0, **options))
    (best,) = ngram.generate([PROMPT], SamplingParams(n=2, best_of=6, **options))
    ranked = sorted(every.outputs, key=lambda completion: -completion.cumulative_logprob)
    assert [completion.token_ids for completion in best.outputs] == [completion.token_ids for completion in ranked[:2]]
    assert [completion.cumulative_logprob for completion in best.outputs] == [
        completion.cumulative_logprob for completion in ranked[:2]
    ]
    assert [completion.index for completion in best.outputs] == [0, 1]
    assert best.outputs[0].logprobs is None


def test_logprobs_name_tokens_and_ranks(ngram):
    params = SamplingParams(seed=5, max_tokens=8, logprobs=3, prompt_logprobs=1)
    (output,) = ngram.generate(PROMPT, params)
    completion = output.outputs[0]
    for token, found in zip(completion.token_ids, completion.logprobs, strict=True):
        assert 3 <= len(found) <= 4
        assert token in found
        assert [one.rank for one in found.values()][:3] == [1, 2, 3]
        assert found[token].decoded_token == ngram.tokenizer.decode([token], skip_special_tokens=False)
    total = sum(found[token].logprob for token, found in zip(completion.token_ids, completion.logprobs, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert all(
        token in found for token, found in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    )


def test_structured_output_of_a_chat_is_what_was_asked_for(plain, ngram):
    params = SamplingParams(seed=2, max_tokens=30, structured_outputs={"regex": "(yes|no), [a-z]{2,5}\\."})
    messages = [{"role": "user", "content": "Where to?"}]
    (before,), (after,) = plain.chat(messages, params), ngram.chat(messages, params)
    assert re.fullmatch(r"(yes|no), [a-z]{2,5}\.", after.outputs[0].text)
    assert after.outputs[0].token_ids == before.outputs[0].token_ids
    assert after.outputs[0].finish_reason == "stop"


def test_stop_reason_says_what_ended_it(ngram):
    (free,) = ngram.generate(PROMPT, GREEDY)
    third = free.outputs[0].token_ids[2]
    (stopped,) = ngram.generate(PROMPT, SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[third]))
    assert stopped.outputs[0].stop_reason == third
    assert free.outputs[0].stop_reason is None


def test_stream_refuses_several_samples(ngram):
    with pytest.raises(SamplingParamsError, match="n is 2; expected 1 in a stream"):
        next(ngram.stream(PROMPT, SamplingParams(n=2)))


def test_totals_count_every_request(directory):
    llm = LLM(directory, speculative_config={"method": "ngram"})
    outputs = llm.generate([PROMPT, "another"], GREEDY)
    assert llm.totals.delivered_tokens == sum(len(output.outputs[0].token_ids) for output in outputs)


def test_empty_prompt_starts_from_bos(plain):
    (output,) = plain.generate("", GREEDY)
    assert output.prompt_token_ids == (plain.tokenizer.bos_id,)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([], "no prompts"), ([[]], "no tokens"), ("x " * 300, "expected fewer than")],
)
def test_prompt_that_is_none_is_refused(plain, prompts, message):
    with pytest.raises(PromptError, match=message):
        plain.generate(prompts, GREEDY)


def test_other_mistakes_are_named(plain, directory, tmp_path):
    with pytest.raises(InvalidInputError, match="2 sampling_params for 1 prompts"):
        plain.generate("x", [GREEDY, GREEDY])
    with pytest.raises(PromptError, match="no messages"):
        plain.chat([])
    with pytest.raises(SpeculativeConfigError, match="no key 'metod'"):
        LLM(directory, speculative_config={"metod": "ngram"})
    with pytest.raises(ModelNotFoundError, match="absent"):
        LLM(tmp_path / "absent")


def test_values_of_another_type_are_refused(directory):
    # In a process of its own: here the type checker of the test run would refuse them first.
    code = f"""
from pilotfish import LLM, PilotfishError
llm = LLM({str(directory)!r}, speculative_config=None)
for call in ("[3.5]", "5", "b'abc'", "[['a']]", "'x', {{'temperature': 0}}", "'x', [3]"):
    try:
        eval(f"llm.generate({{call}})")
    except PilotfishError as error:
        print(type(error).__name__, error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "PromptError prompt 0 is 3.5: expected text or a list of token ids",
        "PromptError prompts is 5: expected text, a list of token ids, or a list of these",
        "PromptError prompts is b'abc': expected text, a list of token ids, or a list of these",
        "PromptError prompt 0 is ['a']: expected text or a list of token ids",
        "InvalidInputError sampling_params is {'temperature': 0}: expected SamplingParams, or one for each prompt",
        "InvalidInputError sampling_params is [3]: expected SamplingParams, or one for each prompt",
    ]


def test_draft_model_with_another_tokenizer_is_refused(directory, tmp_path):
    other = tiny_hf_directory(tmp_path / "other", vocab_size=360)
    with pytest.raises(TokenizerMismatchError, match="token"):
        LLM(directory, speculative_config={"model": str(other)})


def test_embedding_smaller_than_the_tokenizer_is_refused(tmp_path):
    small = tiny_hf_directory(tmp_path / "small", vocab_size=300)
    tiny_tokenizer(small, vocab_size=384)
    with pytest.raises(UnsupportedModelError, match="knows 384 ids, the model embeds 300"):
        LLM(small)


def counted_rows(llm, monkeypatch):
    """Rows of every pass of the target, as they come."""
    rows = []
    executor = llm.engine.target
    forward = executor.forward

    def counting(segments, **options):
        rows.append(sum(len(segment.tokens) for segment in segments))
        return forward(segments, **options)

    monkeypatch.setattr(executor, "forward", counting)
    return rows


def test_second_chat_turn_pays_only_for_its_new_tokens(directory, monkeypatch):
    llm = LLM(directory, speculative_config=None)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    messages = [{"role": "user", "content": PROMPT + " around the reef. " + PROMPT}]
    (first,) = llm.chat(messages, params)
    messages += [
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "And then?"},
    ]
    prompt = llm.tokenizer.chat(messages)
    known = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    same = next(place for place, (a, b) in enumerate(zip(prompt, known, strict=False)) if a != b)
    assert same >= len(first.prompt_token_ids) >= 64, "the template repeats the first turn as it was"
    rows = counted_rows(llm, monkeypatch)
    (second,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=1))
    cached = same // 32 * 32
    assert sum(rows) == len(prompt) - cached
    monkeypatch.undo()
    (fresh,) = LLM(directory, speculative_config=None).chat(messages, SamplingParams(temperature=0, max_tokens=1))
    assert second.outputs[0].token_ids == fresh.outputs[0].token_ids


def test_samples_of_a_prompt_given_again_read_it_once(directory, monkeypatch):
    llm = LLM(directory, speculative_config=None)
    prompt = list(range(5, 105))
    llm.generate([prompt], SamplingParams(max_tokens=1, seed=1))
    rows = counted_rows(llm, monkeypatch)
    llm.generate([prompt], SamplingParams(max_tokens=1, seed=2, n=3))
    assert sum(rows) == 3 * (100 - 96)


def test_max_model_len_is_the_context_of_requests(directory):
    llm = LLM(directory, speculative_config=None, max_model_len=40, kv_cache_memory="1MiB")
    assert llm.max_model_len == 40
    (output,) = llm.generate([[5] * 30], SamplingParams(temperature=0, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 10
    with pytest.raises(PromptError, match="max_model_len of 40"):
        llm.generate([[5] * 40], SamplingParams())
    with pytest.raises(InvalidInputError, match="max_model_len=100000: expected at most the model's context"):
        LLM(directory, speculative_config=None, max_model_len=100_000)
