"""Request bodies: OpenAI's fields that are honoured, and ours beside them. Owns names and types.

Ranges are judged by `SamplingParams`, so that Python, command line and HTTP refuse the same with the same words. A
field that is not here is refused by name; one that OpenAI has and this server cannot honour is refused as unsupported,
unless it asks for nothing. Fields that only say something about the sender are accepted and have no effect.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# The first wrong element of a list is enough: a body has room for a million of them.
Ids: TypeAlias = Annotated[list[int], Field(fail_fast=True)]
Texts: TypeAlias = Annotated[list[str], Field(fail_fast=True)]

_COMMON_UNSUPPORTED = ("service_tier", "prediction", "functions", "function_call")
_NO_CALL = ("tool_choice", "function_call")
"""Where "none" asks for what happens here anyway."""


class Strict(BaseModel):
    """A body or a part of one: JSON types as they are, no unknown field."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    unsupported: ClassVar[tuple[str, ...]] = ()
    """Fields that OpenAI has and this server cannot honour."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls.unsupported:
            harmless: tuple[Any, ...] = (None, [], {}, "none") if name in _NO_CALL else (None, [], {})
            if data.get(name) not in harmless:
                raise PydanticCustomError(
                    "unsupported_field", "'{field}' is not supported by this server", {"field": name}
                )
        return {name: value for name, value in data.items() if name not in cls.unsupported}


class StreamOptions(Strict):
    """How a stream is told.

    Attributes:
        include_usage: a last chunk without choices tells the usage.
        include_obfuscation: only false; nothing is padded.
    """

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class SpeculativeOptions(Strict):
    """What a request says about speculation. The text does not depend on it.

    Attributes:
        num_speculative_tokens: most tokens to draft per round, within what the server drafts; 0 decodes plainly.
        report: the answer has a `speculative_decoding` block, and its choices say which tokens were drafted.
    """

    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    report: bool = False


class StructuredOutputsOptions(Strict):
    """The form the output must have; exactly one of them.

    Attributes:
        json_schema: `json` on the wire.
        choice: the output is one of these texts.
    """

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    grammar: str | None = None
    choice: Texts | None = None


class JsonSchema(Strict):
    """A named JSON schema; the schema is kept to whether `strict` or not."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class GenerationRequest(Strict):
    """What completions and chat have in common."""

    unsupported: ClassVar[tuple[str, ...]] = _COMMON_UNSUPPORTED

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: Ids | None = None
    banned_token_ids: Ids | None = None
    bad_words: str | Texts | None = None
    structured_outputs: StructuredOutputsOptions | None = None
    response_format: ResponseFormat | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Texts | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = None
    prompt_logprobs: int | None = None
    speculative: SpeculativeOptions | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def reports_speculation(self) -> bool:
        return self.speculative is not None and self.speculative.report

    @property
    def draft_len(self) -> int | None:
        """Most tokens to draft per round, if the request says so."""
        return None if self.speculative is None else self.speculative.num_speculative_tokens


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    unsupported: ClassVar[tuple[str, ...]] = (*_COMMON_UNSUPPORTED, "suffix")

    prompt: str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    logprobs: int | None = None
    echo: bool | None = None


class TextPart(Strict):
    """A part of a message's content; other kinds than text are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One message of a conversation; `developer` is another word for `system`."""

    unsupported: ClassVar[tuple[str, ...]] = (
        "name",
        "refusal",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "audio",
        "annotations",
    )

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def as_message(self) -> dict[str, str]:
        """The message as a chat template takes it; parts become lines."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return {"role": role, "content": self.content}
        return {"role": role, "content": "\n".join(part.text for part in self.content)}


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    unsupported: ClassVar[tuple[str, ...]] = (
        *_COMMON_UNSUPPORTED,
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "modalities",
        "audio",
        "reasoning_effort",
        "verbosity",
        "web_search_options",
    )

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class TokenizeRequest(Strict):
    """Body of `/tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True


class DetokenizeRequest(Strict):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: Ids
    skip_special_tokens: bool = False
