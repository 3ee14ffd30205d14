"""The `openai` package as its users use it."""

import json

import openai
import pytest
from pydantic import BaseModel, Field

from pilotfish import SamplingParams
from tests.server.running import MODEL

ASK = [{"role": "system", "content": "Swim."}, {"role": "user", "content": "The shark looks once, and once more"}]
PROMPT = "The shark looks once, and once more the shark looks"


def chat(client, **options):
    return client.chat.completions.create(model=MODEL, messages=ASK, **{"max_tokens": 24, "seed": 5, **options})


def complete(client, **options):
    return client.completions.create(model=MODEL, **{"prompt": PROMPT, "max_tokens": 24, "seed": 5, **options})


def answer(alone, **options):
    (output,) = alone.chat(ASK, SamplingParams(**{"max_tokens": 24, "seed": 5, **options}))
    return output


def continuation(alone, **options):
    (output,) = alone.generate(PROMPT, SamplingParams(**{"max_tokens": 24, "seed": 5, **options}))
    return output


def test_chat_is_what_the_model_says_alone(client, alone):
    found = chat(client, temperature=0.8)
    expected = answer(alone, temperature=0.8)
    assert found.object == "chat.completion"
    assert found.id.startswith("chatcmpl-")
    assert found.model == MODEL
    (choice,) = found.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.outputs[0].text
    assert choice.finish_reason == expected.outputs[0].finish_reason
    assert found.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert found.usage.completion_tokens == len(expected.outputs[0].token_ids)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_completion_of_every_kind_of_prompt(client, alone):
    ids = alone.tokenizer.encode(PROMPT)
    expected = continuation(alone).outputs[0].text
    for prompt in (PROMPT, ids):
        assert complete(client, prompt=prompt).choices[0].text == expected
    for prompts in ([PROMPT, "Numbers"], [ids, alone.tokenizer.encode("Numbers")]):
        found = complete(client, prompt=prompts)
        assert [choice.index for choice in found.choices] == [0, 1]
        assert found.choices[0].text == expected != found.choices[1].text
        assert found.usage.prompt_tokens == len(ids) + len(alone.tokenizer.encode("Numbers"))


def test_default_length_of_completions_is_openais(client):
    assert client.completions.create(model=MODEL, prompt=PROMPT, seed=1).usage.completion_tokens == 16


