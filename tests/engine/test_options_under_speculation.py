"""Every option, any drafter, any draft length, any company: what comes out is what plain decoding gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.models.base import Segment
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import Draft
from tests.engine.text_engine import CONTEXT, EOS, VOCAB, decode_all, drafter, encode, target, text_engine
from tests.engine.tiny import ScriptedDrafter, run

EXECUTORS = ["native", "torch"]


def twist(prefix, logits):
    """A caller's processor: pure, and different at every prefix."""
    logits[(sum(prefix.last(3)) * 7) % VOCAB] += 4.0
    return logits


OPTIONS = st.fixed_dictionaries(
    {"max_tokens": st.sampled_from([1, 7, 16]), "seed": st.integers(0, 5)},
    optional={
        "temperature": st.sampled_from([0, 1e-9, 1e-5, 0.7, 1.3]),
        "top_k": st.sampled_from([1, 8, 60]),
        "top_p": st.sampled_from([0.5, 0.95]),
        "min_p": st.sampled_from([0.02, 0.2]),
        "typical_p": st.sampled_from([0.4, 0.9]),
        "repetition_penalty": st.sampled_from([0.8, 1.4]),
        "presence_penalty": st.sampled_from([-0.5, 1.5]),
        "frequency_penalty": st.sampled_from([-0.5, 1.5]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "logit_bias": st.sampled_from([{5: 8.0}, {EOS: 6.0, 70: -4.0}]),
        "allowed_token_ids": st.sampled_from([[EOS, *range(60, 90)]]),
        "banned_token_ids": st.sampled_from([[64, 65, 66], list(range(100, 200))]),
        "bad_words": st.sampled_from([["e"], ["the", "a b"]]),
        "logits_processors": st.just([twist]),
        "structured_outputs": st.sampled_from([{"regex": "([a-c]+ ?)+"}, {"grammar": 'start: ("ab" | "xyz")+'}]),
        "min_tokens": st.just(1),
        "stop": st.sampled_from([["e"], [" t", "ab"]]),
        "stop_token_ids": st.sampled_from([[70, 71]]),
        "ignore_eos": st.just(True),
        "include_stop_str_in_output": st.just(True),
        "skip_special_tokens": st.just(False),
        "logprobs": st.sampled_from([0, 3]),
        "logprobs_mode": st.just("processed_logprobs"),
        "prompt_logprobs": st.sampled_from([0, 2]),
    },
)
PROMPT = st.lists(st.integers(3, 40), min_size=1, max_size=12).map(lambda ids: [*ids, *ids])


def everything(request):
    """All that a caller may see of a request, but for how fast it came."""
    return {
        "ids": request.output,
        "text": request.ending.text,
        "streamed": "".join(request.pieces),
        "reason": request.finish_reason,
        "stopped by": request.ending.stopped_by,
        "logprobs": request.logprobs,
        "prompt logprobs": request.prompt_logprobs,
        "delivered": request.counters.delivered_tokens,
    }


def rounded(seen):
    """What must agree between executors of different arithmetic: logprobs are compared on the exact one."""
    return {name: value for name, value in seen.items() if "logprobs" not in name}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_random_options_drafters_lengths_and_batches(executor):
    drafted, accepted = 0, 0

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        batch=st.lists(st.tuples(PROMPT, OPTIONS), min_size=1, max_size=4),
        kind=st.sampled_from(["ngram", "draft_model"]),
        draft_len=st.integers(1, 8),
    )
    def check(batch, kind, draft_len):
        nonlocal drafted, accepted
        params = [SamplingParams(**options) for _, options in batch]
        prompts = [prompt for prompt, _ in batch]
        together = run(text_engine(executor, drafter(kind), draft_len), prompts, params)
        for prompt, own, speculative in zip(prompts, params, together, strict=True):
            (plain,) = run(text_engine(executor), [prompt], own)
            before, after = everything(plain), everything(speculative)
            assert (after == before) if executor == "native" else (rounded(after) == rounded(before))
            assert after["streamed"] == after["text"]
            assert len(after["ids"]) == after["delivered"] == len(speculative.from_draft)
            assert len(after["logprobs"]) == (0 if own.logprobs is None else after["delivered"])
            drafted += speculative.counters.drafted_tokens
            accepted += speculative.counters.accepted_tokens

    check()
    assert drafted > accepted > 0, "drafts were both accepted and rejected"


