"""Samples become answers: whole ones, and the chunks of a stream.

Owns what every answer holds; what only a chat's or only a completion's has is in `chat.py` and `completion.py`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pilotfish
from pilotfish.engine.outputs import CompletionOutput, StreamDelta
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.server.logprobs import LogprobWriter
from pilotfish.server.prompts import PromptReader
from pilotfish.server.protocol import GenerationRequest
from pilotfish.server.replies import DeliveredToken, Reply, SpeculativeDecoding, Usage, prompt_logprobs_of
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


def _tokens(ids: Sequence[int], pieces: Sequence[str], from_draft: Sequence[bool]) -> list[DeliveredToken]:
    return [
        DeliveredToken(id=token, text=piece, from_draft=drafted)
        for token, piece, drafted in zip(ids, pieces, from_draft, strict=True)
    ]