def test_chat_stream_joins_to_the_answer(client, alone):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    expected = answer(alone)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.object == "chat.completion.chunk" and chunk.id == chunks[0].id for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected.outputs[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_completion_stream_joins_to_the_answer(client, alone):
    chunks = list(complete(client, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == continuation(alone).outputs[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) > 3


@pytest.mark.parametrize("stream", [False, True])
def test_three_samples_are_three_requests(client, alone, stream):
    outputs = answer(alone, n=3, temperature=1.2).outputs
    expected = [output.text for output in outputs]
    assert len(set(expected)) == 3
    found = chat(client, n=3, temperature=1.2, stream=stream)
    if stream:
        texts = ["", "", ""]
        for chunk in found:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = [choice.message.content for choice in found.choices]
        assert found.usage.completion_tokens == sum(len(output.token_ids) for output in outputs)
    assert texts == expected


def test_each_sample_says_which_seed_replays_it(client):
    found = chat(client, n=2, seed=None)
    for choice in found.choices:
        assert chat(client, seed=choice.seed).choices[0].message.content == choice.message.content


def test_best_of_gives_the_most_probable(client, alone):
    found = complete(client, best_of=4, n=2, temperature=1.5)
    expected = continuation(alone, best_of=4, n=2, temperature=1.5)
    assert [choice.text for choice in found.choices] == [output.text for output in expected.outputs]
    assert found.choices[0].logprobs is None


@pytest.mark.parametrize("many", [False, True])
def test_stop_string_or_list(client, alone, many):
    whole = continuation(alone).outputs[0].text
    stop = whole[8:10]
    found = complete(client, stop=["never", stop] if many else stop).choices[0]
    assert found.finish_reason == "stop"
    assert found.text == whole[: whole.index(stop)]
    assert found.stop_reason == stop
    chunks = list(complete(client, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == found.text


def test_chat_logprobs(client, alone):
    found = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    expected = answer(alone, logprobs=3).outputs[0]
    assert [one.logprob for one in found] == [
        own[token].logprob for own, token in zip(expected.logprobs, expected.token_ids, strict=True)
    ]
    for one, own in zip(found, expected.logprobs, strict=True):
        ranked = sorted((each for each in own.values() if each.rank <= 3), key=lambda each: each.rank)
        assert [top.logprob for top in one.top_logprobs] == [each.logprob for each in ranked]
        assert one.top_logprobs[0].logprob >= one.logprob
    written = b"".join(bytes(one.bytes) for one in found)
    assert written.decode(errors="replace") == expected.text
    streamed = [
        one
        for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content
    ]
    assert [one.model_dump() for one in streamed] == [one.model_dump() for one in found]
    bare = chat(client, logprobs=True).choices[0].logprobs.content
    assert all(one.top_logprobs == [] for one in bare)
    assert chat(client).choices[0].logprobs is None


def test_completion_logprobs_have_offsets(client, alone):
    choice = complete(client, logprobs=2).choices[0]
    expected = continuation(alone, logprobs=2).outputs[0]
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 24
    assert told.token_logprobs == [
        own[token].logprob for own, token in zip(expected.logprobs, expected.token_ids, strict=True)
    ]
    assert all(1 <= len(top) <= 2 for top in told.top_logprobs)
    assert told.text_offset[0] == 0
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert choice.text[offset:].startswith(token)
    chunks = list(complete(client, logprobs=2, stream=True))
    assert [offset for chunk in chunks for offset in chunk.choices[0].logprobs.text_offset] == told.text_offset


def test_echo_scores_the_prompt(client, alone):
    choice = complete(client, echo=True, logprobs=0, max_tokens=2).choices[0]
    ids = alone.tokenizer.encode(PROMPT)
    expected = continuation(alone, prompt_logprobs=0, max_tokens=2)
    assert choice.text == PROMPT + expected.outputs[0].text
    assert choice.logprobs.token_logprobs[: len(ids)] == [None] + [
        own[token].logprob for own, token in zip(expected.prompt_logprobs[1:], ids[1:], strict=True)
    ]
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert choice.text[offset:].startswith(token)
    assert len(choice.logprobs.tokens) == len(ids) + 2
    streamed = list(complete(client, echo=True, max_tokens=2, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_prompt_logprobs_on_request(client):
    choice = complete(client, extra_body={"prompt_logprobs": 1}).choices[0]
    assert choice.prompt_logprobs[0] is None
    assert all("logprob" in one for each in choice.prompt_logprobs[1:] for one in each.values())


class Fish(BaseModel):
    name: str = Field(max_length=5)
    fins: int = Field(ge=0, le=9)
    predator: bool


def test_json_schema_holds(client):
    found = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Fish, max_tokens=200, seed=3, temperature=0.7
    )
    assert isinstance(found.choices[0].message.parsed, Fish)
    assert found.choices[0].finish_reason == "stop"


def test_json_object_holds(client):
    found = chat(client, response_format={"type": "json_object"}, logit_bias={"93": 50}, max_tokens=40)
    assert isinstance(json.loads(found.choices[0].message.content), dict)


def test_options_beyond_openais_are_extra_fields(client, alone):
    options = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "typical_p": 0.9}
    found = complete(client, temperature=1.3, extra_body=options)
    assert found.choices[0].text == continuation(alone, temperature=1.3, **options).outputs[0].text
    choices = ["a b", "c|d"]
    assert complete(client, extra_body={"structured_outputs": {"choice": choices}}).choices[0].text in choices


def test_speculation_can_be_seen_and_switched_off(client):
    few = {"allowed_token_ids": [70, 71, 72]}  # so few tokens repeat themselves
    drafts = {"speculative": {"report": True}, **few}
    found = complete(client, temperature=0, max_tokens=200, extra_body=drafts)
    block = found.speculative_decoding
    assert 0 < block["accepted_tokens"] <= block["drafted_tokens"]
    assert block["rounds"] + block["accepted_tokens"] == 200
    assert block["mean_acceptance_length"] == 200 / block["rounds"]
    assert block["accepted_per_position"][0] > 0
    tokens = found.choices[0].tokens
    assert sum(token["from_draft"] for token in tokens) == block["accepted_tokens"]
    assert "".join(token["text"] for token in tokens) == found.choices[0].text
    chunks = list(complete(client, temperature=0, max_tokens=200, stream=True, extra_body=drafts))
    assert [token for chunk in chunks for token in chunk.choices[0].tokens] == tokens
    assert chunks[-1].speculative_decoding == block
    assert len(chunks) == block["rounds"]
    plain = complete(
        client,
        temperature=0,
        max_tokens=200,
        extra_body={"speculative": {"num_speculative_tokens": 0, "report": True}, **few},
    )
    assert plain.choices[0].text == found.choices[0].text
    assert plain.speculative_decoding["drafted_tokens"] == 0
    assert not hasattr(complete(client), "speculative_decoding")


def test_models_are_listed(client):
    (card,) = client.models.list().data
    assert card.id == MODEL
    assert client.models.retrieve(MODEL) == card
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/one")


def test_errors_are_the_clients_own(client, server):
    cases = [
        (openai.NotFoundError, {"model": "gpt-5"}, "model_not_found", "model"),
        (openai.BadRequestError, {"temperature": -1}, "invalid_value", "temperature"),
        (openai.BadRequestError, {"extra_body": {"tok_k": 3}}, "unknown_parameter", "tok_k"),
        (openai.BadRequestError, {"tools": []}, None, None),
        (openai.BadRequestError, {"extra_body": {"stop_token_ids": [9999]}}, "invalid_value", "stop_token_ids"),
        (openai.BadRequestError, {"extra_body": {"speculative": {"num_speculative_tokens": -1}}}, "invalid_type", None),
    ]
    for kind, options, code, param in cases:
        if code is None:
            assert chat(client, **options).choices  # an empty list asks for nothing
            continue
        for stream in (False, True):
            with pytest.raises(kind) as caught:
                client.chat.completions.create(**{"model": MODEL, "messages": ASK, "stream": stream, **options})
            assert caught.value.code == code
            assert param is None or caught.value.param == param
            assert caught.value.request_id
    with pytest.raises(openai.AuthenticationError):
        server.openai(api_key="wrong").models.list()


def test_long_prompt_is_refused_with_its_numbers(client):
    with pytest.raises(openai.BadRequestError, match=r"prompt has 2048 tokens: expected fewer than .* context of 2048"):
        complete(client, prompt=[70] * 2048)