def greedy_first(prompt):
    (request,) = run(text_engine("native"), [prompt], SamplingParams(temperature=0, max_tokens=1))
    return request.output[0]


@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_mixed_batch_equals_each_row_alone(executor, kind):
    prompt = [9, 10, 11, 9, 10, 11, 9, 10]
    rows = [
        {"temperature": 0},
        {"temperature": 1e-9},
        {"temperature": 1e-5},
        {"temperature": 1},
        {"temperature": 0, "repetition_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": 0.3},
        {"temperature": 0, "logit_bias": {greedy_first(prompt): -100}},
        {"temperature": 0.8, "logit_bias": {200: 100}},
        {"structured_outputs": {"regex": "[a-d]{3,20}"}},
        {"min_tokens": 12, "logit_bias": {EOS: 100}},
        {"stop": ["e", "st"]},
    ]
    params = [SamplingParams(seed=place, max_tokens=20, logprobs=1, **own) for place, own in enumerate(rows)]
    batch = run(text_engine(executor, drafter(kind), 4), [prompt] * len(rows), params)
    for own, together in zip(params, batch, strict=True):
        (alone,) = run(text_engine(executor), [prompt], own)
        before, after = everything(alone), everything(together)
        assert (after == before) if executor == "native" else (rounded(after) == rounded(before))
    assert batch[0].output == batch[1].output, "temperature 1e-9 is greedy decoding"
    assert batch[5].output[0] != batch[0].output[0], "the token greedy decoding would pick is out"
    assert set(batch[6].output) == {200}, "a token that no drafter proposes is forced"
    assert batch[8].output == [*batch[8].output[:12], EOS], "min_tokens holds the end back, then it comes"
    assert EOS not in batch[8].output[:12]
    assert sum(request.counters.drafted_tokens for request in batch) > 0


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_logprobs_equal_a_teacher_forced_rescore(executor, mode):
    prompt = [9, 10, 11, 9, 10, 11, 9, 10]
    params = SamplingParams(
        seed=4, max_tokens=40, temperature=0.9, top_k=50, repetition_penalty=1.2, logprobs=2, logprobs_mode=mode,
        prompt_logprobs=2,
    )  # fmt: skip
    (request,) = run(text_engine(executor, drafter("draft_model"), 5), [prompt], params)
    assert 0 < request.counters.accepted_tokens < request.counters.drafted_tokens
    own = target(executor)
    sequence = own.open(CONTEXT)
    logits = own.forward([Segment(sequence, request.tokens[:-1])]).logits
    own.close(sequence)
    sampler = request.sampler
    start = len(prompt) - 1
    if mode == "raw_logprobs":
        expected = sampler.raw_logprobs(logits[start:], request.output, 2)
    else:
        prefixes = [Prefix(request.tokens[: len(prompt) + place], len(prompt)) for place in range(len(request.output))]
        expected = [
            sampler.processed_logprobs(logits[start + place : start + place + 1], [prefix], [token], 2)[0]
            for place, (prefix, token) in enumerate(zip(prefixes, request.output, strict=True))
        ]
    prompt_expected = sampler.raw_logprobs(logits[:start], prompt[1:], 2)
    if executor == "native":
        assert request.logprobs == expected
        assert request.prompt_logprobs == prompt_expected
    for found, scored in zip(request.logprobs, expected, strict=True):
        assert found.token.logprob == pytest.approx(scored.token.logprob, abs=1e-4)
    assert len(request.prompt_logprobs) == len(prompt) - 1


def test_prompt_logprobs_do_not_depend_on_chunks(monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1)
    prompts = [list(range(20, 60)), [5, 6, 7]]
    whole = run(text_engine("native"), prompts, params)
    monkeypatch.setattr("pilotfish.engine.scheduler.PROMPT_ROWS", 7)
    chunked = run(text_engine("native", drafter("ngram"), 3), prompts, params)
    for one, other in zip(whole, chunked, strict=True):
        assert one.prompt_logprobs == other.prompt_logprobs
        assert one.output == other.output


