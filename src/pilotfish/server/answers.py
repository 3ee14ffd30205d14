"""Samples become answers: whole ones, and the chunks of a stream. Owns what an answer holds."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pilotfish
from pilotfish.engine.outputs import CompletionOutput, StreamDelta
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.server.logprobs import LogprobWriter, top_by_text
from pilotfish.server.prompts import PromptReader
from pilotfish.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from pilotfish.server.replies import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDeltaChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    DeliveredToken,
    Reply,
    SpeculativeDecoding,
    Usage,
    prompt_logprobs_of,
)
from pilotfish.server.samples import Sample


class Answer(ABC):
    """The answer to one request.

    Args:
        request: its body.
        reader: of its prompts.
        samples: all of them, as they will come.
        n: samples to tell per prompt; of more the most probable ones.
        number: unique, for the answer's id.
    """

    prefix: str
    """Of the answer's id."""

    def __init__(
        self, request: GenerationRequest, reader: PromptReader, samples: Sequence[Sample], n: int, number: str
    ) -> None:
        self._request = request
        self._reader = reader
        self._samples = samples
        self._n = n
        self._places = {id(sample): place for place, sample in enumerate(samples)}
        self._begun: set[int] = set()
        self._ended = 0
        self._writers: dict[int, LogprobWriter] = {}
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{number}",
            "created": int(time.time()),
            "model": reader.name,
            "system_fingerprint": f"pilotfish-{pilotfish.__version__}",
        }

    def whole(self) -> Reply:
        """The answer once all samples have ended."""
        extra: dict[str, Any] = {"usage": self.usage}
        if self._request.reports_speculation:
            extra["speculative_decoding"] = self.speculative_decoding
        choices = [self._choice(place, sample) for place, sample in enumerate(self._chosen())]
        return self._answer(choices, extra)

    def chunks(self, sample: Sample, delta: StreamDelta) -> Iterator[Reply]:
        """The chunks that tell what one round added to a sample."""
        place = self._places[id(sample)]
        if place not in self._begun:
            self._begun.add(place)
            yield from self._opening(place, sample)
        extra: dict[str, Any] = {}
        if delta.output is not None:
            self._ended += 1
            if self._ended == len(self._samples) and self._request.reports_speculation:
                extra["speculative_decoding"] = self.speculative_decoding
        for choice in self._delta_choices(place, sample, delta):
            ends = choice.finish_reason is not None
            yield self._chunk([choice], extra if ends else {})

    def usage_chunk(self) -> Reply:
        """The chunk after the last one, if the request asked for it."""
        return self._chunk([], {"usage": self.usage})

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        prompts = {sample.prompt: len(sample.ids) for sample in self._samples}
        read, made = sum(prompts.values()), sum(len(sample.tokens) for sample in self._samples)
        return Usage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made)

    @property
    def speculative_decoding(self) -> SpeculativeDecoding:
        """What speculation did, over all samples."""
        total = SpeculationCounters()
        for sample in self._samples:
            metrics = self._output(sample).metrics
            total.add(
                SpeculationCounters(
                    rounds=metrics.rounds,
                    drafted_tokens=metrics.drafted_tokens,
                    accepted_tokens=metrics.accepted_tokens,
                    delivered_tokens=len(sample.tokens),
                    accepted_per_position=list(metrics.accepted_per_position),
                )
            )
        return SpeculativeDecoding(
            rounds=total.rounds,
            drafted_tokens=total.drafted_tokens,
            accepted_tokens=total.accepted_tokens,
            mean_acceptance_length=total.tokens_per_round,
            acceptance_rate=total.acceptance_rate,
            accepted_per_position=total.accepted_per_position,
        )

    def _chosen(self) -> list[Sample]:
        """The samples to tell: of each prompt the first n, or the most probable n where more were made."""
        chosen: list[Sample] = []
        for prompt in sorted({sample.prompt for sample in self._samples}):
            own = [sample for sample in self._samples if sample.prompt == prompt]
            if len(own) > self._n:
                own.sort(key=lambda sample: -(self._output(sample).cumulative_logprob or 0.0))  # ties: the earlier one
            chosen += own[: self._n]
        return chosen

    @staticmethod
    def _output(sample: Sample) -> CompletionOutput:
        assert sample.output is not None, "asked for once all have ended"
        return sample.output

    def _ending(self, sample: Sample) -> dict[str, Any]:
        """What is known of a choice once it has ended."""
        output = self._output(sample)
        found: dict[str, Any] = {"finish_reason": output.finish_reason.value, "seed": output.seed}
        if output.stop_reason is not None:
            found["stop_reason"] = output.stop_reason
        return found

    def _details(self, sample: Sample) -> dict[str, Any]:
        """What whole answers tell of a choice if asked to."""
        found: dict[str, Any] = {}
        if self._request.reports_speculation:
            found["tokens"] = _tokens(sample.tokens, sample.pieces, sample.from_draft)
        if self._request.prompt_logprobs is not None and sample.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs_of(sample.prompt_logprobs)
        return found

    def _delta_details(self, delta: StreamDelta) -> dict[str, Any]:
        if not self._request.reports_speculation:
            return {}
        return {"tokens": _tokens(delta.token_ids, delta.pieces, delta.from_draft)}

    def _writer(self, sample: Sample, start: int = 0) -> LogprobWriter:
        """Of a sample's log probabilities."""
        key = id(sample)
        if key not in self._writers:
            self._writers[key] = LogprobWriter(
                self._reader.tokenizer,
                sample.ids,
                start=start,
                skip_special_tokens=sample.params.skip_special_tokens,
                top=sample.params.logprobs or 0,
            )
        return self._writers[key]

    @abstractmethod
    def _choice(self, place: int, sample: Sample) -> Any:
        """A whole choice."""

    @abstractmethod
    def _opening(self, place: int, sample: Sample) -> Iterator[Reply]:
        """Chunks before a choice's first token."""

    @abstractmethod
    def _delta_choices(self, place: int, sample: Sample, delta: StreamDelta) -> Iterator[Any]:
        """Choices of the chunks of one delta; the last one of the last delta has the finish reason."""

    @abstractmethod
    def _answer(self, choices: list[Any], extra: dict[str, Any]) -> Reply:
        """A whole answer around its choices."""

    @abstractmethod
    def _chunk(self, choices: list[Any], extra: dict[str, Any]) -> Reply:
        """A chunk around its choices."""


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


