"""Request models: every option has its field, nothing unknown passes, what has no effect is accepted."""

import dataclasses

import pytest
from pydantic import ValidationError

from pilotfish.errors import CacheFullError, PilotfishError, PromptError, SamplingParamsError, SpeculativeConfigError
from pilotfish.sampling.params import SamplingParams
from pilotfish.server.errors import ApiError, invalid_body, translated
from pilotfish.server.options import sampling_params
from pilotfish.server.protocol import ChatRequest, CompletionRequest
from pilotfish.server.settings import ServerSettings

CHAT = {"messages": [{"role": "user", "content": "x"}]}
BASES = {CompletionRequest: {"prompt": "x"}, ChatRequest: CHAT}
SETTINGS = ServerSettings()


def params(model=CompletionRequest, /, **fields):
    return sampling_params(model.model_validate({**BASES[model], **fields}), SETTINGS)


def refusal(model=CompletionRequest, /, **fields):
    with pytest.raises((ValidationError, ApiError, SamplingParamsError)) as caught:
        params(model, **fields)
    error = caught.value
    if isinstance(error, ValidationError):
        error = invalid_body(error.errors(), tuple(model.model_fields))
    return str(getattr(error, "message", error)), getattr(error, "param", None), getattr(error, "code", None)


@pytest.mark.parametrize("model", BASES)
def test_every_sampling_option_is_a_field(model):
    options = {field.name for field in dataclasses.fields(SamplingParams)} - {"logits_processors"}
    assert options <= set(model.model_fields)


OPTIONS = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "typical_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": -1.0,
    "frequency_penalty": 1,
    "no_repeat_ngram_size": 2,
    "logit_bias": {"3": 2.5},
    "allowed_token_ids": [1, 2],
    "banned_token_ids": [5],
    "bad_words": ["a", "b"],
    "seed": 2**63,
    "n": 2,
    "best_of": 3,
    "max_tokens": 7,
    "min_tokens": 2,
    "stop": "end",
    "stop_token_ids": [4],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "logprobs_mode": "processed_logprobs",
    "prompt_logprobs": 2,
}


@pytest.mark.parametrize("model", BASES)
def test_options_arrive(model):
    expected = SamplingParams(**OPTIONS)
    assert params(model, **OPTIONS) == expected
    assert expected.logit_bias == {3: 2.5}


def test_absent_and_null_mean_the_default():
    nulls = dict.fromkeys(set(CompletionRequest.model_fields) - {"prompt"})
    assert params(**nulls) == params() == SamplingParams(max_tokens=16)
    assert params(ChatRequest) == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'?", "temprature"),
        ({"logits_processors": []}, "unknown field 'logits_processors'", "logits_processors"),
        ({"zzz": None}, "unknown field 'zzz'", "zzz"),
        ({"suffix": "x"}, "'suffix' is not supported by this server", "suffix"),
        ({"speculative": {"k": 1}}, "unknown field 'speculative.k'", "speculative.k"),
        ({"stream_options": {"include_obfuscation": True}}, "include_obfuscation", "stream_options"),
        ({"temperature": "1"}, "temperature: Input should be a valid number; got '1'", "temperature"),
        ({"top_k": True}, "top_k: Input should be a valid integer; got True", "top_k"),
        ({"store": True}, "store", "store"),
        ({"response_format": {"type": "xml"}}, "xml", "response_format"),
        ({"prompt": 5}, "prompt: Input should be a valid string or a valid list; got 5", "prompt"),
        ({"prompt": [1.5]}, "prompt.0: Input should be a valid string or a valid integer", "prompt.0"),
        (
            {"response_format": {"type": "json_schema"}},
            "'response_format.json_schema' is missing",
            "response_format.json",
        ),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias is '999", None),
        ({"logit_bias": {"5": 1, "05": 2}}, "each id once", None),
        ({"logprobs": 21}, "logprobs is 21; expected at most 20", "logprobs"),
        ({"prompt_logprobs": 10**12}, "expected at most 20", "prompt_logprobs"),
        ({"stop": ["x"] * 33}, "stop has 33 strings: expected at most 32", "stop"),
        ({"stop": "x" * 513}, "stop has a string of 513 characters: expected at most 512", "stop"),
        ({"bad_words": ["x"] * 1025}, "bad_words has 1025 words: expected at most 1024", "bad_words"),
        ({"bad_words": "x" * 65537}, "bad_words has 65537 characters: expected at most 65536", "bad_words"),
        (
            {"banned_token_ids": [5] * 300_000},
            "banned_token_ids has 300000 ids: expected at most 262144",
            "banned_token_ids",
        ),
        ({"temperature": 1e39}, "temperature is 1e+39", None),
        ({"logit_bias": {"5": -1e300}}, "finite number", None),
        ({"n": 17}, "n is 17; expected at most 16, the server's --max-n", "n"),
        ({"best_of": 99}, "best_of is 99; expected at most 16", "best_of"),
        ({"stream": True, "best_of": 2}, "best_of is 2; expected no more than n, 1, in a stream", "best_of"),
        ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs is not available in a stream", "stream"),
        ({"stream": True, "echo": True, "logprobs": 1}, "echo with logprobs is not available in a stream", "stream"),
        ({"structured_outputs": {}}, "none; expected exactly one of json, regex, grammar, choice", None),
        ({"structured_outputs": {"choice": []}}, "choice is empty", None),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json", None),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format 'json_object' and structured_outputs: expected one of them",
            "response_format",
        ),
    ],
)
def test_completion_mistakes_are_named(fields, message, param):
    got, where, _ = refusal(**fields)
    assert message in got
    assert where == param or (where is not None and where.startswith(str(param)))


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tools": [{"type": "function"}]}, "'tools' is not supported", "tools"),
        ({"tool_choice": "auto"}, "'tool_choice' is not supported", "tool_choice"),
        ({"modalities": "none"}, "'modalities' is not supported", "modalities"),
        ({"reasoning_effort": "high"}, "'reasoning_effort' is not supported", "reasoning_effort"),
        ({"top_logprobs": 2}, "top_logprobs is 2; expected logprobs true with it", "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "expected one", "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0", "max_completion_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "'messages.0.content' is missing", "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "'name' is not supported", "messages.0.name"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "content: Input should be a valid string or a valid list",
            "messages.0.content",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "is missing", "messages.0.content.0.text"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs is -1", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; expected at most 20", "top_logprobs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
            "image_url",
            "messages.0.content.0.image_url",
        ),
    ],
)
def test_chat_mistakes_are_named(fields, message, param):
    got, where, code = refusal(ChatRequest, **fields)
    assert message in got
    assert where is not None
    assert where.startswith(param)
    assert code is not None


