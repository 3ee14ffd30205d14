"""From a request's body to its answer: the order of steps that completions and chat have in common.

Owns what is tidied up when a step fails or a client leaves; what a step does is its own module's.
"""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pilotfish.engine.outputs import StreamDelta
from pilotfish.sampling.params import SamplingParams
from pilotfish.server.answers import Answer
from pilotfish.server.departure import EventStream, unless_gone
from pilotfish.server.errors import ApiError, internal_error, translated
from pilotfish.server.options import sampling_params
from pilotfish.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from pilotfish.server.samples import Sample, Samples, draining
from pilotfish.server.serving import Serving
from pilotfish.server.settings import ServerSettings


async def generate(request: Request, body: GenerationRequest, kind: type[Answer]) -> Response:
    """Answers a request, whole or as a stream.

    Args:
        kind: the answer's class.

    Raises:
        ApiError: the request is refused, or something failed before its first token.
        ClientGoneError: the client left before there was anything to tell.
    """
    serving: Serving = request.app.state.serving
    settings = serving.settings
    if serving.draining:
        raise draining()
    serving.reader.require_model(body.model)
    log = request.state.log
    if settings.log_prompts:
        log["prompt"] = _prompt_of(body)

    async def begin() -> tuple[Samples, Answer]:
        def read() -> tuple[SamplingParams, list[list[int]]]:
            return sampling_params(body, settings), serving.reader.read(body)

        try:
            params, prompts = await serving.reading.run(read)
        except Exception as error:
            raise translated(error) from error
        samples = Samples(
            serving.service,
            serving.metrics,
            prompts,
            params,
            draft_len=body.draft_len,
            arrived=request.state.arrived,
            timeout=settings.request_timeout,
        )
        answer = kind(body, serving.reader, samples.all, params.n, request.state.request_id)
        log["prompt_tokens"] = sum(len(ids) for ids in prompts)
        try:
            await samples.start(serving.submitting if params.structured_outputs is None else serving.compiling)
        except BaseException as error:
            samples.cancel()
            if isinstance(error, ApiError) and error.param == "structured_outputs" and not body.structured_outputs:
                error.param = "response_format"  # by which name the client gave it
            raise
        serving.metrics.prompt_tokens.inc(log["prompt_tokens"])
        return samples, answer

    async def whole() -> Response:
        samples, answer = await begin()
        try:
            await samples.finish()
        finally:
            samples.cancel()
            _note(log, samples, settings)
        return Response(answer.whole().to_json(), media_type="application/json")

    async def first() -> tuple[Samples, Answer, tuple[Sample, StreamDelta] | None]:
        # The status is told with the first token, so that whatever fails before it has a status of its own.
        samples, answer = await begin()
        try:
            return samples, answer, await samples.next()
        except BaseException:
            samples.cancel()
            raise

    if not body.streams:
        return await unless_gone(request, whole())
    samples, answer, arrival = await unless_gone(request, first())

    def end() -> None:
        samples.cancel()
        _note(log, samples, settings)

    events = _stream(samples, answer, arrival, log, include_usage=body.includes_usage)
    return EventStream(events, write_timeout=settings.write_timeout, on_end=end)


async def _stream(
    samples: Samples,
    answer: Answer,
    arrival: tuple[Sample, StreamDelta] | None,
    log: dict[str, Any],
    *,
    include_usage: bool,
) -> AsyncIterator[str]:
    try:
        while arrival is not None:
            for chunk in answer.chunks(*arrival):
                yield f"data: {chunk.to_json()}\n\n"
            arrival = await samples.next()
        if include_usage:
            yield f"data: {answer.usage_chunk().to_json()}\n\n"
    except ApiError as error:
        log["error"] = error.code
        yield _error_event(error)
    except Exception:
        log["error"] = "internal_error"
        yield _error_event(internal_error())
        raise
    yield "data: [DONE]\n\n"


def _error_event(error: ApiError) -> str:
    return f"data: {bytes(error.response().body).decode()}\n\n"


def _note(log: dict[str, Any], samples: Samples, settings: ServerSettings) -> None:
    log["completion_tokens"] = sum(len(sample.tokens) for sample in samples.all)
    log["finish_reasons"] = [sample.output and sample.output.finish_reason.value for sample in samples.all]
    if settings.log_prompts:
        log["outputs"] = ["".join(sample.pieces) for sample in samples.all]


def _prompt_of(body: GenerationRequest) -> Any:
    if isinstance(body, ChatRequest):
        return [message.as_message() for message in body.messages]
    assert isinstance(body, CompletionRequest), "one of the two"
    return body.prompt
