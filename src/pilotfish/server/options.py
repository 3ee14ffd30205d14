"""A request's fields become `SamplingParams`. Owns the translation; ranges are judged by `SamplingParams`."""

from dataclasses import fields
from typing import Any

from pilotfish.sampling.params import SamplingParams, fresh_seed
from pilotfish.sampling.structured import StructuredOutputs
from pilotfish.server.errors import ApiError
from pilotfish.server.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
)
from pilotfish.server.settings import ServerSettings

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for completions. A chat goes on until the model ends it."""

MOST_FORM_CHARACTERS = 64 * 1024
"""Longest schema, expression or grammar: what takes a second to compile."""

MOST_LOGPROBS = 20
"""Most probable tokens that are told beside each token: OpenAI's limit for chats. A context's worth of them has to fit
into memory, and to be written while others wait."""

MOST_STOPS, LONGEST_STOP = 32, 512
"""Stop strings and their characters: after every token the text is held against each of them, by the one thread that
runs everybody's rounds."""

MOST_BAD_WORDS, MOST_BAD_CHARACTERS = 1024, 64 * 1024
"""Words and all their characters: what is tokenized in a moment, and looked up for every row of a pass."""

MOST_IDS = 2**18
"""Ids in a list of them: more than any vocabulary has."""

_PLAIN = tuple(field.name for field in fields(SamplingParams) if field.name not in ("structured_outputs", "logprobs"))


def sampling_params(request: GenerationRequest, settings: ServerSettings) -> SamplingParams:
    """The options of a request, for each of its prompts.

    Raises:
        ApiError, SamplingParamsError: names the field, what was got and what was expected.
    """
    given = {name: getattr(request, name, None) for name in _PLAIN}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options["logprobs"] = _logprobs(request)
    options["structured_outputs"] = form = _form(request)
    if form is not None and len(form.text) > MOST_FORM_CHARACTERS:
        param = "response_format" if request.structured_outputs is None else "structured_outputs"
        raise _invalid(param, f"{param} has {len(form.text)} characters: expected at most {MOST_FORM_CHARACTERS}")
    _check_sizes(request)
    if isinstance(request, ChatRequest):
        options.update(_chat_budget(request))
    elif request.max_tokens is None:
        options["max_tokens"] = DEFAULT_COMPLETION_TOKENS
    if isinstance(request, CompletionRequest) and request.echo and request.logprobs is not None:
        options.setdefault("prompt_logprobs", request.logprobs)
    params = SamplingParams(**options)
    for name in ("n", "best_of"):
        count = getattr(params, name)
        if count is not None and count > settings.max_n:
            raise _invalid(name, f"{name} is {count}; expected at most {settings.max_n}, the server's --max-n")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None and count > MOST_LOGPROBS:
            field = "top_logprobs" if name == "logprobs" and isinstance(request, ChatRequest) else name
            raise _invalid(field, f"{field} is {count}; expected at most {MOST_LOGPROBS}")
    if request.streams:
        _check_stream(request, params)
    return params


def seeded(params: SamplingParams) -> SamplingParams:
    """The same options with a seed: what several samples derive theirs from."""
    return params if params.seed is not None else params.with_seed(fresh_seed())


def _check_sizes(request: GenerationRequest) -> None:
    """Refuses more texts and ids to look for than the others could wait for."""
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids", "logit_bias"):
        count = len(getattr(request, name) or ())
        if count > MOST_IDS:
            raise _invalid(name, f"{name} has {count} ids: expected at most {MOST_IDS}")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MOST_STOPS:
        raise _invalid("stop", f"stop has {len(stops)} strings: expected at most {MOST_STOPS}")
    longest = max(map(len, stops), default=0)
    if longest > LONGEST_STOP:
        raise _invalid("stop", f"stop has a string of {longest} characters: expected at most {LONGEST_STOP}")
    words = [request.bad_words] if isinstance(request.bad_words, str) else request.bad_words or []
    if len(words) > MOST_BAD_WORDS:
        raise _invalid("bad_words", f"bad_words has {len(words)} words: expected at most {MOST_BAD_WORDS}")
    characters = sum(map(len, words))
    if characters > MOST_BAD_CHARACTERS:
        raise _invalid("bad_words", f"bad_words has {characters} characters: expected at most {MOST_BAD_CHARACTERS}")


def _check_stream(request: GenerationRequest, params: SamplingParams) -> None:
    """Refuses what a stream has not got when it would have to tell it."""
    if params.sample_count > params.n:
        raise _invalid("best_of", f"best_of is {params.best_of}; expected no more than n, {params.n}, in a stream")
    if params.prompt_logprobs is not None:
        echo = getattr(request, "echo", False)
        what = "echo with logprobs" if echo and request.prompt_logprobs is None else "prompt_logprobs"
        raise _invalid("stream", f"{what} is not available in a stream; expected stream false")


def _logprobs(request: GenerationRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    assert isinstance(request, ChatRequest), "one of the two"
    count = request.top_logprobs or 0
    if count < 0:
        raise _invalid("top_logprobs", f"top_logprobs is {count}; expected an integer >= 0")
    if request.logprobs:
        return count
    if count:
        raise _invalid("top_logprobs", f"top_logprobs is {count}; expected logprobs true with it")
    return None


def _chat_budget(request: ChatRequest) -> dict[str, int]:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise _invalid("max_completion_tokens", f"max_completion_tokens is {new} and max_tokens {old}: expected one")
    budget = new if new is not None else old
    if new is not None and new < 1:
        raise _invalid("max_completion_tokens", f"max_completion_tokens is {new}; expected an integer >= 1")
    return {} if budget is None else {"max_tokens": budget}


def _form(request: GenerationRequest) -> StructuredOutputs | None:
    wanted = request.response_format
    given = request.structured_outputs
    own = None
    if given is not None:
        own = StructuredOutputs(json=given.json_schema, regex=given.regex, grammar=given.grammar, choice=given.choice)
    if isinstance(wanted, JsonObjectFormat | JsonSchemaFormat) and own is not None:
        raise _invalid(
            "response_format", f"response_format {wanted.type!r} and structured_outputs: expected one of them"
        )
    if isinstance(wanted, JsonObjectFormat):
        return StructuredOutputs(json={"type": "object"})
    if isinstance(wanted, JsonSchemaFormat):
        return StructuredOutputs(json=wanted.json_schema.json_schema)
    return own


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