def test_what_clients_always_send_is_accepted():
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "stream_options": {"include_usage": True},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "tools": [],
        "tool_choice": "none",
        "functions": [],
        "function_call": "none",
        "parallel_tool_calls": None,
    }
    answer = {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None, "annotations": []}
    assert params(ChatRequest, **harmless, messages=[*CHAT["messages"], answer]) == SamplingParams()


def test_parts_and_roles_become_plain_messages():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = ChatRequest.model_validate({"messages": [{"role": "developer", "content": parts}]})
    assert request.messages[0].as_message() == {"role": "system", "content": "a\nb"}


def test_forms_become_structured_outputs():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    own = SamplingParams(structured_outputs={"json": schema}).structured_outputs
    assert params(response_format=wanted).structured_outputs == own
    assert params(structured_outputs={"json": schema}).structured_outputs == own
    assert params(response_format={"type": "text"}).structured_outputs is None
    assert params(response_format={"type": "json_object"}).structured_outputs.text == '{"type": "object"}'
    assert params(structured_outputs={"choice": ["a b", "c|d\n"]}).structured_outputs.choice == ("a b", "c|d\n")


def test_settings_name_their_mistakes():
    for name, value, message in (
        ("port", 70000, "port=70000: expected an integer from 0 to 65535"),
        ("max_n", 0, "max_n=0: expected an integer of at least 1"),
        ("request_timeout", float("nan"), "request_timeout=nan: expected seconds"),
        ("api_key", " ", "api_key is empty"),
    ):
        with pytest.raises(ValueError, match="expected") as caught:
            ServerSettings(**{name: value})
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("error", "status", "code", "logged"),
    [
        (CacheFullError("10 pages: expected at most 3"), 400, "context_length_exceeded", 0),
        (PromptError("no tokens"), 400, "invalid_value", 0),
        (SpeculativeConfigError("num_speculative_tokens=-1"), 400, "invalid_value", 0),
        (PilotfishError("the engine failed"), 500, "engine_error", 1),
        (RuntimeError("a secret"), 500, "internal_error", 1),
    ],
)
def test_only_the_clients_own_mistakes_are_told_and_only_ours_are_logged(error, status, code, logged, caplog):
    told = translated(error)
    assert (told.status_code, told.code) == (status, code)
    assert (str(error) in told.message) == (code != "internal_error")
    assert len(caplog.records) == logged
