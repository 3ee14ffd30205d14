"""Response bodies. Owns their names; only what was set is sent, so that an answer holds no field nobody asked for."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """A response body or a part of one."""

    model_config = ConfigDict(protected_namespaces=())

    def to_json(self) -> str:
        return self.model_dump_json(exclude_unset=True)


class ErrorDetail(Reply):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Reply):
    """Every response with a status of 400 or more."""

    error: ErrorDetail


class Usage(Reply):
    """Tokens read and delivered; each prompt counts once, however many samples it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculativeDecoding(Reply):
    """What speculation did for a request, over all its samples.

    Attributes:
        rounds: target forwards that delivered tokens.
        mean_acceptance_length: delivered tokens / rounds, the target's own included.
        acceptance_rate: accepted / drafted tokens.
        accepted_per_position: delivered drafted tokens by depth in the draft.
    """

    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    mean_acceptance_length: float
    acceptance_rate: float
    accepted_per_position: list[int]


class DeliveredToken(Reply):
    """A token, the text that could be shown once it came (none within a character), and who proposed it."""

    id: int
    text: str
    from_draft: bool


class PromptLogprob(Reply):
    logprob: float
    rank: int
    decoded_token: str


class TopLogprob(Reply):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    """Log probabilities of a chat's tokens."""

    content: list[TokenLogprob]


class CompletionLogprobs(Reply):
    """Log probabilities of a completion's tokens.

    Attributes:
        text_offset: where in the choice's text each token begins.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class _Choice(Reply):
    """
    Attributes:
        seed: replays this choice alone.
        stop_reason: the stop string or the token id that ended it.
        tokens: which tokens were drafted; with `"speculative": {"report": true}`.
    """

    index: int
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    seed: int | None = None
    tokens: list[DeliveredToken] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class CompletionChoice(_Choice):
    text: str
    logprobs: CompletionLogprobs | None = None


class AnswerMessage(Reply):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None


class ChatChoice(_Choice):
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None


class ChatDeltaChoice(_Choice):
    delta: AnswerMessage
    logprobs: ChatLogprobs | None = None


class _Answer(Reply):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None = None
    speculative_decoding: SpeculativeDecoding | None = None


class Completion(_Answer):
    """Answer of `/v1/completions`, and each chunk of its stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletion(_Answer):
    """Answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatCompletionChunk(_Answer):
    """Each chunk of a chat's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatDeltaChoice]


class ModelCard(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeReply(Reply):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeReply(Reply):
    prompt: str


class HealthReply(Reply):
    """
    Attributes:
        status: "serving", or "draining" after SIGTERM.
    """

    status: Literal["serving", "draining"]
    running: int
    waiting: int


def prompt_logprobs_of(found: Any) -> list[dict[str, PromptLogprob] | None]:
    """A prompt's log probabilities, by token id."""
    return [
        None
        if one is None
        else {
            str(token): PromptLogprob(logprob=own.logprob, rank=own.rank, decoded_token=own.decoded_token)
            for token, own in one.items()
        }
        for one in found
    ]