SCHEMA = {
    "type": "object",
    "properties": {"description": {"enum": ["ab", "ba"]}, "counted": {"type": "boolean"}},
    "required": ["description", "counted"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("verification", ["match", "rejection", "block", "traversal"])
def test_grammar_forces_tokens_for_free_and_ends_the_request(verification):
    params = SamplingParams(temperature=0, max_tokens=60, structured_outputs={"json": SCHEMA})
    prompts = [[5, 6], [9, 9, 9]]
    plain = run(text_engine("native"), prompts, params)
    engine = text_engine("native", drafter("ngram"), 4, verification=verification)
    speculative = run(engine, prompts, params)
    for before, after in zip(plain, speculative, strict=True):
        assert everything(after) == everything(before)
        assert after.finish_reason == "stop"
        assert after.ending.text.endswith("}")
        assert after.output[-1] != EOS, "the end of the grammar ends the request by itself"
        assert after.counters.accepted_tokens > len(after.output) / 2, "most of it is forced"
        assert all(after.from_draft[:2])


@pytest.mark.parametrize("verification", ["rejection", "block", "traversal"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_sampled_drafts_are_legal_and_the_output_valid(verification, temperature):
    params = SamplingParams(seed=3, temperature=temperature, max_tokens=60, structured_outputs={"json": SCHEMA})
    engine = text_engine("native", drafter("draft_model"), 3, verification=verification)
    for request in run(engine, [[5, 6], [9, 9, 9], [70]], params):
        assert request.ending.text in {
            f'{{"description": "{word}", "counted": {flag}}}' for word in ("ab", "ba") for flag in ("true", "false")
        }
        assert request.counters.accepted_tokens > 0


def test_illegal_branches_of_a_tree_are_cut():
    params = SamplingParams(temperature=0, max_tokens=12, structured_outputs={"regex": "[ab]{12}"})
    (plain,) = run(text_engine("native"), [[5]], params)

    def script(tokens, draft_len):
        right = plain.output[len(tokens) - 1 :][:2]
        if len(right) < 2:
            return Draft()
        # An illegal child with a child of its own, and the right path behind it.
        return Draft((40, 41, right[0], right[1]), (-1, 0, -1, 2))

    (tree,) = run(text_engine("native", ScriptedDrafter(script), 4), [[5]], params)
    assert everything(tree) == everything(plain)
    assert tree.counters.drafted_tokens == tree.counters.accepted_tokens > 0


def test_processors_and_penalties_of_a_request_see_no_other_and_no_rejected_token():
    seen = set()

    def witness(prefix, logits):
        seen.add((tuple(prefix.committed[:2]), prefix.prompt_length, prefix.path))
        return logits

    params = SamplingParams(seed=1, max_tokens=12, logits_processors=[witness], stop_token_ids=[EOS])
    run(text_engine("native", drafter("ngram"), 3), [[9, 10, 9, 10], [11, 12, 11, 12]], params)
    assert {(start, length) for start, length, _ in seen} == {((9, 10), 4), ((11, 12), 4)}
    assert any(path for *_, path in seen)


def test_special_tokens_are_written_out_on_request():
    bias = {EOS: 100, 0: 99}
    for skip in (True, False):
        params = SamplingParams(
            temperature=0, max_tokens=4, ignore_eos=True, logit_bias=bias, skip_special_tokens=skip, stop_token_ids=[3]
        )
        (request,) = run(text_engine("native", drafter("ngram"), 2), [[5, 6]], params)
        assert request.ending.text == ("" if skip else decode_all([EOS]) * 4)
        assert "".join(request.pieces) == request.ending.text


def test_bad_words_are_banned_with_and_without_a_space():
    word = "the"
    sequences = [encode(word), encode(" " + word)]
    bias = {sequence[0]: 30.0 for sequence in sequences}
    free = SamplingParams(temperature=0, max_tokens=6, logit_bias=bias)
    (before,) = run(text_engine("native"), [[5, 6]], free)
    banned = SamplingParams(temperature=0, max_tokens=6, logit_bias=bias, bad_words=[word])
    (after,) = run(text_engine("native", drafter("ngram"), 3), [[5, 6]], banned)
    if len(sequences[0]) == 1:
        assert sequences[0][0] in before.output or sequences[1][0] in before.output
    joined = " ".join(map(str, after.output)) + " "
    for sequence in sequences:
        assert " ".join(map(str, sequence)) + " " not in joined


def test_native_choice_equals_numpys_on_many_rows():
    from pilotfish import _native
    from pilotfish.sampling.choose import choose_by_numpy

    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 2.0, 12.0):
        scores = (torch.randn(120, 2053, generator=generator) * scale).numpy()
        scores[::7, 100:] = -float("inf")
        for row, one in enumerate(scores):
            found = _native.gumbel_argmax(one[None].copy(), 2053, 2**40 + row, [row * 31])[0]
            assert int(found) == choose_by_numpy(one, 2**40 + row, row * 31)