class CompletionAnswer(Answer):
    """Answer of `/v1/completions`."""

    prefix = "cmpl"

    def _choice(self, place: int, sample: Sample) -> CompletionChoice:
        output = self._output(sample)
        prompt = self._prompt_text(sample)
        logprobs = None
        if output.logprobs is not None and self._own.logprobs is not None:
            logprobs = self._writer(sample, len(prompt)).completion(output.token_ids, output.logprobs)
            if self._own.echo:
                logprobs = self._with_prompt(sample, logprobs)
        return CompletionChoice(
            index=place, text=prompt + output.text, logprobs=logprobs, **self._ending(sample), **self._details(sample)
        )

    @property
    def _own(self) -> CompletionRequest:
        assert isinstance(self._request, CompletionRequest), "the request of a completion"
        return self._request

    def _prompt_text(self, sample: Sample) -> str:
        return self._reader.text(sample.ids) if self._own.echo else ""

    def _with_prompt(self, sample: Sample, output: CompletionLogprobs) -> CompletionLogprobs:
        """The prompt's tokens before the output's."""
        found: Any = sample.prompt_logprobs
        assert found is not None, "echo with logprobs asks for them"
        top = self._own.logprobs or 0
        names, offsets, offset = [], [], 0
        for place, token in enumerate(sample.ids):
            names.append(self._reader.text([token]) if found[place] is None else found[place][token].decoded_token)
            offsets.append(offset)
            offset = len(self._reader.text(sample.ids[: place + 1]))
        values = [None if own is None else own[token].logprob for token, own in zip(sample.ids, found, strict=True)]
        alternatives: list[dict[str, float] | None] | None = None
        if top:
            alternatives = [None if own is None else top_by_text(own, top) for own in found]
            alternatives += output.top_logprobs or []
        return CompletionLogprobs(
            tokens=names + output.tokens,
            token_logprobs=values + output.token_logprobs,
            top_logprobs=alternatives,
            text_offset=offsets + output.text_offset,
        )

    def _opening(self, place: int, sample: Sample) -> Iterator[Reply]:
        if self._own.echo:
            text = self._prompt_text(sample)
            yield self._chunk([CompletionChoice(index=place, text=text, logprobs=None, finish_reason=None)], {})

    def _delta_choices(self, place: int, sample: Sample, delta: StreamDelta) -> Iterator[CompletionChoice]:
        details = self._delta_details(delta)
        logprobs = None
        if self._own.logprobs is not None and delta.token_ids:
            assert delta.logprobs is not None, "asked for"
            logprobs = self._writer(sample).completion(delta.token_ids, delta.logprobs)
        if delta.text or details.get("tokens") or logprobs is not None or delta.output is not None:
            ending = {"finish_reason": None} if delta.output is None else self._ending(sample)
            yield CompletionChoice(index=place, text=delta.text, logprobs=logprobs, **ending, **details)

    def _answer(self, choices: list[CompletionChoice], extra: dict[str, Any]) -> Reply:
        return Completion(object="text_completion", choices=choices, **self._head, **extra)

    _chunk = _answer


def _tokens(ids: Sequence[int], pieces: Sequence[str], from_draft: Sequence[bool]) -> list[DeliveredToken]:
    return [
        DeliveredToken(id=token, text=piece, from_draft=drafted)
        for token, piece, drafted in zip(ids, pieces, from_draft, strict=True)
    ]
