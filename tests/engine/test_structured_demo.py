"""Structured output with the real model and a real vocabulary: a sample of benchmarks/structured_output.py."""

import json
import re

import jsonschema
import pytest

from pilotfish import LLM, SamplingParams

pytestmark = pytest.mark.demo_model

SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "location": {"type": "string", "maxLength": 12},
            "temperature_celsius": {"type": "integer", "minimum": -60, "maximum": 60},
            "conditions": {"enum": ["sunny", "partly cloudy", "schön"]},
        },
        "required": ["location", "temperature_celsius", "conditions"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "points": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
                "minItems": 2,
                "maxItems": 2,
            }
        },
        "required": ["points"],
        "additionalProperties": False,
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def llm():
    return LLM("smollm2-135m-instruct", speculative_config={"method": "ngram", "num_speculative_tokens": 4})


def test_json_is_valid_and_the_same_with_forced_tokens(llm):
    params = [
        SamplingParams(temperature=temperature, seed=1, max_tokens=80, structured_outputs={"json": schema})
        for schema in SCHEMAS
        for temperature in (0, 1.0)
    ]
    messages = [[{"role": "user", "content": "Make up the weather of a town, as JSON."}]] * len(params)
    plain = llm.chat(messages, params, num_speculative_tokens=0)
    forced = llm.chat(messages, params)
    for own, before, after in zip(params, plain, forced, strict=True):
        assert after.outputs[0].token_ids == before.outputs[0].token_ids
        assert after.outputs[0].finish_reason == "stop"
        jsonschema.validate(json.loads(after.outputs[0].text), json.loads(own.structured_outputs.text))
    rounds = sum(output.outputs[0].metrics.rounds for output in forced)
    delivered = sum(len(output.outputs[0].token_ids) for output in forced)
    assert delivered > 1.5 * rounds, "forced tokens come several to a round"


def test_regex_and_lark_grammars_hold(llm):
    date = {"regex": r"\d{4}-\d{2}-\d{2}"}
    sums = {"grammar": 'start: number (" + " number){2}\nnumber: /[1-9][0-9]?/'}
    params = [SamplingParams(seed=2, max_tokens=40, structured_outputs=form) for form in (date, sums)]
    dated, added = (output.outputs[0].text for output in llm.generate(["Today is ", "The sum is "], params))
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", dated)
    assert re.fullmatch(r"[1-9][0-9]?( \+ [1-9][0-9]?){2}", added)
