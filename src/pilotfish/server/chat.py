"""The answer to a chat. Owns the shape of its choices and of their deltas."""

from collections.abc import Iterator
from typing import Any

from pilotfish.engine.outputs import StreamDelta
from pilotfish.server.answers import Answer
from pilotfish.server.protocol import ChatRequest
from pilotfish.server.replies import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDeltaChoice,
    Reply,
)
from pilotfish.server.samples import Sample


class ChatAnswer(Answer):
    """Answer of `/v1/chat/completions`."""

    prefix = "chatcmpl"

    def _choice(self, place: int, sample: Sample) -> ChatChoice:
        output = self._output(sample)
        logprobs = None
        if output.logprobs is not None and self._wants_logprobs:
            logprobs = self._writer(sample).chat(output.token_ids, output.logprobs)
        message = AnswerMessage(role="assistant", content=output.text, refusal=None)
        return ChatChoice(
            index=place, message=message, logprobs=logprobs, **self._ending(sample), **self._details(sample)
        )

    @property
    def _wants_logprobs(self) -> bool:
        assert isinstance(self._request, ChatRequest), "the request of a chat"
        return bool(self._request.logprobs)

    def _opening(self, place: int, sample: Sample) -> Iterator[Reply]:
        role = AnswerMessage(role="assistant", content="", refusal=None)
        yield self._chunk([ChatDeltaChoice(index=place, delta=role, logprobs=None, finish_reason=None)], {})

    def _delta_choices(self, place: int, sample: Sample, delta: StreamDelta) -> Iterator[ChatDeltaChoice]:
        details = self._delta_details(delta)
        logprobs = None
        if self._wants_logprobs and delta.token_ids:
            assert delta.logprobs is not None, "asked for"
            logprobs = self._writer(sample).chat(delta.token_ids, delta.logprobs)
        if delta.text or details.get("tokens") or logprobs is not None:
            content = AnswerMessage(content=delta.text)
            yield ChatDeltaChoice(index=place, delta=content, logprobs=logprobs, finish_reason=None, **details)
        if delta.output is not None:
            yield ChatDeltaChoice(index=place, delta=AnswerMessage(), logprobs=None, **self._ending(sample))

    def _answer(self, choices: list[ChatChoice], extra: dict[str, Any]) -> Reply:
        return ChatCompletion(object="chat.completion", choices=choices, **self._head, **extra)

    def _chunk(self, choices: list[ChatDeltaChoice], extra: dict[str, Any]) -> Reply:
        return ChatCompletionChunk(object="chat.completion.chunk", choices=choices, **self._head, **extra)
