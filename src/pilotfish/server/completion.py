"""The answer to a completion. Owns the shape of its choices, and the prompt before them where it is echoed."""

from collections.abc import Iterator
from typing import Any

from pilotfish.engine.outputs import StreamDelta
from pilotfish.server.answers import Answer
from pilotfish.server.logprobs import top_by_text
from pilotfish.server.protocol import CompletionRequest
from pilotfish.server.replies import Completion, CompletionChoice, CompletionLogprobs, Reply
from pilotfish.server.samples import Sample


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
