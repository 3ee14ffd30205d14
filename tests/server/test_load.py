"""Many at a time: every answer is the one its request gets alone, and the counts add up."""

import asyncio
import random

import pytest

from pilotfish import LLM, SamplingParams
from pilotfish.server.settings import ServerSettings
from tests.server.conftest import SPECULATION
from tests.server.running import KEY, MODEL, Blocked, RunningServer

TEXT = "A pilotfish swims ahead of the shark and proposes where to go next. The shark looks once. " * 8


def requests(count):
    """Requests of every kind, as the fields of a body."""
    random_of = random.Random(11)
    for number in range(count):
        start = random_of.randrange(len(TEXT) // 2)
        yield {
            "prompt": TEXT[start : start + random_of.choice([1, 5, 40, 200, 350])],
            "max_tokens": random_of.choice([1, 7, 20, 60]),
            "seed": number,
            "temperature": random_of.choice([0.0, 0.7, 1.3]),
            **random_of.choice(
                [
                    {},
                    {"top_k": 7},
                    {"min_p": 0.05, "repetition_penalty": 1.2},
                    {"presence_penalty": 0.5, "stop": "e"},
                    {"structured_outputs": {"regex": "[a-z ]{3,30}"}},
                    {"logit_bias": {"70": 5.0}, "allowed_token_ids": list(range(60, 90))},
                    {"no_repeat_ngram_size": 2, "typical_p": 0.8},
                ]
            ),
        }


@pytest.fixture(scope="module")
def tight(directory):
    """A server whose cache has room for a part of the load only, so that requests wait for pages."""
    settings = ServerSettings(port=0, api_key=KEY, served_model_name=MODEL)
    llm = LLM(directory, speculative_config=SPECULATION, threads=1, kv_cache_memory="700KiB", max_model_len=1024)
    with RunningServer(llm, settings) as running:
        yield running


@pytest.fixture(scope="module")
def cases(alone):
    asked = list(requests(60))
    outputs = alone.generate(
        [body["prompt"] for body in asked],
        [SamplingParams(**{key: value for key, value in body.items() if key != "prompt"}) for body in asked],
    )
    return [(body, output.outputs[0]) for body, output in zip(asked, outputs, strict=True)]


def test_answers_do_not_depend_on_the_load(tight, cases, alone):
    before = tight.metrics()
    asked = sum(len(alone.tokenizer.encode(body["prompt"])) for body, _ in cases)

    def accepted_tokens():
        return tight.metrics()["pilotfish:prompt_tokens_total"] - before["pilotfish:prompt_tokens_total"]

    async def ask(client, body, number):
        own = {key: body[key] for key in ("prompt", "max_tokens", "seed", "temperature")}
        extra = {key: value for key, value in body.items() if key not in own}
        if number % 4 == 3:
            extra["speculative"] = {"num_speculative_tokens": 0}
        if number % 3:
            found = await client.completions.create(model=MODEL, **own, extra_body=extra)
            return found.choices[0].text, found.choices[0].finish_reason, found.usage.completion_tokens
        text, reason, tokens = "", None, 0
        stream = await client.completions.create(
            model=MODEL, **own, stream=True, stream_options={"include_usage": True}, extra_body=extra
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text, reason = text + choice.text, choice.finish_reason
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, reason, tokens

    async def leave(client, number):
        """Asks for much, and hangs up before it can have come."""
        options = {"prompt": TEXT[number:100], "max_tokens": 900, "stream": number % 2 == 0}
        work = asyncio.ensure_future(client.completions.create(model=MODEL, **options, extra_body={"ignore_eos": True}))
        await asyncio.wait([work], timeout=0.02 * number)
        if work.done():  # a stream that has begun
            await work.result().close()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    async def everything():
        async with tight.async_openai() as client:
            answers = [asyncio.ensure_future(ask(client, body, number)) for number, (body, _) in enumerate(cases)]
            while await asyncio.to_thread(accepted_tokens) < asked:  # all of them wait before the first one runs
                await asyncio.sleep(0.05)
            blocked.go()
            leaving = [asyncio.ensure_future(leave(client, number)) for number in range(20)]
            found = await asyncio.gather(*answers)
            await asyncio.gather(*leaving)
            return found

    with Blocked(tight) as blocked:
        found = asyncio.run(everything())
    for got, (body, expected) in zip(found, cases, strict=True):
        assert got == (expected.text, expected.finish_reason, len(expected.token_ids)), body
    tight.require_idle()
    after = tight.metrics()
    delivered = 1 + sum(tokens for _, _, tokens in found)  # with the one that held up the others
    name = "pilotfish:generation_tokens_total"
    assert delivered <= after[name] - before[name] < delivered + 20 * 900
    assert (
        after["pilotfish:spec_decode_num_draft_tokens_total"] > before["pilotfish:spec_decode_num_draft_tokens_total"]
    )
    accepted = "pilotfish:spec_decode_num_accepted_tokens_total"
    rounds = "pilotfish:spec_decode_num_drafts_total"
    # A round that ends within its draft has no token of the target's own.
    made = after[name] - before[name]
    assert made <= sum(after[each] - before[each] for each in (rounds, accepted)) < 2 * made
    first = "pilotfish:time_to_first_token_seconds_count"
    assert 60 <= after[first] - before[first] <= 80
    by_position = sum(
        value - before.get(key, 0)
        for key, value in after.items()
        if key.startswith("pilotfish:spec_decode_num_accepted_tokens_per_pos_total")
    )
    assert by_position == after[accepted] - before[accepted]
    assert all(value >= before.get(key, 0) for key, value in after.items() if "_total" in key or "_bucket" in key)
    responses = 'pilotfish:http_responses_total{path="/v1/completions",status="200"}'
    assert 60 <= after[responses] - before.get(responses, 0) <= 80
    assert after['pilotfish:kv_cache_pages{state="used"}'] == 0
